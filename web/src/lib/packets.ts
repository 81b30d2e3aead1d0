// What became of the packets of a flow.

import type { PacketFlowView } from './types';

type Counts = Pick<
  PacketFlowView['counts'],
  'expected' | 'late' | 'lost' | 'lost_by_internet' | 'in_time'
>;

/** Shares of the packets that a receiver expected; `null` where it told of none. */
export interface PacketShares {
  /** Those that the Internet lost, recovered or not. */
  lostByInternet: number | null;
  inTime: number | null;
  /** Those that came after the latency budget. */
  late: number | null;
  /** Those that did not come at all. */
  lost: number | null;
  /** Both: what the flow's bound is about. */
  missed: number | null;
}

export function shares(counts: Counts): PacketShares {
  const { expected, in_time, late, lost, lost_by_internet } = counts;
  const of = (count: number) => (expected === 0 ? null : count / expected);
  return {
    lostByInternet: of(lost_by_internet),
    inTime: of(in_time),
    late: of(late),
    lost: of(lost),
    missed: of(late + lost),
  };
}

type Recovered = Pick<
  PacketFlowView['counts'],
  'recovered_cache' | 'recovered_in_stream' | 'recovered_cross_stream'
>;

/** Returns what recovered packets, and how many. */
export function recoveries(counts: Recovered): { by: string; count: number }[] {
  return [
    { by: 'From a relay’s cache', count: counts.recovered_cache },
    { by: 'By repair packets of its own flow', count: counts.recovered_in_stream },
    { by: 'With packets of other receivers', count: counts.recovered_cross_stream },
  ];
}

type Considered = NonNullable<PacketFlowView['planned']>['services'][number];

/** Reasons why a service was selected or not. */
export const VERDICTS: Record<Considered['verdict'], string> = {
  selected: 'Selected',
  dearer: 'Costs more',
  late: 'Too late',
  lossy: 'Loses too many',
};
