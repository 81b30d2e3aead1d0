import { describe, expect, it } from 'vitest';

import { difference } from './difference';
import type { PlanView } from './types';

/** Returns a plan whose relays are named after their hosts without the number. */
function plan(usd: number, flows: Record<string, [string[], number]>): PlanView {
  const relays = [...new Set(Object.values(flows).flatMap(([path]) => path))];
  return {
    usd_per_day: usd,
    hosts: Object.fromEntries(relays.map((relay) => [relay, `${relay}-host`])),
    machines_usd_per_day: Object.fromEntries(relays.map((relay) => [`${relay}-host`, 1.5])),
    plan: {
      relays: relays.map((id) => ({ id, region: `x:${id}`, relay_type: 'standard' })),
      flows: Object.entries(flows).map(([id, [path, fct_s]]) => ({
        id,
        path,
        fct_s,
        fct_direct_s: 40,
        egress_usd: path.length * 2,
        move_usd: 0,
      })),
    },
  } as unknown as PlanView;
}

describe('the difference of plans', () => {
  it('from nothing starts relays, then moves flows', () => {
    const next = plan(3, { a: [['r1', 'r2'], 10], b: [[], 40] });
    const { actions, usdBefore, usdAfter, secondsSaved } = difference(undefined, next);
    expect(actions.map((action) => action.kind)).toEqual(['start', 'start', 'move']);
    expect(actions[2]).toMatchObject({ from: [], to: ['r1-host', 'r2-host'], secondsBefore: 40 });
    expect(actions.map((action) => action.usd)).toEqual([1.5, 1.5, 4]);
    expect([usdBefore, usdAfter, secondsSaved]).toEqual([0, 3, 30]);
  });

  it('between plans stops what is needed no more', () => {
    const now = plan(3, { a: [['r1'], 10], gone: [['r1'], 10] });
    const { actions, secondsSaved } = difference(now, plan(2, { a: [['r2'], 8] }));
    expect(actions.map((action) => action.kind)).toEqual(['start', 'move', 'move', 'stop']);
    expect(actions[2]).toMatchObject({ flow: 'gone', to: [], secondsAfter: 40 });
    expect(actions[3]).toEqual({ kind: 'stop', host: 'r1-host', region: 'x:r1', usd: -1.5 });
    expect(actions.map((action) => action.usd)).toEqual([1.5, 0, -2, -1.5]);
    // A day of `gone` takes 30 s longer directly.
    expect(secondsSaved).toBe(-28);
  });

  it('of equal plans is empty', () => {
    const same = plan(3, { a: [['r1'], 10] });
    expect(difference(same, same).actions).toEqual([]);
  });
});
