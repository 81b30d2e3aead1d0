import { describe, expect, it } from 'vitest';

import { EventReader, pauseAfter } from './events';

describe('the stream of events', () => {
  it('is read whatever its pieces', () => {
    const text = 'event: change\ndata: {"a":1}\n\n:\n\nevent: change\ndata: {"b":2}\n\n';
    for (let size = 1; size <= text.length; size += 1) {
      const reader = new EventReader();
      const data: string[] = [];
      for (let at = 0; at < text.length; at += size)
        data.push(...reader.read(text.slice(at, at + size)));
      expect(data).toEqual(['{"a":1}', '{"b":2}']);
    }
  });

  it('is connected again after a growing pause', () => {
    expect([0, 1, 2, 9].map(pauseAfter)).toEqual([500, 1000, 2000, 5000]);
  });
});
