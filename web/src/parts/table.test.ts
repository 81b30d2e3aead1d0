import { expect, test } from 'vitest';

import { widthsOf, type Column } from './table';

const columns: Column<unknown>[] = [
  { key: 'leg', label: 'Leg', value: () => null, width: 30 },
  { key: 'rate', label: 'Rate', value: () => null, width: '104px', isNumber: true, from: 'medium' },
  { key: 'by', label: 'By', value: () => null, width: 10, from: 'wide' },
];

test('columns share the room that is left', () => {
  const room = 'max(0px, 100cqw - 354px)';
  expect(widthsOf(columns, 'wide')).toEqual({
    columns: [`calc(140px + 0.7500 * ${room})`, '104px', `calc(110px + 0.2500 * ${room})`],
    table: '354px',
  });
});

test('the table is as wide as the columns that the screen has', () => {
  expect(widthsOf(columns, 'huge').table).toBe('354px');
  expect(widthsOf(columns, 'medium').table).toBe('244px');
  expect(widthsOf(columns, 'narrow').table).toBe('100px');
});

test('no column is narrower than what it holds', () => {
  const of = (column: Partial<Column<unknown>>) =>
    widthsOf([{ key: 'x', label: 'Much too long', value: () => null, width: '50px', ...column }], 'wide');
  expect(of({}).table).toBe('140px');
  expect(widthsOf([columns[0], { key: 'x', label: 'Takes, direct', value: () => null, width: '50px' }] as Column<unknown>[], 'wide').columns[1]).toBe('132px');
});
