// States in words and tones, and reasons in words.

import { usd } from './format';
import type { Bounds, HostState, HostView, Method } from './types';

export const HOST_STATES: Record<HostState, ['good' | 'warn' | 'bad' | 'calm', string]> = {
  well: ['good', 'Well'],
  awaited: ['calm', 'Awaited'],
  behind: ['warn', 'Changing'],
  refuses: ['bad', 'Refuses'],
  failing: ['bad', 'Failing'],
  away: ['bad', 'Away'],
  drained: ['calm', 'Drained'],
  revoked: ['calm', 'Revoked'],
};

export const METHODS: Record<Method, string> = {
  tcp: 'Measured',
  passive: 'Seen in traffic',
  ping: 'Ping',
  imported: 'Imported',
  distance: 'Modelled',
};

/** Returns the site or region of a host. */
export function placeOf(host: HostView): string {
  return host.role === 'relay' ? host.region : host.site;
}

/** Returns what a host's owner bounds, and what is used of it, in a few words. */
export function boundsOf({ rate, spend }: Bounds): string {
  const used = spend?.is_used_up
    ? 'all'
    : typeof spend?.used_usd === 'number'
      ? usd(spend.used_usd)
      : null;
  const money = spend && `${used === null ? '' : `${used} of `}${usd(spend.usd_per_day)} a day`;
  return [rate, money].filter(Boolean).join('; ');
}

/** Returns the open sessions of a host's processes; `null` if none tells. */
export function sessionsOf(host: HostView): number | null {
  const told = host.processes.map((process) => process.sessions).filter((n) => n !== null);
  return told.length === 0 ? null : told.reduce((sum, n) => sum + n, 0);
}
