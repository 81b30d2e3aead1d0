// Requests to the controller's API.

import { session } from './session.svelte';

/** Longest time for which an answer is waited for. */
const MAX_READ = 20_000;

/** An answer that tells of a problem. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Sends a request with the token; a refused token ends the session. */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const token = session.token;
  const headers = new Headers(init.headers);
  headers.set('Authorization', `Bearer ${token ?? ''}`);
  const response = await fetch(path, { ...init, headers });
  if (response.ok) return response;
  const text = await response.text();
  const error = new ApiError(response.status, problemOf(text) ?? response.statusText);
  if (response.status === 401 && session.token === token) session.signOut(error.message);
  throw error;
}

/** Reads the one line of an error's answer. */
function problemOf(text: string): string | null {
  try {
    const answer: unknown = JSON.parse(text);
    if (answer && typeof answer === 'object' && 'error' in answer) return String(answer.error);
  } catch {
    // Not of the API.
  }
  return null;
}

export async function get<T>(path: string): Promise<T> {
  const response = await send(path, { signal: AbortSignal.timeout(MAX_READ) });
  return response.json() as Promise<T>;
}

/** Writes, and returns the answer if there is one. */
export async function write<T = void>(
  method: 'POST' | 'PUT' | 'DELETE',
  path: string,
  body?: unknown,
): Promise<T> {
  const init: RequestInit = { method };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { 'Content-Type': 'application/json' };
  }
  const response = await send(path, init);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** Returns a problem in one line. */
export function told(error: unknown): string {
  const isAway = error instanceof TypeError || error instanceof DOMException;
  if (isAway) return 'the controller does not answer';
  return error instanceof Error ? error.message : String(error);
}
