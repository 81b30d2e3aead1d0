// What the map draws: flows as lines over the places of their paths, those with open sessions first.

import { geoEqualEarth, type GeoProjection } from 'd3-geo';

import { placeOf } from './states';
import type { FlowView, HostView, SiteLocation } from './types';

export interface Arc {
  from: SiteLocation;
  to: SiteLocation;
  isRelayed: boolean;
  /** The number of flows that have it, and of those with open sessions. */
  flows: number;
  live: number;
}

/** Returns the projection of a map of so many pixels. */
export function projectionOf(width: number, height: number): GeoProjection {
  return geoEqualEarth().fitSize([width, height], { type: 'Sphere' });
}

/**
 * Returns the legs of all flows' paths whose ends are known, and how many flows lack a place.
 * `live` has the flows with open sessions.
 */
export function arcsOf(
  flows: readonly FlowView[],
  hosts: readonly HostView[],
  places: readonly SiteLocation[],
  live: ReadonlySet<string>,
): { arcs: Arc[]; unplaced: number } {
  const placeOfSite = new Map(places.map((place, index) => [place.site, index]));
  const placeOfHost = new Map(hosts.map((host) => [host.id, placeOfSite.get(placeOf(host))]));
  // By both places in one number: there may be tens of thousands of legs.
  const arcs = new Map<number, Arc>();
  let unplaced = 0;
  for (const flow of flows) {
    const isRelayed = flow.path.length > 0;
    const isLive = live.has(flow.id);
    let before = placeOfSite.get(flow.from);
    let isPlaced = before !== undefined;
    for (let index = 0; index <= flow.path.length; index += 1) {
      const host = flow.path[index];
      const at =
        host === undefined
          ? placeOfSite.get(flow.to_site)
          : (placeOfHost.get(host) ?? placeOfSite.get(host));
      if (at === undefined) isPlaced = false;
      if (at !== undefined && before !== undefined && at !== before) {
        const key = 2 * (before * places.length + at) + Number(isRelayed);
        let arc = arcs.get(key);
        if (arc === undefined) {
          const [from, to] = [places[before] as SiteLocation, places[at] as SiteLocation];
          arc = { from, to, isRelayed, flows: 0, live: 0 };
          arcs.set(key, arc);
        }
        arc.flows += 1;
        if (isLive) arc.live += 1;
      }
      before = at;
    }
    if (!isPlaced) unplaced += 1;
  }
  return { arcs: [...arcs.values()], unplaced };
}

/** The lines of a kind: those that are drawn, and how many there are. */
export interface Kind {
  drawn: Arc[];
  all: number;
}

/**
 * Returns the lines over relays and the direct ones that are drawn, at most so many in all: each
 * kind has half, and what the other leaves; with sessions first, then by flows.
 */
export function chosen(arcs: readonly Arc[], most: number): { relayed: Kind; direct: Kind } {
  const of = (isRelayed: boolean) => arcs.filter((arc) => arc.isRelayed === isRelayed);
  const [relayed, direct] = [of(true), of(false)];
  const half = Math.floor(most / 2);
  const kind = (own: Arc[], other: Arc[]): Kind => {
    own.sort((a, b) => b.live - a.live || b.flows - a.flows);
    return { drawn: own.slice(0, Math.max(half, most - other.length)), all: own.length };
  };
  return { relayed: kind(relayed, direct), direct: kind(direct, relayed) };
}
