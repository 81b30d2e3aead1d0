// Jump-start as the page shows it: windows of all hosts in one list, and their histogram.

import type {
  ArmsView,
  HostJumpstart,
  JumpstartSettings,
  TransferQuantiles,
  WindowCount,
} from './types';

export interface WindowRow {
  host: string;
  destination: string;
  window: number;
  samples: number;
  isInForce: boolean;
}

/** Returns the windows of all hosts. */
export function windowsOf(hosts: readonly HostJumpstart[]): WindowRow[] {
  return hosts.flatMap((host) =>
    host.destinations.map((known) => ({
      host: host.host,
      destination: known.destination,
      window: known.window_segments,
      samples: known.samples,
      isInForce: known.is_in_force,
    })),
  );
}

/** Returns the histogram of the windows of all hosts. */
export function histogram(hosts: readonly HostJumpstart[]): WindowCount[] {
  const sums = new Map<number, number>();
  for (const { from_segments, destinations } of hosts.flatMap((host) => host.windows)) {
    sums.set(from_segments, (sums.get(from_segments) ?? 0) + destinations);
  }
  return [...sums]
    .sort(([a], [b]) => a - b)
    .map(([from_segments, destinations]) => ({ from_segments, destinations }));
}

export interface TransferRow {
  bytes: number;
  jumped: TransferQuantiles | undefined;
  control: TransferQuantiles | undefined;
  /** Share by which the median is shorter with learned windows; `null` without both arms. */
  shorter: number | null;
}

/** Returns the hourly transfers of each size, with both arms beside each other. */
export function transfersBySize(all: readonly TransferQuantiles[]): TransferRow[] {
  const sizes = [...new Set(all.map((one) => one.size_bytes))].sort((a, b) => a - b);
  return sizes.map((bytes) => {
    const of = (arm: TransferQuantiles['arm']) =>
      all.find((one) => one.size_bytes === bytes && one.arm === arm);
    const [jumped, control] = [of('jumped'), of('control')];
    const shorter = jumped && control ? 1 - jumped.p50_ms / control.p50_ms : null;
    return { bytes, jumped, control, shorter };
  });
}

/** Returns the settings in a sentence. */
export function sentence(settings: JumpstartSettings): string {
  if (!settings.is_on) return 'Off: all hosts start connections by default.';
  const names = [...settings.hosts, ...settings.sites];
  const of = names.length === 0 ? 'all hosts' : names.join(', ');
  const shared = settings.is_shared ? ', shared within sites' : '';
  return `On for ${of}: windows up to ${settings.window_max} segments${shared}.`;
}

/** Returns how many times faster connections with learned windows are, with the interval. */
export function faster({ speedup }: ArmsView): string {
  if (speedup === null) return 'too few';
  const of = (value: number) => value.toFixed(2);
  return `${of(speedup.value)}× (${of(speedup.low)} to ${of(speedup.high)})`;
}
