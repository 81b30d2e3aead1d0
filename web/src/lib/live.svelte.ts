// What the API tells, kept up to date: its events say what has changed, and it is read again.

import { ApiError, get, send, told } from './api';
import { EventReader, pauseAfter } from './events';
import { session } from './session.svelte';
import type { Change, Kind } from './types';

/** Longest silence of the stream, which sends something each 5 s. */
const MAX_SILENCE = 15_000;
/** Least time between two reads of one thing. */
const MIN_PAUSE = 200;
/** Time after which a read that failed is tried again. */
const PAUSE_AFTER_PROBLEM = 5000;

class Live {
  /** Time since when nothing is known to be new; `null` while the stream is open. */
  staleSince = $state<number | null>(null);
  /** True once the stream has been open. */
  hasBegun = $state(false);
  /** Time of the last that the stream sent. */
  private heard = 0;
  /** The number of changes of each kind that were told. */
  private changes = $state<Partial<Record<Kind, number>>>({});

  /** Returns the number of changes of these kinds; an effect that asks runs again at the next. */
  of(kinds: readonly Kind[]): number {
    return kinds.reduce((sum, kind) => sum + (this.changes[kind] ?? 0), 0);
  }

  /** Listens until the session ends or `stop` is aborted; connects again whenever it breaks. */
  async listen(stop: AbortSignal): Promise<void> {
    for (let failures = 0; !stop.aborted; failures += 1) {
      try {
        await this.once(stop, () => (failures = 0));
      } catch {
        // Told below: the stream is closed, whatever the reason.
      }
      if (stop.aborted || session.token === null) return;
      this.staleSince ??= this.heard || Date.now();
      await new Promise((resolve) => setTimeout(resolve, pauseAfter(failures)));
    }
  }

  private async once(stop: AbortSignal, opened: () => void): Promise<void> {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), MAX_SILENCE);
    try {
      const signal = AbortSignal.any([stop, silence.signal]);
      const response = await send('/v1/events', { signal });
      const stream = response.body?.pipeThrough(new TextDecoderStream()).getReader();
      if (!stream) return;
      const reader = new EventReader();
      for (;;) {
        const { done, value } = await stream.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), MAX_SILENCE);
        opened();
        this.hasBegun = true;
        this.heard = Date.now();
        this.staleSince = null;
        for (const data of reader.read(value)) this.take(JSON.parse(data) as Change);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  /** Forgets what was heard: another session begins anew. */
  reset(): void {
    [this.hasBegun, this.staleSince, this.heard] = [false, null, 0];
  }

  private take(change: Change): void {
    for (const kind of change.kinds) this.changes[kind] = (this.changes[kind] ?? 0) + 1;
  }
}

export const live = new Live();

/** What was read last, by path: a page that is opened again shows it at once. */
const kept = new Map<string, unknown>();

/** Most things that are kept. */
const MAX_KEPT = 50;

function keep(path: string, data: unknown): void {
  // The oldest is first.
  kept.delete(path);
  kept.set(path, data);
  const [oldest] = kept.keys();
  if (kept.size > MAX_KEPT && oldest !== undefined) kept.delete(oldest);
}

/** Forgets what was read: another token may see other things. */
export function forget(): void {
  kept.clear();
  live.reset();
}

/** Something that the API tells at a path. */
export class Resource<T> {
  data = $state.raw<T | undefined>();
  problem = $state<string | null>(null);
  /** True if the API has no such thing. */
  isAbsent = $state(false);
  private path: string | null = null;
  private isReading = false;
  private isWanted = false;

  /** Reads it from a path, or again from the same. */
  read(path: string): void {
    if (path !== this.path) {
      this.path = path;
      this.data = kept.get(path) as T | undefined;
      this.problem = null;
      this.isAbsent = false;
    }
    this.isWanted = true;
    if (!this.isReading) void this.run();
  }

  private async run(): Promise<void> {
    this.isReading = true;
    while (this.isWanted && this.path !== null) {
      this.isWanted = false;
      const path = this.path;
      let pause = MIN_PAUSE;
      try {
        const data = await get<T>(path);
        keep(path, data);
        if (path === this.path) [this.data, this.problem, this.isAbsent] = [data, null, false];
      } catch (error) {
        if (path === this.path) {
          this.problem = told(error);
          this.isAbsent = error instanceof ApiError && error.status === 404;
          if (this.isAbsent) this.data = undefined;
          // No event tells when it can be read again.
          else if (session.token !== null) [this.isWanted, pause] = [true, PAUSE_AFTER_PROBLEM];
        }
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
    this.isReading = false;
  }
}

/**
 * Returns what the API tells at a path, read again at each change of these kinds, and each
 * `everyMs` where events do not tell of all changes. Only while a component is made.
 */
export function resource<T>(
  path: () => string | null,
  kinds: readonly Kind[],
  everyMs?: number,
): Resource<T> {
  const found = new Resource<T>();
  $effect(() => {
    const at = path();
    live.of(kinds);
    if (at !== null) found.read(at);
  });
  $effect(() => {
    if (everyMs === undefined) return;
    const timer = setInterval(() => {
      const at = path();
      if (at !== null && document.visibilityState === 'visible') found.read(at);
    }, everyMs);
    return () => clearInterval(timer);
  });
  return found;
}
