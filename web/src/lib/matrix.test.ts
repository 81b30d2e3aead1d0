import { describe, expect, it } from 'vitest';

import { legsOf } from './legs';
import { legAt, matrixOf, rgb, sideOf, strengthsOf } from './matrix';
import type { MeasurementColumns } from './types';

describe('the matrix', () => {
  const columns: MeasurementColumns = {
    schema_version: 1,
    places: ['a', 'b', 'c'],
    source: [1, 0],
    destination: [0, 2],
    rtt_min_ms: [100, 50],
    rtt_median_ms: [110, 60],
    rate_mbps: [84.3, null],
    retransmitted: [0.01, null],
    method: ['tcp', 'distance'],
    measured_at_unix_ms: [1000, null],
  };
  const matrix = matrixOf(columns);

  it('has a row and a column for each place', () => {
    expect([...matrix.cells]).toEqual([-1, -1, 1, 0, -1, -1, -1, -1, -1]);
    const cells = [[1, 0], [0, 0], [0, 3], [-1, 5]] as const;
    expect(cells.map(([row, column]) => legAt(matrix, row, column))).toEqual([0, null, null, null]);
  });

  it('has the legs of the list', () => {
    expect(legsOf(columns)).toEqual([
      {
        source: 'b',
        destination: 'a',
        rtt_min_ms: 100,
        rtt_median_ms: 110,
        rate_mbps: 84.3,
        retransmitted: 0.01,
        method: 'tcp',
        measured_at_unix_ms: 1000,
      },
      {
        source: 'a',
        destination: 'c',
        rtt_min_ms: 50,
        rtt_median_ms: 60,
        rate_mbps: null,
        retransmitted: null,
        method: 'distance',
        measured_at_unix_ms: null,
      },
    ]);
  });

  it('is shaded by round trip, age or method', () => {
    const strengths = (shade: 'rtt' | 'age' | 'method') => [
      ...strengthsOf(matrix, shade, 1_801_000),
    ];
    expect(strengths('rtt')).toEqual([1, 0.5]);
    expect(strengths('age')).toEqual([0.5, NaN]);
    expect(strengths('method')).toEqual([0, 1]);
  });

  it('has the colour of the page', () => {
    expect(rgb(' #0b665f')).toEqual([11, 102, 95]);
  });

  it('fits its room', () => {
    expect([sideOf(4, 800), sideOf(200, 800), sideOf(1000, 800)]).toEqual([22, 4, 3]);
  });
});
