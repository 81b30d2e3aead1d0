// A controller that is made up: 200 regions, 10,000 flows, and all that the API tells of them.

import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { extname } from 'node:path';

import { packets } from './packets.mjs';

const REGIONS = 200;
const FLOWS = 10_000;
const DIST = new URL('../dist/', import.meta.url);
const TYPES = {
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
};
// The same as the controller's (crates/controller/src/api/page.rs).
export const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

export const OPERATOR = 'operator-token';
export const READER = 'reader-token';

const KINDS = ['hosts', 'flows', 'plan', 'rollout', 'gain', 'settings', 'audit'];
const CHANGE = `event: change\ndata: ${JSON.stringify({ schema_version: 1, version: 1, kinds: KINDS })}\n\n`;

/** Numbers by chance, the same in each run. */
function random(seed) {
  let state = seed;
  return () => {
    state = (state * 1_664_525 + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Jump-start on these hosts, each third of which cannot, with 100 destinations each. */
function jumpstart(schema_version, settings, hosts) {
  const arms = (speedup) => ({
    jumped_connections: 950,
    control_connections: 50,
    jumped_resent_per_mb: 0.4,
    control_resent_per_mb: 0.3,
    speedup,
  });
  const of = (host, index) => ({
    host: host.id,
    is_covered: true,
    is_acting: index % 3 > 0,
    why_not: index % 3 > 0 ? null : 'its agent is older (tradewind 0.0.9): upgrade it',
    destinations: Array.from({ length: index % 3 > 0 ? 100 : 0 }, (_, number) => ({
      destination: `192.0.2.${number}/32`,
      window_segments: 10 + ((index * 7 + number) % 91),
      samples: number,
      is_in_force: number % 20 > 0,
    })),
    others: 20,
    windows: [10, 40, 80, 100].map((from_segments) => ({ from_segments, destinations: 30 })),
    ...arms(index % 3 > 0 ? { value: 1.4, low: 1.2, high: 1.6 } : null),
  });
  return {
    schema_version,
    days: 7,
    settings,
    hosts: hosts.map(of),
    arms: arms({ value: 1.4, low: 1.3, high: 1.5 }),
    transfers: transfers(),
  };
}

/** Hourly transfers of both arms: with learned windows a quarter shorter, but for the smallest. */
function transfers() {
  const of = (size_bytes, arm) => {
    const p50_ms = size_bytes === 10_000 ? 80 : arm === 'jumped' ? 180 : 240;
    const [p25_ms, p75_ms, p95_ms] = [0.5, 1.5, 3].map((times) => times * p50_ms);
    return { size_bytes, arm, transfers: 1000, p25_ms, p50_ms, p75_ms, p95_ms };
  };
  const sizes = [10_000, 50_000, 100_000];
  return sizes.flatMap((size) => ['jumped', 'control'].map((arm) => of(size, arm)));
}

/** Three tenants: within the budget, beyond it, without one. */
function tenants(schema_version, day, flows) {
  const of = (id, budget_usd_per_day, today, number) => ({
    id,
    budget_usd_per_day,
    alarm_share: 0.8,
    is_stopped: budget_usd_per_day !== null && today >= budget_usd_per_day,
    flows: flows.slice(100 * number, 100 * number + 10).map((flow) => flow.id),
    planned_usd_per_day: 4.5,
    costs: [
      { day: day - 1, usd: 4 },
      { day, usd: today },
    ],
    tokens: number,
  });
  return {
    schema_version,
    days: 7,
    tenants: [of('acme', 6, 1.25, 1), of('globex', 5, 5.01, 2), of('initech', null, 0, 3)],
  };
}

/** The bounds of each fourth host's owner; each eighth has used up its spend. */
function bounds(index) {
  if (index % 4 > 0) return null;
  const is_used_up = index % 8 === 4;
  return {
    rate: '1 Gbit/s',
    spend: { usd_per_day: 5, used_usd: is_used_up ? 5 : 1.25, is_used_up },
  };
}

function answers() {
  const chance = random(7);
  const pick = (list) => list[Math.floor(chance() * list.length)];
  const now = Date.now();
  const day = Math.floor(now / 86_400_000);
  const schema_version = 1;
  const regions = Array.from({ length: REGIONS }, (_, index) => `x:region-${index}`);
  const sites = Array.from({ length: 50 }, (_, index) => `site-${index}`);
  const host = (id, role, index) => ({
    id,
    bounds: bounds(index),
    ...role,
    address: '192.0.2.1',
    identity: 'twid1_made_up',
    state: pick(['well', 'well', 'well', 'away', 'behind']),
    seen_unix_ms: now - 2000,
    document: '1.4',
    applied: '1.4',
    refused: null,
    processes: [
      { name: 'relay', state: 'ready', listen: ['192.0.2.1:7000'], sessions: 12, failure: null },
    ],
    agent_version: '0.1.0',
    bytes_today: 4e9,
    shown: [
      { to: 'x:region-1', rate_mbps: 71, connections: 1, retransmitted: 0.002, unix_ms: now },
    ],
  });
  const hosts = [
    ...regions.map((region, index) =>
      host(`${region}-1`, { role: 'relay', region, relay_type: 'standard' }, index),
    ),
    ...sites.map((site) => host(site, { role: 'gateway', site }, 1)),
  ];
  const away = new Set(hosts.filter((one) => one.state === 'away').map((one) => one.id));
  const flows = Array.from({ length: FLOWS }, (_, index) => {
    const path = chance() < 0.3 ? [`${pick(regions)}-1`, `${pick(regions)}-1`] : [];
    const seconds_direct = 10 + 90 * chance();
    return {
      id: `flow-${String(index).padStart(5, '0')}`,
      from: pick(sites),
      to: '192.0.2.7:443',
      to_site: pick(sites),
      per_day: '200 GB',
      demand: { per_day: '200 GB', basis: 'declared', declared: '200 GB', forecast: null },
      weight: 1,
      listen: '127.0.0.1:15000',
      path,
      unwell: path.filter((id) => away.has(id)),
      seconds: path.length > 0 ? seconds_direct / (1 + 2 * chance()) : seconds_direct,
      seconds_direct,
      usd_per_day: path.length > 0 ? chance() : 0,
      why:
        path.length > 0 ? 'plan 7: faster than direct' : 'plan 7: nothing faster within the budget',
      since_unix_ms: now - 3_600_000 * chance(),
    };
  });
  // A thousand of them are live; the others have no sessions, and so no gain.
  const live = flows.filter((_, index) => index % 10 === 1);
  const gains = live.map((flow) => {
    const value = 1 + 2 * chance();
    return {
      flow: flow.id,
      day,
      overlay_sessions: 40,
      control_sessions: 12,
      other_sessions: 0,
      failed_sessions: 0,
      fallback_sessions: 0,
      overlay_failed_sessions: 0,
      control_failed_sessions: 0,
      bytes: 4e9,
      speedup: flow.path.length > 0 ? { value, low: value * 0.9, high: value * 1.1 } : null,
      overlay_seconds: 1.5,
      control_seconds: 3,
      speedup_predicted: 2,
      speedup_predicted_low: 1.84,
      speedup_predicted_high: 2.3,
      seconds_saved: flow.path.length > 0 ? { value: 30, low: 20, high: 40 } : null,
      cost: chance(),
      usd_per_second_saved: null,
    };
  });
  const legs = regions.flatMap((_, source) =>
    regions
      .map((_, destination) => ({
        source,
        destination,
        rtt_min_ms: Number((5 + 300 * chance()).toFixed(3)),
        rtt_median_ms: 120.5,
        rate_mbps: 84.3,
        retransmitted: 0.001,
        method: pick(['tcp', 'tcp', 'passive', 'imported', 'distance']),
        measured_at_unix_ms: now - Math.floor(3_600_000 * chance()),
      }))
      .filter(({ destination }) => destination !== source),
  );
  const settings = {
    schema_version,
    budget_usd_per_day: 600,
    alarm_share: 0.8,
    mode: 'suggest',
    control_share: 0.02,
    jumpstart: {
      is_on: true,
      hosts: [],
      sites: [],
      control_share: 0.05,
      window_max: 100,
      has_probes: false,
      is_shared: false,
    },
  };
  const planned = flows.map((flow) => ({
    id: flow.id,
    path: flow.path,
    fct_s: flow.seconds,
    fct_direct_s: flow.seconds_direct,
    egress_usd: 0.1,
    move_usd: 0,
  }));
  const plan = (number, of) => ({
    schema_version,
    is_applied: number === 7,
    number,
    made_unix_ms: now - 60_000,
    hosts: Object.fromEntries(hosts.map((one) => [one.id, one.id])),
    usd_per_day: 300,
    machines_usd_per_day: Object.fromEntries(hosts.map((one) => [one.id, 1.5])),
    flows: [],
    rests_on: ['all legs were measured'],
    measurements: [],
    measurements_in_effect: [],
    known_legs: legs.length,
    budget: 600,
    plan: {
      schema_version: 2,
      solver: 'auto',
      relays: regions.map((region) => ({ id: `${region}-1`, region, relay_type: 'standard' })),
      flows: of,
      cost_usd: 300,
      total_fct_s: 1,
      bound_fct_s: 1,
      bound_cost_usd: 0,
    },
  });
  const relayed = ['x:region-1-1', 'x:region-2-1'].map((relay, index) => ({
      day,
      flow: 'flow-00001',
      relay,
      told_sessions: 40,
      told_bytes: 4e9,
      counted_sessions: 40,
      counted_bytes: index === 0 ? 4e9 : 3e9,
      cost: 0.3,
      differs: index === 1,
    }));
  return {
    '/v1/flows': { schema_version, flows },
    '/v1/hosts': { schema_version, hosts },
    '/v1/learned': {
      schema_version,
      proxies: [
        {
          site: 'site-1',
          socks5: '127.0.0.1:1080',
          connect: null,
          destinations: [],
          adopt_above: null,
        },
      ],
      learned: Array.from({ length: 3 }, (_, index) => ({
        id: `site-1:files-${index}.example.com:443`,
        from: 'site-1',
        to: `files-${index}.example.com:443`,
        per_day: `${3 - index} GB`,
        sessions: 40,
        mean_seconds: 1.5,
        concurrent: 2,
        first_unix_ms: now - 3_600_000,
        last_unix_ms: now - 60_000,
      })),
    },
    '/v1/gain': {
      schema_version,
      days: 1,
      control_share: 0.02,
      flows: gains,
      prediction_error: { low: 0.92, high: 1.15, compared: 300 },
      open_sessions: Object.fromEntries(gains.map((one) => [one.flow, 3])),
      relays: regions.map((region) => ({
        relay: `${region}-1`,
        day,
        sessions: 9,
        bytes: 1e9,
        seconds_saved: 3,
        cost: chance(),
      })),
      relayed,
      billed: regions
        .slice(0, 3)
        .map((region, index) => ({ day: day - 1, host: `${region}-1`, usd: 1 + index })),
      spent: [
        { day: day - 1, estimated: 290, machines: 240, traffic: 40, tests: 1.5, test_bytes: null },
        { day, estimated: 120, machines: 100, traffic: 20, tests: 2, test_bytes: 4e9 },
      ],
      spending: {
        day,
        estimated: 300,
        machines: 100,
        traffic: 20,
        tests: 2,
        budget: 600,
        is_alarmed: false,
        is_exhausted: false,
      },
    },
    '/v1/front': front(settings.budget_usd_per_day),
    '/v1/what-if': supposed(flows),
    '/v1/measurements/columns': { schema_version, places: regions, legs },
    '/v1/places': {
      schema_version,
      places: [...regions, ...sites].map((site) => ({
        site,
        label: 'Somewhere',
        latitude: 120 * chance() - 55,
        longitude: 360 * chance() - 180,
        is_guess: site.startsWith('site'),
      })),
    },
    '/v1/packets': packets(schema_version, day, regions),
    '/v1/tenants': tenants(schema_version, day, flows),
    '/v1/jumpstart': jumpstart(schema_version, settings.jumpstart, hosts),
    '/v1/settings': settings,
    '/v1/status': {
      schema_version,
      identity: 'twid1_made_up',
      problems: [],
      hosts_well: 240,
      hosts: 250,
      flows: FLOWS,
      flows_over_relays: 3000,
      settings,
      plan: 7,
      rollout_to: 7,
      usd_per_day: 300,
      step: 'done',
      newest_plan: 8,
    },
    '/v1/plans/7': plan(7, planned),
    '/v1/plans/newest': plan(
      8,
      planned.map((flow) => ({ ...flow, path: flow.path.slice(0, 1) })),
    ),
    '/v1/audit': {
      schema_version,
      entries: Array.from({ length: 1000 }, (_, index) => ({
        number: 1000 - index,
        unix_ms: now - index * 60_000,
        actor: 'controller',
        action:
          index === 1 ? 'alarm: $480 of $600 spent' : `plan ${1000 - index} is in effect`,
      })),
    },
    '/v1/flows/flow-00001': flows[1],
    '/v1/flows/flow-00001/usage': {
      schema_version,
      flow: 'flow-00001',
      hours: Array.from({ length: 744 }, (_, index) => ({
        hour: Math.floor(now / 3_600_000) - 744 + index,
        sessions: 40,
        bytes: Math.floor(4e9 * chance()),
        concurrent: 3,
      })),
    },
    '/v1/flows/flow-00001/gain': {
      schema_version,
      flow: 'flow-00001',
      days: 31,
      control_share: 0.02,
      gain: gains.filter((one) => one.flow === 'flow-00001'),
      prediction_error: null,
      open_sessions: 3,
      relayed,
    },
    '/v1/flows/flow-00001/paths': {
      schema_version,
      flow: 'flow-00001',
      changes: [
        {
          since_unix_ms: now - 7_200_000,
          path: ['x:region-1-1', 'x:region-2-1'],
          why: 'plan 6: faster than direct',
        },
        { since_unix_ms: now - 600_000, path: [], why: 'plan 7: nothing faster' },
      ],
    },
    '/v1/flows/flow-00001/explain': {
      schema_version,
      flow: 'flow-00001',
      is_over_relays: false,
      answer: 'it goes direct: no path over relays is faster',
      plan: 7,
      seconds_direct: 20,
      path: { hosts: [], legs: [], seconds: 20, usd_per_day: 0 },
      others: [
        {
          hosts: ['x:region-1-1'],
          seconds: 30,
          usd_per_day: 3,
          reason: 'slower',
          why: '30.0 s is no less than 20.0 s',
        },
      ],
    },
    '/v1/measurements/x%3Aregion-0/x%3Aregion-1': {
      schema_version,
      from: 'x:region-0',
      to: 'x:region-1',
      measured: Array.from({ length: 2000 }, (_, index) => ({
        unix_ms: now - (2000 - index) * 300_000,
        rtt_min_ms: 80 + 10 * chance(),
        rtt_median_ms: 95 + 10 * chance(),
        rate_mbps: index % 50 === 0 ? 80 + 10 * chance() : null,
        connections: index % 50 === 0 ? 1 : null,
        rtt_spread_ms: 10,
        method: ['tcp', 'passive', 'ping', 'imported'][index % 4],
      })),
    },
  };
}

const worth = (usd_per_day, seconds_saved, relays) => ({
  usd_per_day,
  seconds: 500_000 - seconds_saved,
  seconds_saved,
  relays,
  flows_over_relays: 20 * relays,
});

/** The plans of several budgets. */
function front(budget) {
  const point = (budget_usd_per_day) => ({
    budget_usd_per_day,
    ...worth(
      Math.min(budget_usd_per_day, 700),
      4000 * Math.sqrt(Math.min(budget_usd_per_day, 700)),
      Math.ceil(budget_usd_per_day / 6),
    ),
  });
  return {
    schema_version: 1,
    made_unix_ms: Date.now(),
    budget_usd_per_day: budget,
    present: worth(300, 70_000, 200),
    points: [0, 50, 100, 200, 400, budget, 700, 800].map(point),
  };
}

/** A plan under changes that are supposed. */
function supposed(flows) {
  const moved = flows.slice(0, 1000);
  return {
    schema_version: 1,
    present: worth(300, 70_000, 200),
    plan: worth(290, 60_000, 199),
    usd_more: -10,
    seconds_saved_more: -10_000,
    regions: [{ region: 'x:region-0', present: 1, plan: 0 }],
    moves: 1200,
    flows: moved.map(({ id }) => ({
      flow: id,
      from: ['x:region-0'],
      to: [],
      seconds_before: 10,
      seconds_after: 20,
    })),
  };
}

/** Figures that change while an overlay runs. */
const VARIED = ['bytes', 'sessions', 'seconds', 'cost', 'packets', 'samples', 'planned_usd_per_day'];

/** Returns how figures are written at a turn; undefined: as they are. */
function varied(turn) {
  if (turn === 0) return undefined;
  return (key, value) => {
    const column = key === 'rtt_median_ms' && Array.isArray(value);
    if (column) return value.map(() => 100 + (turn % 100));
    return typeof value === 'number' && VARIED.includes(key) ? value + turn : value;
  };
}

/** Returns the gain of so many days. */
function gainOf(gain, query, turn) {
  const days = Number(query.get('days') ?? 1);
  const one = query.get('flow');
  const wanted = one === null ? gain.flows : gain.flows.filter(({ flow }) => flow === one);
  const ofDay = (_, index) => wanted.map((flow) => ({ ...flow, day: flow.day - days + 1 + index }));
  const rows = Array.from({ length: days }, ofDay).flat();
  return JSON.stringify({ ...gain, days, flows: rows }, varied(turn));
}

/** Returns the columns of legs: of all, or of those from and to one place. */
function columnsOf({ schema_version, places, legs }, query, turn) {
  const place = query.get('place');
  const at = places.indexOf(place);
  const asked = legs.filter((leg) => place === null || [leg.source, leg.destination].includes(at));
  const column = (key) => [key, asked.map((leg) => leg[key])];
  const columns = Object.fromEntries(Object.keys(legs[0]).map(column));
  return JSON.stringify({ schema_version, places, ...columns }, varied(turn));
}

/** Starts it; `events(false)` cuts the streams of events and refuses new ones. */
export async function start() {
  const all = answers();
  const texts = new Map();
  let turn = 0;
  const textOf = (path) => {
    if (!texts.has(path) && all[path]) texts.set(path, JSON.stringify(all[path], varied(turn)));
    return texts.get(path);
  };
  const streams = new Set();
  let hasEvents = true;
  const server = createServer(async (request, response) => {
    const { pathname, searchParams: query } = new URL(request.url, 'http://localhost');
    if (!pathname.startsWith('/v1/')) return file(pathname, response);
    const token = request.headers.authorization?.replace('Bearer ', '');
    const refuse = (status, error) => response.writeHead(status).end(JSON.stringify({ error }));
    if (token !== OPERATOR && token !== READER)
      return refuse(401, 'the token is not this controller’s');
    const isWrite = request.method !== 'GET' && pathname !== '/v1/what-if';
    if (isWrite && token === READER) return refuse(403, 'this token only reads');
    if (pathname === '/v1/events') {
      if (!hasEvents) return response.destroy();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(CHANGE);
      streams.add(response);
      return response.on('close', () => streams.delete(response));
    }
    if (pathname === '/v1/access') {
      return response.end(JSON.stringify({ schema_version: 1, may_write: token === OPERATOR }));
    }
    if (pathname === '/v1/measurements/columns')
      return response.end(columnsOf(all[pathname], query, turn));
    if (pathname === '/v1/gain') return response.end(gainOf(all[pathname], query, turn));
    const text = textOf(pathname);
    return text === undefined ? refuse(404, `no such path: ${pathname}`) : response.end(text);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    base: `http://127.0.0.1:${server.address().port}`,
    events(has) {
      hasEvents = has;
      if (!has) streams.forEach((stream) => stream.destroy());
    },
    /** Gives the newest plan another number. */
    propose(number) {
      const path = '/v1/plans/newest';
      all[path].number = number;
      texts.delete(path);
    },
    /** Has all that is told be otherwise from now on. */
    vary() {
      turn += 1;
      texts.clear();
    },
    /** Tells all listeners of a change of everything. */
    change() {
      streams.forEach((stream) => stream.write(CHANGE));
    },
    stop() {
      server.closeAllConnections();
      server.close();
    },
  };
}

async function file(pathname, response) {
  const name = pathname === '/' ? 'index.html' : pathname.slice(1);
  try {
    const content = await readFile(new URL(name, DIST));
    const type = TYPES[extname(name)] ?? 'application/octet-stream';
    response
      .writeHead(200, { 'content-type': type, 'content-security-policy': POLICY })
      .end(content);
  } catch {
    response.writeHead(404).end();
  }
}
