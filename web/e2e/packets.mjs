// Packet flows that are made up.

/** Packet flows; the first goes over the Internet alone. */
export function packets(schema_version, day, regions) {
  const counts = (times) => ({
    packets: 5_000_000 * times,
    bytes: 1e9 * times,
    copies: 5_000_000 * times,
    expected: 5_000_000 * times,
    in_time: 4_965_000 * times,
    late: 10_000 * times,
    lost: 25_000 * times,
    lost_by_internet: 75_000 * times,
    recovered_cache: 40_000 * times,
    recovered_in_stream: 8000 * times,
    recovered_cross_stream: 2000 * times,
    relay_bytes: 2e9 * times,
    usd: 0.2 * times,
  });
  // Without relays packets are not numbered, and the receiver tells of none.
  const unnumbered = (times) => {
    const { packets, bytes } = counts(times);
    return { ...counts(0), packets, bytes };
  };
  const planned = (id, path) => ({
    id,
    path,
    service: 'caching',
    budget_s: 0.15,
    internet_loss: 0.015,
    delivery_s: 0.12,
    cost_usd: 0.2,
    costs: {},
    services: [
      { service: 'direct', regions: [], delivery_s: 0.08, cost_usd: 0, verdict: 'lossy' },
      { service: 'caching', regions: path, delivery_s: 0.12, cost_usd: 0.2, verdict: 'selected' },
      { service: 'forwarding', regions: path, delivery_s: 0.09, cost_usd: 2, verdict: 'dearer' },
    ],
  });
  const of = (id, path) => ({
    id,
    from: 'site-1',
    to: '192.0.2.7:5004',
    to_site: 'site-2',
    packets_per_second: 50,
    packet: '200 B',
    budget: '150 ms',
    max_loss: 0.001,
    listen: '127.0.0.1:16000',
    service: 'auto',
    planned: path.length === 0 ? null : planned(id, path),
    path,
    why: path.length === 0 ? 'the Internet alone is good enough' : 'the cheapest service in time',
    service_now: path.length === 0 ? 'internet' : 'caching',
    counts: path.length === 0 ? unnumbered(2) : counts(2),
    recovered: path.length === 0 ? 0 : 100_000,
    // Two services on the same day.
    by_day: ['internet', 'caching'].map((service) => ({
      flow: id,
      day,
      service,
      ...(path.length === 0 ? unnumbered(1) : counts(1)),
    })),
  });
  const paths = [[], [`${regions[1]}-1`], [`${regions[2]}-1`]];
  return { schema_version, days: 7, flows: paths.map((path, index) => of(`call-${index}`, path)) };
}
