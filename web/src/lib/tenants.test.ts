import { describe, expect, it } from 'vitest';

import { spent, spentToday, stateOf } from './tenants';
import type { TenantView } from './types';

describe('tenants', () => {
  const today = Math.floor(Date.now() / 86_400_000);
  const tenant = (more: Partial<TenantView>): TenantView => ({
    id: 'acme',
    budget_usd_per_day: 6,
    alarm_share: 0.8,
    is_stopped: false,
    flows: [],
    planned_usd_per_day: 0,
    costs: [
      { day: today - 1, usd: 6 },
      { day: today, usd: 1 },
    ],
    tokens: 0,
    ...more,
  });

  it('are within, alarmed, stopped or without a bound', () => {
    const states = [
      tenant({}),
      tenant({ costs: [{ day: today, usd: 5 }] }),
      tenant({ is_stopped: true }),
      tenant({ is_stopped: true, budget_usd_per_day: 0 }),
      tenant({ budget_usd_per_day: null }),
    ].map((one) => stateOf(one)[1]);
    expect(states).toEqual(['Within', 'Alarm', 'Spent', 'No budget', 'No bound']);
    expect([spent(tenant({})), spentToday(tenant({})), spentToday(tenant({ costs: [] }))]).toEqual([
      7, 1, 0,
    ]);
  });
});
