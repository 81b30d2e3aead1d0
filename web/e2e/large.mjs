// The pages over 200 regions and 10,000 flows that are made up: times, axe, keyboard, widths, and
// what happens when events end.

import { readdirSync, readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';

import { accessible, check, narrow, open } from './check.mjs';
import { OPERATOR, READER, start } from './made.mjs';

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
  ['money', '/v1/gain', '#by-day'],
  ['events', '/v1/audit', 'tbody tr:nth-child(10)'],
  ['map', '/v1/places', 'svg .line'],
];

export async function run(browser) {
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

  await flat(page, controller);

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
  await close('the large overlay');
  controller.stop();
  size();
}

/** Checks that the memory stays, however often all that is shown changes. */
async function flat(page, controller) {
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
  check(grown < 1.15, `after 30 changes of everything the memory is ${grown.toFixed(2)} times`);
}

function size() {
  const dist = new URL('../dist/', import.meta.url);
  const page = readFileSync(new URL('index.html', dist));
  const names = readdirSync(new URL('assets/', dist)).filter((name) => page.includes(name));
  const files = [page, ...names.map((name) => readFileSync(new URL(`assets/${name}`, dist)))];
  const bytes = files.reduce((sum, file) => sum + gzipSync(file).length, 0);
  check(bytes < 300_000, `the first load has ${Math.round(bytes / 1000)} kB compressed`);
}
