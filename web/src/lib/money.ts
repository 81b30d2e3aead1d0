// The gain and the cost of several days, added up.

import { day } from './format';
import type { Billed, FlowGain, Gain, PacketFlowView, RelayGain } from './types';

export interface FlowSum {
  flow: string;
  /** `null` of packet flows, as the next three are. */
  overlaySessions: number | null;
  controlSessions: number | null;
  failedSessions: number | null;
  bytes: number | null;
  /** Seconds saved on the days on which that is known; `null` if it is on none. */
  secondsSaved: number | null;
  cost: number;
  /** Dollars for each second saved, of the days on which those are known. */
  usdPerSecond: number | null;
}

type Counted = 'overlaySessions' | 'controlSessions' | 'failedSessions' | 'bytes';
type StreamSum = FlowSum & Record<Counted | 'costOfKnown', number>;

/** Adds up the days of each flow. */
export function byFlow(gains: readonly FlowGain[]): FlowSum[] {
  const sums = new Map<string, StreamSum>();
  for (const gain of gains) {
    const sum = sums.get(gain.flow) ?? {
      flow: gain.flow,
      overlaySessions: 0,
      controlSessions: 0,
      failedSessions: 0,
      bytes: 0,
      secondsSaved: null,
      cost: 0,
      usdPerSecond: null,
      costOfKnown: 0,
    };
    sum.overlaySessions += gain.overlay_sessions;
    sum.controlSessions += gain.control_sessions;
    sum.failedSessions += gain.failed_sessions;
    sum.bytes += gain.bytes;
    sum.cost += gain.cost;
    if (gain.seconds_saved) {
      sum.secondsSaved = (sum.secondsSaved ?? 0) + gain.seconds_saved.value;
      sum.costOfKnown += gain.cost;
      sum.usdPerSecond = sum.secondsSaved > 0 ? sum.costOfKnown / sum.secondsSaved : null;
    }
    sums.set(gain.flow, sum);
  }
  return [...sums.values()];
}

/** Returns packet flows as rows beside those of streams: they have packets, and no sessions. */
export function ofPackets(flows: readonly PacketFlowView[]): FlowSum[] {
  return flows.map((flow) => ({
    flow: flow.id,
    overlaySessions: null,
    controlSessions: null,
    failedSessions: null,
    bytes: null,
    secondsSaved: null,
    cost: flow.counts.usd,
    usdPerSecond: null,
  }));
}

export interface Sum {
  key: string;
  sessions: number;
  bytes: number;
  /** Dollars as plans estimated them; `null`: not known. */
  estimated: number | null;
  /** Dollars that were metered. */
  cost: number;
  secondsSaved: number | null;
  /** Dollars that were billed, of what bills were imported for; `null`: none. */
  billed: number | null;
}

const none = {
  sessions: 0,
  bytes: 0,
  estimated: null,
  cost: 0,
  secondsSaved: null,
  billed: null,
};

/** Adds up relays' days, and the bills of their hosts, by what `key` returns. */
export function relaysBy(
  relays: readonly RelayGain[],
  bills: readonly Billed[],
  key: (relay: string, day: number) => string,
): Sum[] {
  const sums = new Map<string, Sum>();
  for (const one of relays) {
    const of = key(one.relay, one.day);
    const sum: Sum = sums.get(of) ?? { key: of, ...none };
    sum.sessions += one.sessions;
    sum.bytes += one.bytes;
    sum.cost += one.cost;
    if (one.seconds_saved !== null) sum.secondsSaved = (sum.secondsSaved ?? 0) + one.seconds_saved;
    sums.set(of, sum);
  }
  for (const one of bills) {
    const of = key(one.host, one.day);
    const sum: Sum = sums.get(of) ?? { key: of, ...none };
    sum.billed = (sum.billed ?? 0) + one.usd;
    sums.set(of, sum);
  }
  return [...sums.values()];
}

/** Returns the money of each day: all that it has cost, packets and rate tests included. */
export function byDay({ spent, relays, billed }: Pick<Gain, 'spent' | 'relays' | 'billed'>): Sum[] {
  const sums = new Map(relaysBy(relays, billed, (_, of) => day(of)).map((sum) => [sum.key, sum]));
  for (const one of spent) {
    const key = day(one.day);
    const cost = one.machines + one.traffic + one.tests;
    sums.set(key, { ...(sums.get(key) ?? { key, ...none }), cost, estimated: one.estimated });
  }
  return [...sums.values()];
}
