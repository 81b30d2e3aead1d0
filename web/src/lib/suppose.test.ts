import { describe, expect, it } from 'vitest';

import { supposed, type Fields } from './suppose';

const fields = (given: Partial<Fields>): Fields => ({
  without: '',
  prices: '',
  volumes: '',
  budget: '',
  ...given,
});

describe('changes that are supposed', () => {
  it('are read as the terminal reads them', () => {
    const asked = supposed(
      fields({
        without: 'gcp:us-east4, aws:*',
        prices: 'aws:*=x2 *=0.5',
        volumes: 'backup=x1.5,*=x2',
        budget: '$ 6',
      }),
    );
    expect(asked).toEqual({
      without: ['gcp:us-east4', 'aws:*'],
      prices: [
        { from: 'aws:*', times: 2 },
        { from: '*', times: 0.5 },
      ],
      volumes: [
        { flow: 'backup', times: 1.5 },
        { flow: null, times: 2 },
      ],
      budget_usd_per_day: 6,
    });
  });

  it('are none where nothing is given, and the budget stays', () => {
    expect(supposed(fields({}))).toEqual({
      without: [],
      prices: [],
      volumes: [],
      budget_usd_per_day: null,
    });
  });

  it('are refused in words', () => {
    for (const prices of ['aws:*', '=x2', 'aws:*=x', 'aws:*=x1.2.3']) {
      expect(() => supposed(fields({ prices }))).toThrow('expected a name and a factor');
    }
    for (const budget of ['six', '-1']) {
      expect(() => supposed(fields({ budget }))).toThrow('such as 6');
    }
  });
});
