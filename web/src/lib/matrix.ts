// The matrix of measurements: which cell is which pair, and how strong its colour is.

import type { MeasurementColumns, Method } from './types';

export type Shade = 'rtt' | 'age' | 'method';

export interface Matrix {
  columns: MeasurementColumns;
  /** The number of each cell's leg, row by row; -1: none. */
  cells: Int32Array;
  /** The longest of the least round trips, in milliseconds; at least 1. */
  longest: number;
}

/** How far each method is from a measurement. */
export const METHOD_STRENGTHS: Record<Method, number> = {
  tcp: 0,
  passive: 0.2,
  ping: 0.4,
  imported: 0.7,
  distance: 1,
};
/** The age from which on a measurement has the strongest colour: an hour. */
const OLDEST = 3_600_000;

/** Returns which cell is which leg. Its loops are plain: there may be 40,000 legs. */
export function matrixOf(columns: MeasurementColumns): Matrix {
  const { places, source, destination, rtt_min_ms: rtts } = columns;
  const cells = new Int32Array(places.length ** 2).fill(-1);
  let longest = 1;
  for (let leg = 0; leg < source.length; leg += 1) {
    cells[(source[leg] as number) * places.length + (destination[leg] as number)] = leg;
    longest = Math.max(longest, rtts[leg] as number);
  }
  return { columns, cells, longest };
}

/** Returns the number of a cell's leg, if it has one. */
export function legAt({ columns, cells }: Matrix, row: number, column: number): number | null {
  const side = columns.places.length;
  const isWithin = [row, column].every((at) => at >= 0 && at < side);
  const leg = isWithin ? (cells[row * side + column] ?? -1) : -1;
  return leg < 0 ? null : leg;
}

/** Returns how strong the colour of each leg is, from 0, good, to 1; NaN without an age. */
export function strengthsOf(matrix: Matrix, shade: Shade, now: number): Float64Array {
  const { columns, longest } = matrix;
  if (shade === 'rtt') return Float64Array.from(columns.rtt_min_ms, (rtt) => rtt / longest);
  if (shade === 'method') return Float64Array.from(columns.method, (of) => METHOD_STRENGTHS[of]);
  return Float64Array.from(columns.measured_at_unix_ms, (at) =>
    at === null ? NaN : Math.min(1, Math.max(0, (now - at) / OLDEST)),
  );
}

/** Returns the opacity of a strength. */
export const opacityOf = (strength: number): number => 0.12 + 0.88 * strength;

/** Returns the cell side in pixels for so many sites in so much room. */
export function sideOf(sites: number, room: number): number {
  return Math.max(3, Math.min(22, Math.floor(room / Math.max(1, sites))));
}

/** Reads a colour such as `#0b665f`. */
export function rgb(colour: string): [number, number, number] {
  const value = Number.parseInt(colour.trim().replace('#', ''), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}
