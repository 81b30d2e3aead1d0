// What the map draws: flows as lines over the places of their paths, the most frequent first.

import { placeOf } from './states';
import type { FlowView, HostView, SiteLocation } from './types';

export interface Arc {
  from: SiteLocation;
  to: SiteLocation;
  isRelayed: boolean;
  /** The number of flows that have it. */
  flows: number;
}

/** Returns the legs of all flows' paths whose ends are known, and how many flows lack a place. */
export function arcsOf(
  flows: readonly FlowView[],
  hosts: readonly HostView[],
  places: readonly SiteLocation[],
): { arcs: Arc[]; unplaced: number } {
  const siteOfHost = new Map(hosts.map((host) => [host.id, placeOf(host)]));
  const placeOfSite = new Map(places.map((place) => [place.site, place]));
  const arcs = new Map<string, Arc>();
  let unplaced = 0;
  for (const flow of flows) {
    const sites = [flow.from, ...flow.path.map((id) => siteOfHost.get(id) ?? id), flow.to_site];
    const stops = sites.map((site) => placeOfSite.get(site));
    if (stops.includes(undefined)) unplaced += 1;
    for (let index = 0; index + 1 < stops.length; index += 1) {
      const [from, to] = [stops[index], stops[index + 1]];
      if (!from || !to || from.site === to.site) continue;
      const isRelayed = flow.path.length > 0;
      const key = `${from.site} ${to.site} ${isRelayed}`;
      const arc = arcs.get(key) ?? { from, to, isRelayed, flows: 0 };
      arc.flows += 1;
      arcs.set(key, arc);
    }
  }
  const most = (a: Arc, b: Arc) => Number(b.isRelayed) - Number(a.isRelayed) || b.flows - a.flows;
  return { arcs: [...arcs.values()].sort(most), unplaced };
}
