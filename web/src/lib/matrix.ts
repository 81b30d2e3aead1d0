// The matrix of measurements: which cell is which pair, and how strong its colour is.

import { quantity } from './format';
import type { LegMeasurement, Method } from './types';

export type Shade = 'rtt' | 'age' | 'method';

export interface Cell {
  row: number;
  column: number;
  leg: LegMeasurement;
  /** From 0, good, to 1. */
  strength: number;
}

/** How far each method is from a measurement. */
const METHODS: Record<Method, number> = {
  tcp: 0,
  passive: 0.2,
  ping: 0.4,
  imported: 0.7,
  distance: 1,
};
/** The age from which on a measurement has the strongest colour: an hour. */
const OLDEST = 3_600_000;

/** Returns all sites of the legs, by name. */
export function sitesOf(legs: readonly LegMeasurement[]): string[] {
  return [...new Set(legs.flatMap((leg) => [leg.source, leg.destination]))].sort();
}

/** Returns the cells of the legs in the order of these sites. */
export function cellsOf(
  legs: readonly LegMeasurement[],
  sites: readonly string[],
  shade: Shade,
  now: number,
): Cell[] {
  const places = new Map(sites.map((site, index) => [site, index]));
  const rtts = legs.map((leg) => quantity(leg.rtt.min) ?? 0);
  const longest = rtts.reduce((most, rtt) => Math.max(most, rtt), 1);
  return legs.flatMap((leg, index) => {
    const [row, column] = [places.get(leg.source), places.get(leg.destination)];
    if (row === undefined || column === undefined) return [];
    let strength = METHODS[leg.method];
    if (shade === 'rtt') strength = (rtts[index] ?? 0) / longest;
    if (shade === 'age') {
      const age = leg.measured_at_unix_ms === null ? OLDEST : now - leg.measured_at_unix_ms;
      strength = Math.min(1, Math.max(0, age / OLDEST));
    }
    return [{ row, column, leg, strength }];
  });
}

/** Returns the cell side in pixels for so many sites in so much room. */
export function sideOf(sites: number, room: number): number {
  return Math.max(3, Math.min(22, Math.floor(room / Math.max(1, sites))));
}

/** Reads a colour such as `#0b665f`. */
export function rgb(colour: string): [number, number, number] {
  const value = Number.parseInt(colour.trim().replace('#', ''), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}
