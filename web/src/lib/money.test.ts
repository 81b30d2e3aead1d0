import { describe, expect, it } from 'vitest';

import { byDay, byFlow, ofPackets, relaysBy } from './money';
import type { FlowGain, RelayGain } from './types';

const gain = (flow: string, day: number, saved: number | null, cost: number): FlowGain => ({
  flow,
  day,
  overlay_sessions: 10,
  control_sessions: 1,
  other_sessions: 0,
  failed_sessions: 2,
  fallback_sessions: 0,
  overlay_failed_sessions: 2,
  control_failed_sessions: 0,
  bytes: 1000,
  speedup: null,
  overlay_seconds: null,
  control_seconds: null,
  speedup_predicted: null,
  speedup_predicted_low: null,
  speedup_predicted_high: null,
  seconds_saved: saved === null ? null : { value: saved, low: saved, high: saved },
  cost,
  usd_per_second_saved: null,
});

describe('money', () => {
  it('of a flow counts seconds and their cost only where both are known', () => {
    const [a, b] = byFlow([gain('a', 1, null, 5), gain('a', 2, 4, 2), gain('b', 2, null, 1)]);
    expect(a).toMatchObject({ overlaySessions: 20, secondsSaved: 4, cost: 7, usdPerSecond: 0.5 });
    expect(b).toMatchObject({ secondsSaved: null, usdPerSecond: null, failedSessions: 2 });
  });

  it('has no price where nothing is saved', () => {
    expect(byFlow([gain('a', 1, -3, 2)])[0]?.usdPerSecond).toBeNull();
  });

  const one = (relay: string, day: number, cost: number): RelayGain => ({
    relay,
    day,
    sessions: 1,
    bytes: 10,
    seconds_saved: null,
    cost,
  });

  it('of a day is all that it has cost, not what relays carried alone', () => {
    const spent = [
      { day: 1, estimated: 9, machines: 1, traffic: 4, tests: 0.5, test_bytes: 7 },
      { day: 2, estimated: 0, machines: 0, traffic: 0, tests: 0.25, test_bytes: null },
    ];
    const relays = [one('r1', 1, 2), one('r2', 1, 1)];
    const billed = [{ host: 'r1', day: 1, usd: 6 }];
    expect(byDay({ spent, relays, billed })).toMatchObject([
      { key: '1970-01-02', sessions: 2, estimated: 9, cost: 5.5, billed: 6 },
      { key: '1970-01-03', sessions: 0, estimated: 0, cost: 0.25, billed: null },
    ]);
  });

  it('of packet flows stands beside that of streams', () => {
    const call = { id: 'call', counts: { usd: 0.5 } } as Parameters<typeof ofPackets>[0][number];
    expect(ofPackets([call])).toMatchObject([{ flow: 'call', cost: 0.5, overlaySessions: null }]);
  });

  it('of relays is added up by any key', () => {
    const relays = [one('r1', 1, 1), one('r2', 1, 2), one('r1', 2, 4)];
    const bills = [
      { host: 'r1', day: 1, usd: 2 },
      { host: 'r1', day: 2, usd: 3 },
      { host: 'office-1', day: 3, usd: 0 },
    ];
    const costs = (key: (relay: string, day: number) => string) =>
      relaysBy(relays, bills, key).map((sum) => [sum.key, sum.cost, sum.billed]);
    expect(costs((relay) => relay)).toEqual([
      ['r1', 5, 5],
      ['r2', 2, null],
      ['office-1', 0, 0],
    ]);
    expect(costs((_, day) => String(day))).toEqual([
      ['1', 3, 2],
      ['2', 4, 3],
      ['3', 0, 0],
    ]);
  });
});
