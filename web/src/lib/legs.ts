// The legs of the API's columns of measurements.

import type { MeasurementColumns, Method } from './types';

/** The newest measurement of a leg, as the columns have it. */
export interface Leg {
  source: string;
  destination: string;
  rtt_min_ms: number;
  rtt_median_ms: number;
  rate_mbps: number | null;
  retransmitted: number | null;
  method: Method;
  measured_at_unix_ms: number | null;
}

/** Returns the legs, in the order of the columns. */
export function legsOf(columns: MeasurementColumns): Leg[] {
  const { places, method } = columns;
  return method.map((of, at) => ({
    source: places[columns.source[at] as number] as string,
    destination: places[columns.destination[at] as number] as string,
    rtt_min_ms: columns.rtt_min_ms[at] as number,
    rtt_median_ms: columns.rtt_median_ms[at] as number,
    rate_mbps: columns.rate_mbps[at] as number | null,
    retransmitted: columns.retransmitted[at] as number | null,
    method: of,
    measured_at_unix_ms: columns.measured_at_unix_ms[at] as number | null,
  }));
}
