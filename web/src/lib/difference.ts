// What a plan changes, as a list of actions.

import type { PlanView } from './types';

export type Action =
  | {
      kind: 'start' | 'stop';
      host: string;
      region: string;
      /** Dollars a day that its machine costs, or that are saved, where that is known. */
      usd: number | null;
    }
  | {
      kind: 'move';
      flow: string;
      from: string[];
      to: string[];
      secondsBefore: number | null;
      secondsAfter: number | null;
      /** Dollars a day that its traffic costs more; below zero: less. */
      usd: number;
    };

export interface Difference {
  actions: Action[];
  usdBefore: number;
  usdAfter: number;
  /** Seconds that all flows together take less in a day's volume, of those whose time is known. */
  secondsSaved: number;
}

interface Path {
  hosts: string[];
  seconds: number;
  direct: number | null;
  usd: number;
}

function pathsOf(plan: PlanView | undefined): Map<string, Path> {
  const paths = plan?.plan.flows.map((flow): [string, Path] => {
    const hosts = flow.path.map((relay) => plan.hosts[relay] ?? relay);
    const { fct_s: seconds, fct_direct_s: direct, egress_usd: usd } = flow;
    return [flow.id, { hosts, seconds, direct, usd }];
  });
  return new Map(paths);
}

function relaysOf(plan: PlanView | undefined): Map<string, string> {
  const relays = plan?.plan.relays ?? [];
  return new Map(relays.map((relay) => [plan?.hosts[relay.id] ?? relay.id, relay.region]));
}

/** Returns what `next` does otherwise than `now`; without a plan all flows go direct. */
export function difference(now: PlanView | undefined, next: PlanView): Difference {
  const [relaysNow, relaysNext] = [relaysOf(now), relaysOf(next)];
  const actions: Action[] = [];
  for (const [host, region] of relaysNext) {
    if (!relaysNow.has(host)) {
      actions.push({ kind: 'start', host, region, usd: next.machines_usd_per_day[host] ?? null });
    }
  }
  const [pathsNow, pathsNext] = [pathsOf(now), pathsOf(next)];
  let secondsSaved = 0;
  for (const [flow, path] of pathsNext) {
    const before = pathsNow.get(flow);
    const from = before?.hosts ?? [];
    const secondsBefore = before?.seconds ?? path.direct;
    if (secondsBefore !== null) secondsSaved += secondsBefore - path.seconds;
    if (from.join() !== path.hosts.join()) {
      const secondsAfter = path.seconds;
      const usd = path.usd - (before?.usd ?? 0);
      actions.push({ kind: 'move', flow, from, to: path.hosts, secondsBefore, secondsAfter, usd });
    }
  }
  // A flow that the next plan does not have goes direct.
  for (const [flow, path] of pathsNow) {
    if (!pathsNext.has(flow) && path.hosts.length > 0) {
      const [secondsBefore, secondsAfter] = [path.seconds, path.direct];
      if (secondsAfter !== null) secondsSaved += secondsBefore - secondsAfter;
      const [from, usd] = [path.hosts, -path.usd];
      actions.push({ kind: 'move', flow, from, to: [], secondsBefore, secondsAfter, usd });
    }
  }
  for (const [host, region] of relaysNow) {
    if (!relaysNext.has(host)) {
      const price = now?.machines_usd_per_day[host];
      actions.push({ kind: 'stop', host, region, usd: price === undefined ? null : -price });
    }
  }
  return { actions, usdBefore: now?.usd_per_day ?? 0, usdAfter: next.usd_per_day, secondsSaved };
}
