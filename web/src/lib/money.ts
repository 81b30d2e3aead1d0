// The gain and the cost of several days, added up.

import type { Billed, FlowGain, RelayGain } from './types';

export interface FlowSum {
  flow: string;
  overlaySessions: number;
  controlSessions: number;
  failedSessions: number;
  bytes: number;
  /** Seconds saved on the days on which that is known; `null` if it is on none. */
  secondsSaved: number | null;
  cost: number;
  /** Dollars for each second saved, of the days on which those are known. */
  usdPerSecond: number | null;
}

/** Adds up the days of each flow. */
export function byFlow(gains: readonly FlowGain[]): FlowSum[] {
  const sums = new Map<string, FlowSum & { costOfKnown: number }>();
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

export interface Sum {
  key: string;
  sessions: number;
  bytes: number;
  cost: number;
  secondsSaved: number | null;
  /** Dollars that were billed, of what bills were imported for; `null`: none. */
  billed: number | null;
}

/** Adds up relays' days, and the bills of their hosts, by what `key` returns. */
export function relaysBy(
  relays: readonly RelayGain[],
  bills: readonly Billed[],
  key: (relay: string, day: number) => string,
): Sum[] {
  const sums = new Map<string, Sum>();
  const none = { sessions: 0, bytes: 0, cost: 0, secondsSaved: null, billed: null };
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
