// Figures as people read them, and the API's texts with units as figures.

const ABSENT = '–';

/** Returns a number with three significant digits. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString('en');
  return value.toFixed(size >= 10 ? 1 : 2);
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return ABSENT;
  if (value >= 3599.5) return `${short(value / 3600)} h`;
  const whole = Math.round(value);
  if (whole >= 60) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return value < 0.9995 ? `${short(value * 1000)} ms` : `${short(value)} s`;
}

export function usd(value: number | null | undefined): string {
  if (value === null || value === undefined) return ABSENT;
  const size = Math.abs(value);
  const digits = size === 0 || size >= 0.1 ? 2 : size >= 0.001 ? 4 : 6;
  return `$${value.toFixed(digits)}`;
}

/** Returns what is paid more, with its sign, or less. */
export function moreUsd(value: number | null | undefined): string {
  if (value === null || value === undefined) return ABSENT;
  return value < 0 ? `−${usd(-value)}` : `+${usd(value)}`;
}

export function times(value: number | null | undefined): string {
  return value === null || value === undefined ? ABSENT : `${value.toFixed(2)}×`;
}

export function ms(value: number | null | undefined): string {
  return value === null || value === undefined ? ABSENT : `${short(value)} ms`;
}

export function mbps(value: number | null | undefined): string {
  if (value === null || value === undefined) return ABSENT;
  if (value > 0 && value < 0.1) return `${short(value * 1000)} kbit/s`;
  return value >= 1000 ? `${short(value / 1000)} Gbit/s` : `${short(value)} Mbit/s`;
}

/** Returns the mean rate of so many bytes in so many seconds, in Mbit/s. */
export function meanMbps(bytes: number, seconds: number): number | null {
  return seconds > 0 ? (8e-6 * bytes) / seconds : null;
}

export function bytes(value: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let [size, unit] = [value, 0];
  while (size >= 1000 && unit < units.length - 1) [size, unit] = [size / 1000, unit + 1];
  return `${unit === 0 ? size : short(size)} ${units[unit]}`;
}

export function percent(value: number | null | undefined): string {
  if (value === null || value === undefined) return ABSENT;
  const share = value * 100;
  return `${share !== 0 && share < 1 ? share.toFixed(2) : short(share)} %`;
}

/** Returns a span in the largest unit that it fills: `4 min`. */
export function span(milliseconds: number): string {
  const s = Math.max(0, Math.round(milliseconds / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86_400)} d`;
}

/** Returns how long ago a time was. */
export function ago(unixMs: number | null | undefined, now: number): string {
  return unixMs === null || unixMs === undefined ? ABSENT : `${span(now - unixMs)} ago`;
}

const CLOCK = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });
const WHOLE = new Intl.DateTimeFormat('en-GB', {
  day: '2-digit',
  month: 'short',
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
});

const DATE = new Intl.DateTimeFormat('en-GB', { day: '2-digit', month: 'short' });

export const date = (unixMs: number): string => DATE.format(unixMs);
export const clock = (unixMs: number): string => CLOCK.format(unixMs);
export const moment = (unixMs: number): string => WHOLE.format(unixMs);

/** Returns a day, given in days since the Unix epoch: `2026-11-27`. */
export function day(number: number): string {
  return new Date(number * 86_400_000).toISOString().slice(0, 10);
}

const UNITS: Record<string, number> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3,
  ms: 1,
  s: 1e3,
  min: 6e4,
  h: 3.6e6,
  'bit/s': 1e-6,
  'kbit/s': 1e-3,
  'Mbit/s': 1,
  'Gbit/s': 1e3,
  'Tbit/s': 1e6,
  B: 1,
  kB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  PB: 1e15,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
};

/** Reads a text with a unit: spans in milliseconds, rates in Mbit/s, sizes in bytes. */
export function quantity(text: string | null | undefined): number | null {
  // All that the API writes has a space; the rest is for what people write.
  const at = text?.indexOf(' ') ?? -1;
  if (text && at > 0) {
    const value = Number(text.slice(0, at)) * (UNITS[text.slice(at + 1)] ?? NaN);
    if (Number.isFinite(value)) return value;
  }
  const match = /^([0-9.eE+-]+) ?(\S+)$/.exec(text?.trim() ?? '');
  if (!match) return null;
  const factor = UNITS[match[2] ?? ''];
  const value = Number(match[1]) * (factor ?? NaN);
  return Number.isFinite(value) ? value : null;
}

/** Reads a share, which the API writes as a number. */
export function share(value: number | string | null | undefined): number | null {
  if (value === null || value === undefined) return null;
  const number = typeof value === 'string' ? Number(value.replace('%', '')) / 100 : value;
  return Number.isFinite(number) ? number : null;
}
