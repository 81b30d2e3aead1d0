// Changes that are supposed, as people write them: `gcp:us-east4, aws:*`, `aws:*=x2`, `backup=x2`.

import type { WhatIf } from './types';

export interface Fields {
  without: string;
  prices: string;
  volumes: string;
  budget: string;
}

const words = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

/** Reads `NAME=xFACTOR`; the factor may be without its `x`. */
function factor(word: string): [string, number] {
  const match = /^([^=]+)=x?([0-9.]+)$/i.exec(word);
  const times = Number(match?.[2]);
  if (!match?.[1] || !Number.isFinite(times)) {
    throw new Error(`“${word}”: expected a name and a factor, such as aws:*=x2`);
  }
  return [match[1], times];
}

/** Reads the fields of the form; throws what is wrong, in one line. */
export function supposed(fields: Fields): WhatIf {
  const asked: WhatIf = {
    without: words(fields.without),
    prices: words(fields.prices).map((word) => {
      const [from, times] = factor(word);
      return { from, times };
    }),
    volumes: words(fields.volumes).map((word) => {
      const [flow, times] = factor(word);
      return { flow: flow === '*' ? null : flow, times };
    }),
    budget_usd_per_day: null,
  };
  const budget = fields.budget.trim().replace(/^\$/, '');
  if (budget === '') return asked;
  const amount = Number(budget);
  if (!Number.isFinite(amount) || amount < 0) {
    throw new Error('the other budget is dollars, such as 6');
  }
  return { ...asked, budget_usd_per_day: amount };
}
