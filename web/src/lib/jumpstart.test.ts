import { describe, expect, it } from 'vitest';

import { faster, histogram, sentence, transfersBySize, windowsOf } from './jumpstart';
import type { HostJumpstart } from './types';

const host = (name: string, windows: [number, number][]): HostJumpstart => ({
  host: name,
  is_covered: true,
  is_acting: true,
  why_not: null,
  destinations: windows.map(([from], index) => ({
    destination: `192.0.2.${index}/32`,
    window_segments: from + 5,
    samples: index,
    is_in_force: index === 0,
  })),
  others: 0,
  windows: windows.map(([from_segments, destinations]) => ({ from_segments, destinations })),
  jumped_connections: 9,
  control_connections: 1,
  jumped_resent_per_mb: 0.5,
  control_resent_per_mb: null,
  speedup: null,
});

describe('jump-start', () => {
  const hosts = [
    host('a', [
      [60, 2],
      [10, 1],
    ]),
    host('b', [[60, 3]]),
  ];

  it('lists the windows of all hosts', () => {
    expect(windowsOf(hosts).map((row) => [row.host, row.window, row.isInForce])).toEqual([
      ['a', 65, true],
      ['a', 15, false],
      ['b', 65, true],
    ]);
  });

  it('adds the histograms up, the smallest window first', () => {
    expect(histogram(hosts)).toEqual([
      { from_segments: 10, destinations: 1 },
      { from_segments: 60, destinations: 5 },
    ]);
  });

  it('tells the settings in a sentence', () => {
    const settings = {
      is_on: true,
      hosts: [],
      sites: [],
      control_share: 0.05,
      window_max: 100,
      has_probes: false,
      is_shared: false,
    };
    expect(sentence(settings)).toBe('On for all hosts: windows up to 100 segments.');
    expect(sentence({ ...settings, hosts: ['a-1'], sites: ['b'] })).toContain('On for a-1, b:');
    expect(sentence({ ...settings, is_shared: true })).toContain('segments, shared within sites.');
    expect(sentence({ ...settings, is_on: false })).toMatch(/^Off/);
  });

  it('has an interval, or too few connections', () => {
    const arms = host('a', []);
    expect(faster(arms)).toBe('too few');
    expect(faster({ ...arms, speedup: { value: 1.5, low: 1.25, high: 1.801 } })).toBe(
      '1.50× (1.25 to 1.80)',
    );
  });

  it('has both arms of a transfer beside each other', () => {
    const of = (size_bytes: number, arm: 'jumped' | 'control', p50_ms: number) => {
      const [p25_ms, p75_ms, p95_ms] = [p50_ms, p50_ms, p50_ms];
      return { size_bytes, arm, transfers: 12, p25_ms, p50_ms, p75_ms, p95_ms };
    };
    const rows = transfersBySize([
      of(100_000, 'jumped', 100),
      of(10_000, 'jumped', 80),
      of(100_000, 'control', 400),
    ]);
    expect(rows.map((row) => [row.bytes, row.shorter])).toEqual([
      [10_000, null],
      [100_000, 0.75],
    ]);
    expect(transfersBySize([])).toEqual([]);
  });
});
