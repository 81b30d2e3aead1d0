import { describe, expect, it } from 'vitest';

import * as format from './format';

describe('figures', () => {
  it('have three digits and a unit', () => {
    expect([0.0123, 1.234, 12.34, 123.4, 12345].map(format.short)).toEqual([
      '0.01',
      '1.23',
      '12.3',
      '123',
      '12,345',
    ]);
    expect([0.012, 0.9999, 3.2, 75, 119.7, 3599.9, 7200].map(format.seconds)).toEqual([
      '12.0 ms',
      '1.00 s',
      '3.20 s',
      '1 min 15 s',
      '2 min 0 s',
      '1.00 h',
      '2.00 h',
    ]);
    expect([0, 0.00004, 0.0123, 1.5].map(format.usd)).toEqual([
      '$0.00',
      '$0.000040',
      '$0.0123',
      '$1.50',
    ]);
    expect([999, 1000, 2e9].map(format.bytes)).toEqual(['999 B', '1.00 kB', '2.00 GB']);
    expect([0, 0.004, 0.5].map(format.percent)).toEqual(['0.00 %', '0.40 %', '50.0 %']);
    expect(format.mbps(1500)).toBe('1.50 Gbit/s');
    expect(format.mbps(format.meanMbps(450_000, 3600))).toBe('1.00 kbit/s');
    expect(format.mbps(format.meanMbps(450_000, 0))).toBe('–');
    expect(format.seconds(null)).toBe('–');
  });

  it('tell how long ago', () => {
    expect([5, 65, 3700, 200_000].map((s) => format.ago(1000, 1000 + s * 1000))).toEqual([
      '5 s ago',
      '1 min ago',
      '1 h ago',
      '2 d ago',
    ]);
    expect(format.day(20784)).toBe('2026-11-27');
  });

  it('are read from texts with units', () => {
    const texts = ['30 ms', '1.5 s', '250 us', '84.3 Mbit/s', '2 Gbit/s', '200 MB', '64 KiB'];
    expect(texts.map(format.quantity)).toEqual([30, 1500, 0.25, 84.3, 2000, 2e8, 65_536]);
    expect(['', 'x', '5', '5 apples', 'e ms', null].map(format.quantity)).toEqual(
      Array(6).fill(null),
    );
    expect([0.02, '2 %', null].map(format.share)).toEqual([0.02, 0.02, null]);
  });
});
