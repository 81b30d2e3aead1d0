import { describe, expect, it } from 'vitest';

import { legAt, matrixOf, rgb, sideOf, strengthsOf } from './matrix';
import type { LegMeasurement, Method } from './types';

const leg = (
  source: string,
  destination: string,
  rtt: string,
  method: Method,
  at: number | null,
): LegMeasurement => ({
  source,
  destination,
  rtt: { min: rtt, median: rtt, spread: '0 ms', count: 1 },
  rate: null,
  method,
  measured_at_unix_ms: at,
});

describe('the matrix', () => {
  const legs = [leg('b', 'a', '100 ms', 'tcp', 1000), leg('a', 'c', '50 ms', 'distance', null)];
  const matrix = matrixOf(legs);

  it('has a row and a column for each site', () => {
    expect(matrix.sites).toEqual(['a', 'b', 'c']);
    expect([...matrix.cells]).toEqual([-1, -1, 1, 0, -1, -1, -1, -1, -1]);
    expect(legAt(matrix, 1, 0)).toBe(legs[0]);
    expect([legAt(matrix, 0, 0), legAt(matrix, 0, 3), legAt(matrix, -1, 5)]).toEqual([
      null,
      null,
      null,
    ]);
  });

  it('is shaded by round trip, age or method', () => {
    const strengths = (shade: 'rtt' | 'age' | 'method') => [
      ...strengthsOf(matrix, shade, 1_801_000),
    ];
    expect(strengths('rtt')).toEqual([1, 0.5]);
    expect(strengths('age')).toEqual([0.5, 1]);
    expect(strengths('method')).toEqual([0, 1]);
  });

  it('has the colour of the page', () => {
    expect(rgb(' #0b665f')).toEqual([11, 102, 95]);
  });

  it('fits its room', () => {
    expect([sideOf(4, 800), sideOf(200, 800), sideOf(1000, 800)]).toEqual([22, 4, 3]);
  });
});
