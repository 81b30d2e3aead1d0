// The rows of the list of flows: each flow with its newest gain.

import type { FlowGain, FlowView } from './types';

export interface FlowRow {
  flow: FlowView;
  gain: FlowGain | undefined;
  isRelayed: boolean;
  /**
   * How many times longer the direct path is predicted to take: for the sizes of today's sessions,
   * or for a day's volume before there are any.
   */
  predicted: number | null;
}

/** Returns the interval of a predicted speedup; empty without one. */
export function intervalOf(gain: FlowGain | undefined): string {
  const { speedup_predicted_low: low, speedup_predicted_high: high } = gain ?? {};
  return typeof low === 'number' && typeof high === 'number'
    ? `${low.toFixed(1)}–${high.toFixed(1)}`
    : '';
}

export type Paths = 'all' | 'relayed' | 'direct';

export function rowsOf(flows: readonly FlowView[], gains: readonly FlowGain[]): FlowRow[] {
  // Gains come oldest first: the newest of each flow stays.
  const newest = new Map(gains.map((gain) => [gain.flow, gain]));
  return flows.map((flow) => {
    const gain = newest.get(flow.id);
    const ofDay = flow.seconds && flow.seconds_direct ? flow.seconds_direct / flow.seconds : null;
    return {
      flow,
      gain,
      isRelayed: flow.path.length > 0,
      predicted: gain?.speedup_predicted ?? ofDay,
    };
  });
}

/** Returns the rows whose text has each word of the filter, and whose path is of this kind. */
export function filtered(rows: readonly FlowRow[], words: string, paths: Paths): FlowRow[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const has = ({ flow }: FlowRow) => {
    const words = [flow.id, flow.from, flow.to_site, flow.to, ...flow.path];
    const text = words.join(' ').toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
  return rows.filter(
    (row) =>
      (paths === 'all' || row.isRelayed === (paths === 'relayed')) &&
      (wanted.length === 0 || has(row)),
  );
}
