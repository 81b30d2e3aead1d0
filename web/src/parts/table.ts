import type { Value } from '../lib/sort';

/** A column of a table. */
export interface Column<Row> {
  key: string;
  label: string;
  /** The value by which rows are sorted, and which is shown unless the table has a cell for it. */
  value: (row: Row) => Value;
  /**
   * Its width: pixels, or its part of the room that the others leave, as a number. Never less than
   * its label and some words need.
   */
  width: string | number;
  /** The same on a narrow screen, where it is another. */
  narrow?: string | number;
  isNumber?: boolean;
  /** The narrowest screen that has it. */
  from?: 'medium' | 'wide' | 'huge';
}

/** Screens by width, as the style of `DataTable.svelte` tells them apart. */
export const SCREENS = ['narrow', 'medium', 'wide', 'huge'] as const;
export type Screen = (typeof SCREENS)[number];

/** Most pixels of a letter of a label; of its arrow and the space at both sides. */
const [LETTER, AROUND] = [6.7, 44];
/** Least pixels of a column of figures, of words, and of names, which are first. */
const LEAST = { narrow: [60, 76, 100], other: [72, 110, 140] };

function least<Row>(column: Column<Row>, isFirst: boolean, screen: Screen): number {
  const kinds = LEAST[screen === 'narrow' ? 'narrow' : 'other'];
  const content = kinds[isFirst ? 2 : column.isNumber ? 0 : 1] ?? 0;
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
  const isShown = ({ from }: Column<Row>) =>
    SCREENS.indexOf(from ?? 'narrow') <= SCREENS.indexOf(screen);
  const all = columns.map((column, index) => {
    const width = (screen === 'narrow' && column.narrow) || column.width;
    const atLeast = least(column, index === 0, screen);
    if (typeof width === 'number') return { pixels: atLeast, part: width };
    return { pixels: Math.max(atLeast, Number.parseInt(width)), part: 0 };
  });
  const shown = all.filter((_, index) => isShown(columns[index] as Column<Row>));
  const pixels = shown.reduce((sum, one) => sum + one.pixels, 0);
  const parts = shown.reduce((sum, one) => sum + one.part, 0) || 1;
  const room = `max(0px, 100cqw - ${pixels}px)`;
  const width = (one: { pixels: number; part: number }) =>
    one.part === 0
      ? `${one.pixels}px`
      : `calc(${one.pixels}px + ${(one.part / parts).toFixed(4)} * ${room})`;
  return { columns: all.map(width), table: `${pixels}px` };
}
