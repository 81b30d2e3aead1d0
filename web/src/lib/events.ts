// Server-sent events, read by hand: `EventSource` cannot show a token.

/** Splits a stream of text into the data of its events; what is not whole yet is kept. */
export class EventReader {
  private rest = '';

  /** Takes more text, and returns the data of the events that it completes. */
  read(text: string): string[] {
    const blocks = (this.rest + text).split('\n\n');
    this.rest = blocks.pop() ?? '';
    return blocks.map(dataOf).filter((data) => data !== null);
  }
}

function dataOf(block: string): string | null {
  const lines = block.split('\n').filter((line) => line.startsWith('data:'));
  if (lines.length === 0) return null;
  return lines.map((line) => line.slice(5).trimStart()).join('\n');
}

/** Returns the wait before the next attempt to connect, in milliseconds. */
export function pauseAfter(failures: number): number {
  return Math.min(500 * 2 ** failures, 5000);
}
