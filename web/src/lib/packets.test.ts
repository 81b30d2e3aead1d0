import { expect, test } from 'vitest';

import { shares } from './packets';
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
  expect(shares({ counts: counts({}) })).toEqual({ lostByInternet: 0.05, missed: 0.01 });
});

test('nothing is known before the receiver reports', () => {
  const none = counts({ expected: 0, late: 0, lost: 0, lost_by_internet: 0 });
  expect(shares({ counts: none })).toEqual({ lostByInternet: null, missed: null });
});
