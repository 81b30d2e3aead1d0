// What became of the packets of a flow.

import type { PacketFlowView } from './types';

/** Shares of the packets that a receiver expected; `null` where it told of none. */
export interface PacketShares {
  /** Those that the Internet lost, recovered or not. */
  lostByInternet: number | null;
  /** Those that did not come within the latency budget. */
  missed: number | null;
}

export function shares(flow: Pick<PacketFlowView, 'counts'>): PacketShares {
  const { expected, late, lost, lost_by_internet } = flow.counts;
  if (expected === 0) return { lostByInternet: null, missed: null };
  return { lostByInternet: lost_by_internet / expected, missed: (late + lost) / expected };
}
