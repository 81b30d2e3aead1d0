import type { Value } from '../lib/sort';

/** A column of a table. */
export interface Column<Row> {
  key: string;
  label: string;
  /** The value by which rows are sorted, and which is shown unless the table has a cell for it. */
  value: (row: Row) => Value;
  /** Its width: a length, a share or `auto`. */
  width: string;
  /** The same on a narrow screen, where it is another. */
  narrow?: string;
  isNumber?: boolean;
  /** The narrowest screen that has it. */
  from?: 'medium' | 'wide';
}
