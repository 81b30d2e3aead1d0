// The matrix of measurements: which cell is which pair, and how strong its colour is.

import { quantity } from './format';
import type { LegMeasurement, Method } from './types';

export type Shade = 'rtt' | 'age' | 'method';

export interface Matrix {
  legs: readonly LegMeasurement[];
  /** All sites of the legs, by name: the rows, and the columns. */
  sites: string[];
  /** The number of each cell's leg, row by row; -1: none. */
  cells: Int32Array;
  /** The least round trip of each leg, in milliseconds, and the longest of these. */
  rtts: Float64Array;
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
export function matrixOf(legs: readonly LegMeasurement[]): Matrix {
  const names = new Set<string>();
  for (const leg of legs) names.add(leg.destination);
  let last = '';
  for (const { source } of legs) if (source !== last) names.add((last = source));
  const sites = [...names].sort();
  const places = new Map(sites.map((site, index) => [site, index]));
  const cells = new Int32Array(sites.length ** 2).fill(-1);
  const rtts = new Float64Array(legs.length);
  let longest = 1;
  // Legs of one sender follow each other.
  let [source, row] = ['', 0];
  legs.forEach((leg, index) => {
    if (leg.source !== source) [source, row] = [leg.source, places.get(leg.source) ?? 0];
    const column = places.get(leg.destination) ?? 0;
    cells[row * sites.length + column] = index;
    const rtt = quantity(leg.rtt.min) ?? 0;
    rtts[index] = rtt;
    if (rtt > longest) longest = rtt;
  });
  return { legs, sites, cells, rtts, longest };
}

/** Returns the leg of a cell, if it has one. */
export function legAt({ legs, sites, cells }: Matrix, row: number, column: number) {
  const isWithin = [row, column].every((at) => at >= 0 && at < sites.length);
  return (isWithin && legs[cells[row * sites.length + column] ?? -1]) || null;
}

/** Returns how strong the colour of each leg is, from 0, good, to 1. */
export function strengthsOf(matrix: Matrix, shade: Shade, now: number): Float64Array {
  const { legs, rtts, longest } = matrix;
  if (shade === 'rtt') return rtts.map((rtt) => rtt / longest);
  return Float64Array.from(legs, (leg) => {
    if (shade === 'method') return METHOD_STRENGTHS[leg.method];
    const age = leg.measured_at_unix_ms === null ? OLDEST : now - leg.measured_at_unix_ms;
    return Math.min(1, Math.max(0, age / OLDEST));
  });
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
