// The order of a table's rows.

export interface Order {
  key: string;
  isDescending: boolean;
}

export type Value = string | number | null | undefined;

/** Returns the rows in order of a value; those without one are last either way. */
export function sorted<Row>(rows: readonly Row[], value: (row: Row) => Value, order: Order): Row[] {
  const sign = order.isDescending ? -1 : 1;
  const known: number[] = [];
  const unknown: Row[] = [];
  const values = rows.map((row, index) => {
    const of = value(row);
    if (of !== null && of !== undefined && !Number.isNaN(of)) {
      known.push(index);
      return of;
    }
    unknown.push(row);
    return 0;
  });
  known.sort((a, b) => sign * compare(values[a] as Known, values[b] as Known));
  return [...known.map((index) => rows[index] as Row), ...unknown];
}

type Known = string | number;

function compare(a: string | number, b: string | number): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** Returns the order after a click on a column. */
export function clicked(order: Order, key: string): Order {
  return { key, isDescending: order.key === key && !order.isDescending };
}
