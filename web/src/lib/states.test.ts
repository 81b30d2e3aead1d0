import { describe, expect, it } from 'vitest';

import { boundsOf } from './states';

describe('bounds of owners', () => {
  it('are told with what is used of them', () => {
    const spend = { usd_per_day: 5, is_used_up: false };
    expect(boundsOf({ rate: '1 Gbit/s', spend: { ...spend, used_usd: 1.25 } })).toBe(
      '1 Gbit/s; $1.25 of $5.00 a day',
    );
    // An older agent does not tell.
    expect(boundsOf({ rate: null, spend })).toBe('$5.00 a day');
    const isUsedUp = { ...spend, used_usd: 5.01, is_used_up: true };
    expect(boundsOf({ rate: null, spend: isUsedUp })).toBe('all of $5.00 a day');
    expect(boundsOf({ rate: '50 Mbit/s', spend: null })).toBe('50 Mbit/s');
  });
});
