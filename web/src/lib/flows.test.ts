import { describe, expect, it } from 'vitest';

import { filtered, intervalOf, rowsOf } from './flows';
import { clicked, sorted } from './sort';
import type { FlowGain, FlowView } from './types';

const flow = (id: string, path: string[], seconds: number | null = null): FlowView => ({
  id,
  from: 'sao-paulo',
  to: '10.0.0.4:80',
  to_site: 'tokyo',
  listen: '127.0.0.1:15000',
  per_day: '200 MB',
  demand: { per_day: '200 MB', basis: 'declared', declared: '200 MB', forecast: null },
  weight: 1,
  path,
  unwell: [],
  seconds,
  seconds_direct: 40,
  usd_per_day: null,
  why: '',
  since_unix_ms: null,
  tenant: null,
  is_stopped: false,
});

const gain = (flow: string, day: number): FlowGain => ({
  flow,
  day,
  overlay_sessions: 0,
  control_sessions: 0,
  other_sessions: 0,
  failed_sessions: 0,
  fallback_sessions: 0,
  overlay_failed_sessions: 0,
  control_failed_sessions: 0,
  bytes: 0,
  speedup: null,
  overlay_seconds: null,
  control_seconds: null,
  speedup_predicted: null,
  speedup_predicted_low: null,
  speedup_predicted_high: null,
  seconds_saved: null,
  cost: 0,
  usd_per_second_saved: null,
});

describe('rows of flows', () => {
  const rows = rowsOf(
    [flow('a', []), flow('b', ['gcp:us-east4-1'], 10)],
    [gain('b', 1), gain('b', 2)],
  );

  it('have the newest gain and the predicted speedup', () => {
    expect(rows.map((row) => [row.isRelayed, row.predicted, row.gain?.day])).toEqual([
      [false, null, undefined],
      [true, 4, 2],
    ]);
  });

  it('have predictions with their intervals', () => {
    const known = { speedup_predicted_low: 1.84, speedup_predicted_high: 2.5 };
    expect(intervalOf({ ...gain('b', 1), ...known })).toBe('1.8–2.5');
    expect([intervalOf(gain('b', 1)), intervalOf(undefined)]).toEqual(['', '']);
  });

  it('are filtered by words and paths', () => {
    const ids = (words: string, paths: 'all' | 'relayed' | 'direct') =>
      filtered(rows, words, paths).map((row) => row.flow.id);
    expect(ids('', 'all')).toEqual(['a', 'b']);
    expect(ids('', 'direct')).toEqual(['a']);
    expect(ids('TOKYO us-east4', 'all')).toEqual(['b']);
    expect(ids('us-east4', 'direct')).toEqual([]);
  });

  it('are sorted with those without a value last', () => {
    const by = (isDescending: boolean) =>
      sorted(rows, (row) => row.predicted, { key: 'x', isDescending }).map((row) => row.flow.id);
    expect([by(false), by(true)]).toEqual([
      ['b', 'a'],
      ['b', 'a'],
    ]);
    const names = sorted(rows, (row) => row.flow.id, { key: 'x', isDescending: true });
    expect(names.map((row) => row.flow.id)).toEqual(['b', 'a']);
    expect(clicked({ key: 'x', isDescending: false }, 'x').isDescending).toBe(true);
    expect(clicked({ key: 'x', isDescending: true }, 'y')).toEqual({
      key: 'y',
      isDescending: false,
    });
  });
});
