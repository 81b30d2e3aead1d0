// A whole session over a real overlay in the lab: from hosts that have joined to a budget of zero.

import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { accessible, check, open } from './check.mjs';

const TOPOLOGY = fileURLToPath(new URL('../../examples/cp-real-wan.toml', import.meta.url));
/** Longest wait for something that the overlay does: measurements, a plan, a move. */
const PATIENCE = 180_000;
const MINUTE = 60_000;

export async function run(browser, program, screenshots) {
  const folder = mkdtempSync(join(tmpdir(), 'tradewind-web-'));
  const runtime = join(folder, 'run');
  mkdirSync(runtime, { mode: 0o700 });
  const env = { ...process.env, TRADEWIND_RUNTIME_DIR: runtime };
  const options = { cwd: folder, env, maxBuffer: 1 << 24 };
  const tradewind = async (...args) => {
    const { stdout } = await promisify(execFile)(program, args, options);
    return stdout.trim();
  };
  const started = [];
  const start = (errors, ...args) => {
    const child = spawn(program, args, { ...options, stdio: ['ignore', 'pipe', errors] });
    started.push(child);
    return child;
  };
  try {
    const controller = start('inherit', 'controller', 'run', 'net', '--lab', TOPOLOGY);
    await line(controller);
    mkdirSync(join(folder, 'www'));
    writeFileSync(join(folder, 'www', 'file'), randomBytes(60_000_000));
    const serve = ['python3', '-m', 'http.server', '8000', '--directory', 'www'];
    start('ignore', 'lab', 'exec', 'tokyo', '--', ...serve);
    await session(browser, tradewind, screenshots);
    await reader(browser, tradewind);
  } finally {
    for (const child of started.reverse()) await ended(child);
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Waits for the first line that a program prints. */
function line(child) {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).once('line', resolve);
    child.once('exit', (code) => reject(new Error(`the controller ended with ${code}`)));
  });
}

function ended(child) {
  if (child.exitCode !== null || child.signalCode !== null) return undefined;
  const gone = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGTERM');
  return gone;
}

async function session(browser, tradewind, screenshots) {
  const address = await tradewind('dashboard');
  const base = new URL(address).origin;
  const { page, close } = await open(browser, base);
  page.setDefaultTimeout(PATIENCE);
  const shot = async (name) => {
    if (screenshots) await page.screenshot({ path: join(screenshots, `dashboard-${name}.png`) });
  };
  const begun = Date.now();
  await page.goto(address);
  await page.getByText('16 of 16 hosts well').waitFor();
  check(!page.url().includes('token'), 'the link opens the page, and its token leaves the address');
  const loaded = await page.evaluate(() => performance.getEntriesByType('navigation')[0].duration);
  check(loaded < 3000, `the page loads in ${loaded.toFixed(0)} ms`);
  check(Date.now() - begun < MINUTE, 'all hosts of the lab are seen');

  // A flow that is declared elsewhere appears by itself, direct.
  const add =
    'flow add nightly --from sao-paulo --to 10.200.0.4:8000 --to-site tokyo --per-day 200MB';
  await tradewind(...add.split(' '), '--listen', '127.0.0.1:20000');
  await tradewind(
    'flow',
    'add',
    'replica',
    ...'--from hamina --to 10.200.0.4:8001'.split(' '),
    ...'--to-site tokyo --per-day 2GB'.split(' '),
  );
  await tradewind(
    'flow',
    'add',
    'logs',
    ...'--from london --to 10.200.0.1:8002'.split(' '),
    ...'--to-site hamina --per-day 500MB'.split(' '),
  );
  const row = page.getByRole('row', { name: /nightly/ });
  await row.getByText('Direct', { exact: true }).waitFor();
  await row.getByText('there is no budget').waitFor();
  check(true, 'a flow that the command line adds is seen, direct, and why');

  // A plan within a budget, seen before it is applied.
  await page.getByRole('link', { name: 'Plan', exact: true }).click();
  await page.getByLabel('Dollars a day').fill('6');
  await page.getByRole('button', { name: 'Set' }).click();
  await page.getByText('budget $6.00').waitFor();
  const moves = page.getByRole('listitem').filter({ hasText: /Move\s*nightly/ });
  await until(async () => {
    await page.getByRole('button', { name: 'Make a plan' }).click();
    await page.waitForTimeout(5000);
    return (await moves.count()) > 0 && (await moves.innerText()).includes('→');
  });
  // The first tries may have come before the direct path was measured.
  await page.getByRole('button', { name: 'Make a plan' }).click();
  await page.getByText(/^Refused/).waitFor({ state: 'hidden' });
  check(
    (await page.getByText('No plan: all flows go direct').count()) === 1,
    'a plan changes nothing by itself',
  );
  await accessible(page, 'a proposed plan');
  await shot('plan');
  await page.getByRole('button', { name: /^Apply plan/ }).click();
  await accessible(page, 'a question');
  const question = await page.getByRole('heading', { name: /^Apply plan/ }).innerText();
  const number = question.match(/\d+/)[0];
  await page.getByRole('button', { name: 'Apply', exact: true }).click();
  // A newer one may be proposed by then.
  const inEffect = page.getByRole('region', { name: 'In effect' }).locator('dd').first();
  await until(async () => (await inEffect.count()) > 0 && (await inEffect.innerText()) === number);
  await page.getByRole('link', { name: 'Flows', exact: true }).click();
  await row.getByText(/gcp:/).waitFor();
  check(true, 'the approved plan is in effect: the flow is relayed');

  // Sessions over relays and of the control arm.
  await tradewind('gain', '--control-share', '50%');
  await page.waitForTimeout(6000);
  const measured = row.locator('td').nth(6);
  await until(async () => {
    await downloads(tradewind);
    await page.waitForTimeout(3000);
    return /×/.test(await measured.innerText());
  });
  check(true, `the gain is measured: ${(await measured.innerText()).replace(/\s+/g, ' ')}`);
  await shot('flows');
  await agrees(page, tradewind);

  // A leg gets slow: the controller, which applies plans now, moves the flow and says why.
  await page.getByRole('link', { name: 'Plan', exact: true }).click();
  await page.getByLabel('The controller applies plans that are clearly better').check();
  await page.getByRole('link', { name: 'Flows', exact: true }).click();
  await page.getByRole('link', { name: 'nightly' }).click();
  const path = page.locator('.legs');
  await path.getByText('Mbit/s').first().waitFor();
  await accessible(page, 'a flow over relays');
  // What the new mode changes is no answer to what comes now.
  await settled(path);
  const before = await stops(path);
  const reason = page.getByText(/controller: applies plan \d+: /).first();
  const reasonBefore = (await reason.count()) > 0 ? await reason.innerText() : '';
  await shot('flow');
  const regions = before.slice(1, -1).map((host) => host.replace(/-\d+$/, ''));
  const [first, second] = regions.length > 1 ? regions : [regions[0], 'tokyo'];
  await tradewind('lab', 'set', `${first},${second}`, 'rtt=900ms');
  await until(async () => (await stops(path)).join() !== before.join());
  check(
    true,
    `after ${first} - ${second} is slow, the flow goes ${(await stops(path)).join(' > ')}`,
  );
  await until(async () => (await reason.innerText()) !== reasonBefore);
  check(true, `and the page says why: ${await reason.innerText()}`);

  await page.getByRole('link', { name: 'Map', exact: true }).click();
  await page.locator('svg .line').first().waitFor();
  await accessible(page, 'the map of the lab');
  await shot('map');

  // Without a budget all is direct.
  await page.getByRole('link', { name: 'Plan', exact: true }).click();
  await page.getByLabel('Dollars a day').fill('0');
  await page.getByRole('button', { name: 'Set' }).click();
  await page.getByText('No plan: all flows go direct').waitFor();
  await page.getByRole('link', { name: 'Flows', exact: true }).click();
  await row.getByText('Direct', { exact: true }).waitFor();
  await row.getByText(/there is no budget|the budget of today is spent/).waitFor();
  check(true, 'without a budget the flow is direct, and why');
  await close('the overlay');
}

/** Has sessions end over the overlay and its control arm. */
async function downloads(tradewind) {
  const get = ['curl', '--silent', '--fail', '--output', '/dev/null'];
  const one = () =>
    tradewind('lab', 'exec', 'sao-paulo', '--', ...get, 'http://127.0.0.1:20000/file');
  for (let round = 0; round < 6; round += 1) await Promise.all([one(), one()]);
}

/** Checks that the page shows what the commands, which ask the API themselves, show. */
async function agrees(page, tradewind) {
  const { flows } = JSON.parse(await tradewind('flows', '-o', 'json'));
  for (const flow of flows) {
    const text = await page.getByRole('row', { name: new RegExp(flow.id) }).innerText();
    const path = flow.path.length === 0 ? 'Direct' : flow.path.join(' → ');
    check(text.includes(path), `the page shows ${flow.id} as the command does: ${path}`);
  }
}

/** Waits until the path has been the same for a while. */
async function settled(path) {
  let [last, since] = ['', Date.now()];
  await until(async () => {
    const now = (await stops(path)).join();
    if (now !== last) [last, since] = [now, Date.now()];
    return Date.now() - since > 20_000;
  });
}

async function stops(path) {
  return path.locator('.stop').allInnerTexts();
}

/** A token that only reads: pages work, the API refuses, and the page says so. */
async function reader(browser, tradewind) {
  const address = await tradewind('dashboard', '--reader');
  const base = new URL(address).origin;
  const { page, close } = await open(browser, base);
  await page.goto(address);
  await page.getByRole('link', { name: 'nightly' }).waitFor();
  await page.goto(`${base}/#/plan`);
  await page.getByText('This token only reads: the controller refuses').waitFor();
  check(
    await page.getByRole('button', { name: 'Make a plan' }).isDisabled(),
    'a reader may not plan',
  );
  // By the API itself, as the page would write.
  const statuses = await page.evaluate(async () => {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem('tradewind-token')}` };
    const writes = [
      ['PUT', '/v1/settings', '{"budget_usd_per_day":6}'],
      ['POST', '/v1/plans', '{}'],
      ['POST', '/v1/hosts/tokyo/drain', ''],
      ['DELETE', '/v1/flows/nightly', ''],
    ];
    const asked = writes.map(([method, path, body]) => fetch(path, { method, headers, body }));
    return (await Promise.all(asked)).map((answer) => answer.status);
  });
  check(statuses.join() === '403,403,403,403', `the API refuses a reader's writes: ${statuses}`);
  await close('a reader');
}

async function until(isSo) {
  const deadline = Date.now() + PATIENCE;
  while (!(await isSo())) {
    if (Date.now() > deadline) throw new Error(`not so within ${PATIENCE / 1000} s: ${isSo}`);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}
