import { geoPath } from 'd3-geo';
import { describe, expect, it } from 'vitest';

import { arcsOf, chosen, projectionOf, type Arc } from './map';
import type { FlowView, HostView, SiteLocation } from './types';

const place = (site: string, latitude: number, longitude: number): SiteLocation => ({
  site,
  label: site,
  latitude,
  longitude,
  is_guess: false,
});
const places = [
  place('tokyo', 35.7, 139.7),
  place('gcp:us-west1', 45.6, -121.2),
  place('lima', -12, -77),
];
const hosts = [{ id: 'gcp:us-west1-1', role: 'relay', region: 'gcp:us-west1' }] as HostView[];
const flow = (id: string, from: string, path: string[], to_site: string) =>
  ({ id, from, path, to_site }) as FlowView;

describe('the map', () => {
  it('draws each leg once', () => {
    const flows = [
      flow('a', 'lima', [], 'tokyo'),
      flow('b', 'lima', ['gcp:us-west1-1'], 'tokyo'),
      flow('c', 'lima', ['gcp:us-west1-1'], 'office'),
    ];
    const { arcs, unplaced } = arcsOf(flows, hosts, places, new Set(['c']));
    const told = arcs.map((arc) => [arc.from.site, arc.to.site, arc.isRelayed, arc.flows, arc.live]);
    expect(told).toEqual([
      ['lima', 'tokyo', false, 1, 0],
      ['lima', 'gcp:us-west1', true, 2, 1],
      ['gcp:us-west1', 'tokyo', true, 1, 0],
    ]);
    expect(unplaced).toBe(1);
  });

  it('draws lines of both kinds, those with sessions first', () => {
    const arc = (isRelayed: boolean, flows: number, live: number) =>
      ({ isRelayed, flows, live }) as Arc;
    const relayed = [arc(true, 9, 0), arc(true, 1, 1), arc(true, 8, 0)];
    const direct = [arc(false, 7, 0), arc(false, 2, 2), arc(false, 6, 0)];
    const drawn = (arcs: Arc[], most: number) => {
      const kinds = chosen(arcs, most);
      return [kinds.relayed, kinds.direct].map((kind) => kind.drawn.map((one) => one.flows));
    };
    expect(drawn([...relayed, ...direct], 4)).toEqual([
      [1, 9],
      [2, 7],
    ]);
    expect(drawn([...relayed, ...direct.slice(0, 1)], 4)).toEqual([[1, 9, 8], [7]]);
    expect(chosen([...relayed, ...direct], 4).direct.all).toBe(3);
  });

  it('cuts a great circle where it leaves the map', () => {
    const path = geoPath(projectionOf(960, 467));
    const line = (from: number[], to: number[]) =>
      path({ type: 'LineString', coordinates: [from, to] }) ?? '';
    const pieces = (text: string) => text.match(/M/g)?.length ?? 0;
    expect(pieces(line([139.7, 35.7], [-121.2, 45.6]))).toBe(2);
    expect(pieces(line([-0.1, 51.5], [-74, 40.7]))).toBe(1);
    // Nowhere does it jump across the map.
    for (const piece of line([139.7, 35.7], [-121.2, 45.6]).split('M').filter(Boolean)) {
      const xs = piece.split('L').map((point) => Number(point.split(',')[0]));
      const jumps = xs.slice(1).map((x, index) => Math.abs(x - (xs[index] ?? x)));
      expect(Math.max(...jumps)).toBeLessThan(200);
    }
  });
});
