import { expect, test } from 'vitest';

import { recoveries, shares } from './packets';
import type { PacketFlowView } from './types';

const counts = (replaced: Partial<PacketFlowView['counts']>): PacketFlowView['counts'] => ({
  packets: 1000,
  bytes: 200_000,
  copies: 1000,
  expected: 1000,
  in_time: 990,
  late: 4,
  lost: 6,
  lost_by_internet: 50,
  recovered_cache: 40,
  recovered_in_stream: 0,
  recovered_cross_stream: 0,
  relay_bytes: 400_000,
  usd: 0.1,
  ...replaced,
});

test('shares are of the packets that the receiver expected', () => {
  expect(shares(counts({}))).toEqual({
    lostByInternet: 0.05,
    inTime: 0.99,
    late: 0.004,
    lost: 0.006,
    missed: 0.01,
  });
});

test('nothing is known before the receiver reports', () => {
  const none = counts({ expected: 0, in_time: 0, late: 0, lost: 0, lost_by_internet: 0 });
  expect(Object.values(shares(none))).toEqual([null, null, null, null, null]);
});

test('what recovered packets is told one by one', () => {
  const some = counts({ recovered_cache: 3, recovered_in_stream: 2, recovered_cross_stream: 1 });
  expect(recoveries(some).map(({ count }) => count)).toEqual([3, 2, 1]);
});
