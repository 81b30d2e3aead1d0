// The pages over 200 regions and 10,000 flows that are made up: times, axe, keyboard, widths, and
// what happens when events end.

import { readdirSync, readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';

import { accessible, check, narrow, open } from './check.mjs';
import { OPERATOR, READER, start } from './made.mjs';

/** Longest share by which the memory may grow while everything shown changes. */
const MOST_GROWTH = 1.15;

/** Longest time from a view's data to the view; the aim is 100 ms on an idle machine. */
const LONGEST = 400;

const PAIR = '/v1/measurements/x%3Aregion-0/x%3Aregion-1';
/** Each view, the data that it waits for, and what is there once it is drawn. */
const VIEWS = [
  ['flows', '/v1/flows', 'tbody tr:nth-child(10)'],
  ['flows/flow-00001', '/v1/flows/flow-00001/explain', '#others'],
  ['hosts', '/v1/hosts', 'tbody tr:nth-child(10)'],
  ['hosts/x%3Aregion-0-1', '/v1/measurements', '#legs'],
  ['plan', '/v1/plans/newest', '.actions li:nth-child(10)'],
  ['measurements', '/v1/measurements', 'canvas'],
  ['measurements/x%3Aregion-0/x%3Aregion-1', PAIR, '.u-wrap'],
  ['packets', '/v1/packets', 'tbody tr:nth-child(2)'],
  ['jumpstart', '/v1/jumpstart', '#histogram'],
  ['money', '/v1/gain', '#by-day'],
  ['events', '/v1/audit', 'tbody tr:nth-child(10)'],
  ['map', '/v1/places', 'svg .line'],
];

export async function run(browser, minutes = 0) {
  const controller = await start();
  const { base } = controller;
  const { page, close } = await open(browser, base);
  // The time from each answer that was read to the end of the frame that shows it, by its path.
  await page.addInitScript(() => {
    window.delays = {};
    const json = Response.prototype.json;
    Response.prototype.json = async function (...given) {
      const value = await json.apply(this, given);
      const begun = performance.now();
      const { pathname } = new URL(this.url);
      requestAnimationFrame(() => {
        // The frame is drawn when the next task runs.
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = () => {
          window.delays[pathname] ??= performance.now() - begun;
        };
        port2.postMessage(null);
      });
      return value;
    };
  });

  await page.goto(`${base}/`);
  await page.getByLabel('Token of this controller').fill('wrong');
  await page.keyboard.press('Enter');
  await page.getByText('Not let in').waitFor();
  await accessible(page, 'the login');
  await page.goto(`${base}/#token=${OPERATOR}`);
  await page.getByRole('link', { name: 'flow-00000' }).waitFor();
  check(!page.url().includes(OPERATOR), 'the token is out of the address');
  check((await page.evaluate(() => history.length)) <= 4, 'and out of the history');

  for (const [view, data, wanted] of VIEWS) {
    await page.goto(`${base}/#/${view}`);
    await page.reload();
    await page.locator(wanted).first().waitFor();
    await page.waitForTimeout(300);
    const took = await page.evaluate((path) => window.delays[path], data);
    check(took < LONGEST, `${view}: drawn ${took.toFixed(0)} ms after its data`);
    await accessible(page, view);
    await narrow(page, view);
  }

  await page.goto(`${base}/#/money`);
  const bills = page.getByRole('region', { name: 'Money by day' }).getByRole('row');
  await bills.nth(1).waitFor();
  const ofDays = (await bills.allInnerTexts()).map((row) => row.trim().split(/\s+/).at(-1));
  check(ofDays.join() === 'Billed,–,$6.00', `what is billed stands beside it: ${ofDays}`);

  await page.goto(`${base}/#/measurements`);
  const cost = page.getByRole('region', { name: 'What measuring cost, last 7 days: $3.50' });
  await cost.locator('tbody tr').first().waitFor();
  const rows = await cost.locator('tbody tr').allInnerTexts();
  check(
    rows.length === 2 && /4.00 GB\s+\$2.00$/.test(rows[0]) && /not counted/.test(rows[1]),
    `what measuring cost is told by day: ${rows.join(' | ').replace(/\s+/g, ' ')}`,
  );

  await page.goto(`${base}/#/flows`);
  await page.getByRole('link', { name: 'flow-00000' }).waitFor();
  check(
    (await page.locator('tbody tr').count()) < 80,
    'of 10,000 flows only those in sight are drawn',
  );
  const typed = await page.evaluate(async () => {
    const input = document.querySelector('input[type=search]');
    const begun = performance.now();
    input.value = 'flow-099';
    input.dispatchEvent(new InputEvent('input', { bubbles: true }));
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    return performance.now() - begun;
  });
  check(typed < LONGEST, `10,000 flows are filtered in ${typed.toFixed(0)} ms`);
  await page.getByText('100 shown').waitFor();
  await page.getByLabel('Filter flows').fill('');
  const sorted = await page.evaluate(async () => {
    const begun = performance.now();
    document.querySelector('th:nth-child(6) button').click();
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    return performance.now() - begun;
  });
  check(sorted < LONGEST, `10,000 flows are sorted in ${sorted.toFixed(0)} ms`);
  const region = page.getByRole('region', { name: 'Flows' });
  await region.evaluate((element) => (element.scrollTop = element.scrollHeight));
  await page.locator('tr[aria-rowindex="10001"]').waitFor();
  check(true, 'the list scrolls to its last row');

  // By keys alone: to a page, to the filter, to a flow.
  await page.goto(`${base}/#/hosts`);
  await page.reload();
  for (let presses = 0; presses < 40; presses += 1) {
    await page.keyboard.press('Tab');
    if (await page.evaluate(() => document.activeElement.textContent === 'x:region-0-1')) break;
  }
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Revoke…' }).focus();
  await page.keyboard.press('Enter');
  const revoke = page.getByRole('button', { name: 'Revoke for good' });
  check(await revoke.isDisabled(), 'revoking asks for the name first');
  await page.keyboard.press('Escape');
  await revoke.waitFor({ state: 'detached' });
  check(true, 'a host is found and a question closed by keys alone');

  // Who was asked about a plan applies that one, whatever is proposed meanwhile.
  await page.goto(`${base}/#/plan`);
  await page.getByRole('button', { name: 'Apply plan 8…' }).click();
  controller.propose(9);
  controller.change();
  await page.getByText('Proposed: plan 9').waitFor();
  check((await page.getByText('Apply plan 8?').count()) === 1, 'a question stays about its plan');
  await page.keyboard.press('Escape');

  await budgets(page);
  await whatIf(page);

  await page.goto(`${base}/#/jumpstart`);
  const table = page.getByRole('table', { name: 'Jump-start by host' });
  await table.getByText('1.40× (1.20 to 1.60)').first().waitFor();
  check(
    (await table.getByText('its agent is older').count()) > 0,
    'a host that sets no windows says why',
  );
  const windows = page.getByRole('table', { name: 'Learned windows' });
  check((await windows.getByText('192.0.2.99/32').count()) > 0, 'learned windows are listed');

  await flat(page, controller, minutes);

  controller.events(false);
  await page.getByText(/Stale since \d\d:\d\d/).waitFor();
  check(true, 'without events the page says since when it is stale');
  await accessible(page, 'a stale page');
  controller.events(true);
  await page.getByText('Live', { exact: true }).waitFor();
  check(true, 'it connects again by itself');

  await page.evaluate((token) => (location.hash = `token=${token}`), READER);
  await page.getByText('This token only reads.').waitFor();
  check(!page.url().includes(READER), 'another token is taken in a tab that is open');
  await page.goto(`${base}/#/plan`);
  const take = page.getByRole('button', { name: 'Take this budget…' });
  await page.getByRole('slider').press('End');
  check(await take.isDisabled(), 'a reader looks at budgets and takes none');
  await page.getByRole('button', { name: 'Compute' }).click();
  await page.getByText('Flows with another path').waitFor();
  check(true, 'a reader may ask what if');
  await close('the large overlay');
  controller.stop();
  size();
}

/** Looks at what more money buys by the keyboard, and is asked before a budget is taken. */
async function budgets(page) {
  const slider = page.getByRole('slider', { name: /^Budget of a day/ });
  const take = page.getByRole('button', { name: 'Take this budget…' });
  check(await take.isDisabled(), 'the slider begins at the budget of now');
  await slider.press('End');
  const text = await slider.getAttribute('aria-valuetext');
  check(text.startsWith('$800.00: costs $700.00 a day, saves 29.4 h'), `it says: ${text}`);
  const row = page.locator('tr[aria-current]');
  check((await row.innerText()).startsWith('$800.00'), 'the table marks the same budget');
  await take.click();
  await page.getByRole('heading', { name: 'A budget of $800.00 a day?' }).waitFor();
  await accessible(page, 'the question of a budget');
  await page.keyboard.press('Escape');
  await slider.press('Home');
  check((await row.innerText()).startsWith('$0.00'), 'the slider goes back to no budget');
}

/** Asks what the plan would be. */
async function whatIf(page) {
  await page.getByLabel('Other prices').fill('aws:*=2x');
  await page.keyboard.press('Enter');
  await page.getByText('expected a name and a factor').waitFor();
  await page.getByLabel('Other prices').fill('aws:*=x2');
  const asked = page.waitForRequest('**/v1/what-if');
  await page.keyboard.press('Enter');
  const body = (await asked).postDataJSON();
  check(body.prices[0].from === 'aws:*' && body.prices[0].times === 2, 'what if is asked for');
  const answer = page.getByRole('list', { name: 'What would be otherwise' });
  await answer.getByRole('link', { name: 'flow-00049' }).waitFor();
  check((await answer.getByRole('link').count()) === 50, 'of 1,200 moves the first are listed');
  await page.getByText('and 1150 more').waitFor();
  await accessible(page, 'what if');
  await narrow(page, 'what if');
}

/**
 * Checks that the memory stays, however often all that is shown changes: 30 times, or once a second
 * for so many minutes, on one page after the other.
 */
async function flat(page, controller, minutes) {
  await page.goto(`${controller.base}/#/flows`);
  await page.getByRole('link', { name: 'flow-00000' }).waitFor();
  const debug = await page.context().newCDPSession(page);
  const used = async () => {
    await debug.send('HeapProfiler.collectGarbage');
    return (await debug.send('Runtime.getHeapUsage')).usedSize;
  };
  const changes = async (count) => {
    for (let number = 0; number < count; number += 1) {
      controller.change();
      await page.waitForTimeout(400);
    }
  };
  await changes(5);
  const before = await used();
  await changes(30);
  const grown = (await used()) / before;
  check(grown < MOST_GROWTH, `after 30 changes the memory is ${grown.toFixed(2)} times`);
  if (minutes > 0) await long(page, controller, minutes, { used, changes });
}

/** Checks the same on all pages for so many minutes: after each round the page is the first. */
async function long(page, controller, minutes, { used, changes }) {
  const end = Date.now() + minutes * 60_000;
  const round = async () => {
    for (const [view, , wanted] of VIEWS) {
      await page.goto(`${controller.base}/#/${view}`);
      await page.locator(wanted).first().waitFor();
      await changes(4);
    }
    await page.goto(`${controller.base}/#/flows`);
    await page.getByRole('link', { name: 'flow-00000' }).waitFor();
    await changes(2);
    return used();
  };
  // What is kept of each page (lib/live.svelte.ts) is kept after the first.
  const first = await round();
  let rounds = 1;
  let last = first;
  for (; Date.now() < end; rounds += 1) {
    last = await round();
    console.log(`     round ${rounds}: ${(last / 1e6).toFixed(1)} MB`);
  }
  const grown = last / first;
  check(
    rounds > 1 && grown < MOST_GROWTH,
    `${minutes} min open, ${rounds} rounds of all pages: the memory is ${grown.toFixed(2)} times`,
  );
}

function size() {
  const dist = new URL('../dist/', import.meta.url);
  const page = readFileSync(new URL('index.html', dist));
  const names = readdirSync(new URL('assets/', dist)).filter((name) => page.includes(name));
  const files = [page, ...names.map((name) => readFileSync(new URL(`assets/${name}`, dist)))];
  const bytes = files.reduce((sum, file) => sum + gzipSync(file).length, 0);
  check(bytes < 300_000, `the first load has ${Math.round(bytes / 1000)} kB compressed`);
}
