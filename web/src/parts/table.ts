import type { Value } from '../lib/sort';

/** A column of a table. */
export interface Column<Row> {
  key: string;
  label: string;
  /** The value by which rows are sorted, and which is shown unless the table has a cell for it. */
  value: (row: Row) => Value;
  /** Its width: a length, a share or `auto`, but never less than its label and some words need. */
  width: string;
  /** The same on a narrow screen, where it is another. */
  narrow?: string;
  isNumber?: boolean;
  /** The narrowest screen that has it. */
  from?: 'medium' | 'wide';
}

/** Screens by width, as the style of `DataTable.svelte` tells them apart. */
export type Screen = 'narrow' | 'medium' | 'wide';

const SCREENS: Screen[] = ['narrow', 'medium', 'wide'];
/** Most pixels of a letter of a label; of its arrow and the space at both sides. */
const [LETTER, AROUND] = [6.7, 44];
/** Least pixels of a column of figures, of words, and of names, which are first. */
const LEAST = { narrow: [60, 76, 100], medium: [72, 110, 140], wide: [72, 110, 140] };

function least<Row>(column: Column<Row>, isFirst: boolean, screen: Screen): number {
  const content = LEAST[screen][isFirst ? 2 : column.isNumber ? 0 : 1] ?? 0;
  return Math.max(content, Math.ceil(column.label.length * LETTER) + AROUND);
}

/**
 * Returns the width of each column, and the least of the table, as lengths of CSS: where the screen
 * has less room than that, the table is scrolled. `cqw` is a hundredth of its frame.
 */
export function widthsOf<Row>(
  columns: readonly Column<Row>[],
  screen: Screen,
): { columns: string[]; table: string } {
  const widths = columns.map((column, index) => {
    const width = (screen === 'narrow' && column.narrow) || column.width;
    const pixels = `${least(column, index === 0, screen)}px`;
    if (width === 'auto') return { width, pixels };
    return { width: `max(${pixels}, ${width.replace('%', 'cqw')})`, pixels };
  });
  const isShown = ({ from }: Column<Row>) =>
    SCREENS.indexOf(from ?? 'narrow') <= SCREENS.indexOf(screen);
  const parts = widths.filter((_, index) => isShown(columns[index] as Column<Row>));
  const sum = parts.map(({ width, pixels }) => (width === 'auto' ? pixels : width)).join(' + ');
  return { columns: widths.map(({ width }) => width), table: `calc(${sum})` };
}
