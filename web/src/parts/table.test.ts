import { expect, test } from 'vitest';

import { widthsOf, type Column } from './table';

const columns: Column<unknown>[] = [
  { key: 'leg', label: 'Leg', value: () => null, width: '34%', narrow: 'auto' },
  { key: 'rate', label: 'Rate', value: () => null, width: '104px', isNumber: true, from: 'medium' },
  { key: 'by', label: 'By', value: () => null, width: '20%', from: 'wide' },
];

test('no column is narrower than what it holds', () => {
  expect(widthsOf(columns, 'wide')).toEqual({
    columns: ['max(140px, 34cqw)', 'max(72px, 104px)', 'max(110px, 20cqw)'],
    table: 'calc(max(140px, 34cqw) + max(72px, 104px) + max(110px, 20cqw))',
  });
});

test('the table is as wide as the columns that the screen has', () => {
  expect(widthsOf(columns, 'medium').table).toBe('calc(max(140px, 34cqw) + max(72px, 104px))');
  expect(widthsOf(columns, 'narrow').table).toBe('calc(100px)');
});
