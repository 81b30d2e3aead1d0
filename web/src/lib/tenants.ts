// Tenants as the page shows them: what each has spent, and the state of its budget.

import { share } from './format';
import type { TenantView } from './types';

/** Returns what a tenant's flows have cost today. */
export function spentToday({ costs }: TenantView, now = Date.now()): number {
  const today = Math.floor(now / 86_400_000);
  return costs.find((cost) => cost.day === today)?.usd ?? 0;
}

/** Returns what they have cost on all days that are told of. */
export function spent({ costs }: TenantView): number {
  return costs.reduce((sum, cost) => sum + cost.usd, 0);
}

/** Returns the state of a tenant's budget, with its tone. */
export function stateOf(tenant: TenantView): ['good' | 'warn' | 'bad' | 'calm', string] {
  const budget = tenant.budget_usd_per_day;
  if (tenant.is_stopped) return budget === 0 ? ['calm', 'No budget'] : ['bad', 'Spent'];
  if (budget === null) return ['calm', 'No bound'];
  const alarm = share(tenant.alarm_share);
  const isAlarmed = alarm !== null && spentToday(tenant) >= alarm * budget;
  return isAlarmed ? ['warn', 'Alarm'] : ['good', 'Within'];
}
