// A whole session over a real overlay in the lab: from a host that joins to a budget that is spent.
// It waits for what happens, never for a time. What comes too late proves nothing where the lab did
// not keep time; all else that is wrong is a failure on any machine.

import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { accessible, check, counted, fail, fits, open, recount } from './check.mjs';

const TOPOLOGY = fileURLToPath(new URL('../../examples/cp-real-wan.toml', import.meta.url));
/** Longest wait for something that the overlay does: measurements, a plan, a move. */
const PATIENCE = 120_000;
/** The same of the page itself, which depends on no lab. */
const PAGE_PATIENCE = 60_000;
/** Longest time of the first load. */
const LOADED_WITHIN = 1000;
/** Longest time from the end of a relay's agent to the page that says so. */
const DEAD_WITHIN = 3000;
/** Runs, of which the first that is valid counts. */
const TRIES = 2;
/** Bytes of a download, and downloads at a time: twelve make both arms comparable. */
const FILE = 8_000_000;
const AT_ONCE = 4;
/** The region where one more relay joins. */
const REGION = 'gcp:australia-southeast1';
const JOINED = `${REGION}-2`;

/** Something that did not happen in time. */
class Late extends Error {}

/** Returns why nothing is proven; `null` if all is, or has failed. */
export async function run(browser, program, screenshots) {
  for (let tried = 1; ; tried += 1) {
    const before = counted();
    const reason = await once(browser, program, screenshots);
    if (reason === null) return null;
    console.log(`     INVALID: ${reason}`);
    recount(before);
    if (tried === TRIES) return reason;
  }
}

async function once(browser, program, screenshots) {
  const lab = new Lab(program);
  try {
    await lab.begin();
    await session(browser, lab, screenshots);
    await reader(browser, lab);
    return null;
  } catch (error) {
    const reasons = error instanceof Late ? await lab.reasons() : [];
    if (reasons.length > 0) return `${error.message.split('\n')[0]}; ${reasons.join('; ')}`;
    fail(error.stack ?? String(error));
    return null;
  } finally {
    await lab.end();
  }
}

/** A controller with a lab of its own, and what was started there. */
class Lab {
  started = [];

  constructor(program) {
    this.program = program;
    this.folder = mkdtempSync(join(tmpdir(), 'tradewind-web-'));
    const runtime = join(this.folder, 'run');
    mkdirSync(runtime, { mode: 0o700 });
    const env = { ...process.env, TRADEWIND_RUNTIME_DIR: runtime };
    delete env.TRADEWIND_CONTROLLER;
    this.options = { cwd: this.folder, env, maxBuffer: 1 << 24 };
  }

  async begin() {
    const net = join(this.folder, 'net');
    const controller = this.start('inherit', 'controller', 'run', net, '--lab', TOPOLOGY);
    await line(controller);
    mkdirSync(join(this.folder, 'www'));
    writeFileSync(join(this.folder, 'www', 'file'), randomBytes(FILE));
    const serve = ['python3', '-m', 'http.server', '8000', '--directory', 'www'];
    this.start('ignore', 'lab', 'exec', 'tokyo', '--', ...serve);
  }

  start(errors, ...args) {
    const child = spawn(this.program, args, { ...this.options, stdio: ['ignore', 'pipe', errors] });
    this.started.push(child);
    return child;
  }

  /** Runs a command of the program; returns what it prints. */
  async tell(...args) {
    const { stdout } = await promisify(execFile)(this.program, args, this.options);
    return stdout.trim();
  }

  async ask(...args) {
    return JSON.parse(await this.tell(...args, '-o', 'json'));
  }

  /** Waits until these hosts run what they should. */
  async settled(...names) {
    await until(() => `well: ${names}`, async () => {
      const { hosts } = await this.ask('hosts');
      const wanted = hosts.filter((host) => names.includes(host.id));
      return wanted.length === names.length && wanted.every((host) => host.state === 'well');
    });
  }

  /** Ends all processes of this lab that have a word in their command, at once. */
  kill(word) {
    for (const name of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
      let words = '';
      try {
        words = readFileSync(`/proc/${name}/cmdline`, 'utf8');
      } catch {
        // It has ended.
      }
      const isMeant = words.includes(this.folder) && words.includes(word);
      if (isMeant) process.kill(Number(name), 'SIGKILL');
    }
  }

  /** Returns why the lab did not keep time; nothing where it did. */
  async reasons() {
    try {
      const { validity } = await this.ask('lab', 'status');
      return validity.valid ? [] : validity.reasons;
    } catch {
      return [];
    }
  }

  async end() {
    for (const child of this.started.reverse()) await ended(child);
    rmSync(this.folder, { recursive: true, force: true });
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

async function session(browser, lab, screenshots) {
  const address = await lab.tell('dashboard');
  const base = new URL(address).origin;
  const { page, close } = await open(browser, base);
  page.setDefaultTimeout(PAGE_PATIENCE);
  const camera = await page.context().newCDPSession(page);
  /** Has axe look at what is shown, and takes its picture. */
  const seen = async (name, what) => {
    await accessible(page, what);
    if (!screenshots) return;
    const form = { format: 'webp', quality: 80 };
    const { data } = await camera.send('Page.captureScreenshot', form);
    writeFileSync(join(screenshots, `dashboard-${name}.webp`), Buffer.from(data, 'base64'));
  };
  const to = (name) => page.getByRole('link', { name, exact: true }).click();

  await page.goto(address);
  await happens(page.getByText('16 of 16 hosts well'));
  check(!page.url().includes('token'), 'the link opens the page, and its token leaves the address');
  const loaded = await page.evaluate(() => performance.getEntriesByType('navigation')[0].duration);
  timely(loaded, LOADED_WITHIN, 'the page loads');

  await declare(lab);
  const row = page.getByRole('row', { name: /nightly/ });
  await happens(row.getByText('Direct', { exact: true }));
  await happens(row.getByText('there is no budget'));
  check(true, 'a flow that the command line adds is seen, direct, and why');
  await enrol(page, lab);
  await approve(page, seen);
  await to('Flows');
  await happens(row.getByText(/gcp:/));
  check(true, 'the approved plan is in effect: the flow is relayed');

  await measured(page, row, lab);
  await seen('flows', 'flows that are relayed');
  await agrees(page, lab);
  await to('nightly');
  await carried(page, lab);
  await slowed(page, lab, seen);
  await others(page, lab, seen);
  await dead(page, lab);
  await spent(page, to, row);
  await close('the overlay');
}

/** Declares by commands what the pages show: flows, a tenant, packets, learners of windows. */
async function declare(lab) {
  const tell = (text, ...more) => lab.tell(...text.split(' '), ...more);
  await tell('tenant add acme --alarm 80% --budget', '5 usd/day');
  await tell('jumpstart overlay on --sites sao-paulo --probes');
  const add = 'flow add nightly --from sao-paulo --to 10.200.0.4:8000 --to-site tokyo';
  await tell(`${add} --per-day 200MB --listen 127.0.0.1:20000`);
  await tell('flow add replica --from hamina --to 10.200.0.4:8001 --to-site tokyo --per-day 2GB');
  const logs = 'flow add logs --from london --to 10.200.0.1:8002 --to-site hamina';
  await tell(`${logs} --per-day 500MB --tenant acme`);
  const call = 'flow add-packets call --from london --to 10.200.0.1:5004 --to-site hamina';
  await tell(`${call} --packets-per-second 50 --packet 200B --budget 150ms`);
}

/** A relay joins, is drained, dies and is revoked, before the eyes of who looks at the page. */
async function enrol(page, lab) {
  await page.getByRole('link', { name: 'Hosts', exact: true }).click();
  await page.getByLabel('Filter hosts').fill(JOINED);
  await page.getByText('0 shown').waitFor();
  const invite = await lab.tell('invite', '--role', 'relay', '--region', REGION);
  const joins = [lab.program, 'agent', 'join', invite.split(' ').at(-1)];
  const folder = join(lab.folder, 'joined');
  const ceiling = join(lab.folder, 'net', 'agents', 'ceiling.toml');
  const options = ['--ceiling', ceiling, '--dir', folder];
  lab.start('ignore', 'lab', 'exec', REGION, '--', ...joins, ...options);
  const row = page.getByRole('row', { name: new RegExp(JOINED) });
  await happens(row.getByText('Well', { exact: true }));
  check(true, 'a host that joins is seen');
  await row.getByRole('link').click();

  const state = (text) => page.getByRole('main').locator('.tools').getByText(text, { exact: true });
  await page.getByRole('button', { name: 'Drain…' }).click();
  await page.getByRole('button', { name: 'Drain', exact: true }).click();
  await happens(state('Drained'));
  check(true, 'it is drained by a button and a confirmation');
  const begun = Date.now();
  lab.kill(folder);
  await happens(state('Away'));
  timely(Date.now() - begun, DEAD_WITHIN, 'a dead relay is shown as away');
  await page.getByRole('button', { name: 'Revoke…' }).click();
  await page.getByLabel(/to go on/).fill(JOINED);
  await page.getByRole('button', { name: 'Revoke for good' }).click();
  await happens(state('Revoked'));
  await happens(page.getByText('16 of 16 hosts well'));
  await accessible(page, 'a revoked host');
}

/** Sets a budget, has a plan made, looks at it and approves it, by the page alone. */
async function approve(page, seen) {
  await page.getByRole('link', { name: 'Plan', exact: true }).click();
  await budget(page, '6');
  await page.getByText('budget $6.00').waitFor();
  const moves = page.getByRole('listitem').filter({ hasText: /Move\s*nightly/ });
  await until(() => 'a plan moves the flow', async () => {
    const answered = page.waitForResponse((it) => new URL(it.url()).pathname === '/v1/plans');
    await page.getByRole('button', { name: 'Make a plan' }).click();
    // The first tries come before the direct path was measured.
    if (!(await answered).ok()) return false;
    const isShown = moves.first().waitFor({ timeout: 3000 });
    return isShown.then(
      () => true,
      () => false,
    );
  });
  check(
    (await page.getByText('No plan: all flows go direct').count()) === 1,
    'a plan changes nothing by itself',
  );
  // The page computes what more money buys beside it.
  await happens(page.getByRole('slider', { name: /^Budget of a day/ }));
  await seen('plan', 'a proposed plan');
  await fits(page, 'a proposed plan');
  const number = await applied(page);
  // A newer one may be proposed by then.
  const inEffect = page.getByRole('region', { name: 'In effect' }).locator('dd').first();
  const isInEffect = async () =>
    (await inEffect.count()) > 0 && (await inEffect.innerText()) === number;
  await until(() => 'the plan is in effect', isInEffect);
}

/** Applies the newest plan; returns its number. It may be applied though newer ones are made. */
async function applied(page) {
  const question = page.getByRole('dialog');
  const refused = question.getByRole('alert');
  await page.getByRole('button', { name: /^Apply plan/ }).click();
  await accessible(page, 'a question');
  const number = (await question.getByRole('heading').innerText()).match(/\d+/)[0];
  await question.getByRole('button', { name: 'Apply', exact: true }).click();
  await Promise.race([question.waitFor({ state: 'detached' }), refused.waitFor()]);
  if (await refused.isVisible()) throw new Error(`plan ${number}: ${await refused.innerText()}`);
  return number;
}

async function budget(page, dollars) {
  await page.getByLabel('Dollars a day').fill(dollars);
  await page.getByRole('button', { name: 'Set' }).click();
}

/** Carries sessions over relays and of the control arm, until the page compares them. */
async function measured(page, row, lab) {
  await lab.tell('gain', '--control-share', '50%');
  await lab.settled('sao-paulo-1');
  // By the head of its column, so that another column cannot stand in for it.
  const heads = await page.getByRole('table', { name: 'Flows' }).locator('th').allInnerTexts();
  const column = heads.findIndex((head) => /^Measured/.test(head.trim()));
  if (column < 0) throw new Error(`no column Measured: ${heads}`);
  const figure = row.locator('td').nth(column);
  const get = ['curl', '--silent', '--fail', '--output', '/dev/null'];
  const download = () =>
    lab.tell('lab', 'exec', 'sao-paulo', '--', ...get, 'http://127.0.0.1:20000/file');
  const downloads = () => Promise.all(Array.from({ length: AT_ONCE }, download));
  for (let rounds = 0; rounds < 3; rounds += 1) await downloads();
  await until(() => 'both arms are compared', async () => {
    if (/×/.test(await figure.innerText())) return true;
    await downloads();
    return false;
  });
  check(true, `the gain is measured: ${(await figure.innerText()).replace(/\s+/g, ' ')}`);
}

/** Checks that the page shows what the commands, which ask the API themselves, show. */
async function agrees(page, lab) {
  const { flows } = await lab.ask('flows');
  for (const flow of flows) {
    const path = flow.path.length === 0 ? 'Direct' : flow.path.join(' → ');
    const row = page.getByRole('row', { name: new RegExp(`^${flow.id}`) });
    await happens(row.getByText(path, { exact: true }));
    check(true, `the page shows ${flow.id} as the command does: ${path}`);
  }
}

/** Checks that path and bytes are what the relays themselves have counted. */
async function carried(page, lab) {
  const table = page.getByRole('region', { name: 'Table of relays’ own counts' });
  const rows = table.locator('tbody tr');
  let told = '';
  await until(() => `all count the same: ${told}`, async () => {
    const shown = await rows.evaluateAll((rows) =>
      rows.map((row) => [
        row.querySelector('a').textContent,
        ...[...row.querySelectorAll('data')].map((data) => Number(data.value)),
      ]),
    );
    const moved = await Promise.all(shown.map(([relay]) => movedBy(lab, relay)));
    told = shown.map((row, index) => [...row, moved[index]].join(' ')).join(', ');
    const isSame = ([, counts, gateways], index) =>
      counts > FILE && counts === gateways && counts === moved[index];
    const relays = shown.map(([relay]) => relay).sort();
    const path = (await stops(page.locator('.legs'))).slice(1, -1).sort();
    return path.length > 0 && shown.every(isSame) && relays.join() === path.join();
  });
  check(true, `path and bytes are those of the relays' own counters: ${told}`);
}

/** Returns the bytes that a relay has moved, by its own metrics. */
async function movedBy(lab, relay) {
  const ask = ['curl', '--silent', '--fail', 'http://127.0.0.1:9101/metrics'];
  const text = await lab.tell('lab', 'exec', relay.replace(/-\d+$/, ''), '--', ...ask);
  const lines = text.split('\n').filter((it) => it.startsWith('tradewind_relay_moved_bytes_total'));
  return lines.reduce((sum, it) => sum + Number(it.split(' ').at(-1)), 0);
}

/** A leg gets slow: the controller, which applies plans now, moves the flow and says why. */
async function slowed(page, lab, seen) {
  await page.getByRole('link', { name: 'Plan', exact: true }).click();
  await page.getByLabel('The controller applies plans that are clearly better').check();
  await page.getByRole('link', { name: 'Flows', exact: true }).click();
  await page.getByRole('link', { name: 'nightly' }).click();
  const path = page.locator('.legs');
  await happens(path.getByText('Mbit/s').first());
  await seen('flow', 'a flow over relays');
  await fits(page, 'a flow over relays');
  const reason = page.getByText(/controller: applies plan \d+: /).first();
  const before = (await reason.count()) > 0 ? await reason.innerText() : '';
  const regions = (await stops(path)).slice(1, -1).map((host) => host.replace(/-\d+$/, ''));
  const [first, second] = regions.length > 1 ? regions : [regions[0], 'tokyo'];
  await lab.tell('lab', 'set', `${first},${second}`, 'rtt=900ms');
  const uses = (all, place) => all.some((stop) => stop.startsWith(place));
  await until(() => `the flow leaves ${first} - ${second}`, async () => {
    const now = await stops(path);
    return now.length > 1 && !(uses(now, first) && uses(now, second));
  });
  const now = (await stops(path)).join(' > ');
  check(true, `after ${first} - ${second} is slow, the flow goes ${now}`);
  const isTold = async () => (await reason.count()) > 0 && (await reason.innerText()) !== before;
  await until(() => 'the audit log says why', isTold);
  check(true, `and the page says why: ${await reason.innerText()}`);
  // The path that it left is among the others, each of which says why not.
  const left = page.getByRole('region', { name: 'Other paths' }).locator('tbody tr');
  await happens(left.filter({ hasText: first }).first());
}

async function stops(path) {
  return path.locator('.stop').allInnerTexts();
}

/** Looks at every other page, each with what this overlay has done. */
async function others(page, lab, seen) {
  const at = page.url().split('#')[0];
  const show = async (view, wanted, name) => {
    await page.goto(`${at}#/${view}`);
    await happens(page.locator(wanted).first());
    await seen(name, `${name} of the lab`);
  };
  await send(lab);
  const { flows } = await lab.ask('flows');
  const path = flows.find((flow) => flow.id === 'nightly').path;
  const relay = path[0] ?? 'sao-paulo-1';
  await show('hosts', 'tbody tr:nth-child(10)', 'hosts');
  await show(`hosts/${encodeURIComponent(relay)}`, '#legs', 'host');
  await show('measurements', 'tbody tr:nth-child(10)', 'measurements');
  await show('measurements/sao-paulo/tokyo', '.u-wrap', 'pair');
  await page.goto(`${at}#/packets`);
  const call = page.getByRole('row', { name: /^call/ });
  const count = async () => Number((await call.locator('td').nth(4).innerText()).replace(',', ''));
  await until(() => 'packets are counted', async () => (await count()) > 0);
  await seen('packets', 'packets of the lab');
  await show('jumpstart', 'tbody tr:has-text("sao-paulo-1")', 'jumpstart');
  await show('money', 'tbody tr:has-text("acme")', 'money');
  await show('events', 'tbody tr:nth-child(10)', 'events');
  await live(page, lab, show);
}

/** An open session: the map shows its flow as live, and the flow's page counts it. */
async function live(page, lab, show) {
  // It carries nothing, so that it lasts however fast the path is: longer than the patience below.
  const program =
    'import socket, time\n' +
    's = socket.create_connection(("127.0.0.1", 20000))\n' +
    'time.sleep(300)';
  lab.start('ignore', 'lab', 'exec', 'sao-paulo', '--', 'python3', '-c', program);
  await show('map', 'svg .line.live', 'map');
  await page.goto(`${page.url().split('#')[0]}#/flows/nightly`);
  const open = page.locator('.facts div').filter({ hasText: 'Open sessions' }).locator('dd');
  await until(() => 'the open session is counted', async () => (await open.innerText()) === '1');
  check(true, 'an open session is live on the map, and counted');
}

/** The agent of a relay that carries a flow dies: its host and the flow say so. */
async function dead(page, lab) {
  const at = page.url().split('#')[0];
  const { flows } = await lab.ask('flows');
  const flow = flows.find(({ path }) => path.length > 0);
  if (flow === undefined) throw new Late('no flow goes over relays');
  const relay = flow.path[0];
  await page.goto(`${at}#/hosts/${encodeURIComponent(relay)}`);
  const state = page.getByRole('main').locator('.tools').getByText('Away', { exact: true });
  await page.getByRole('heading', { name: relay }).waitFor();
  const begun = Date.now();
  const folder = relay.replace(/-\d+$/, '').replace(':', '-');
  lab.kill(join('net', 'agents', `${folder}\0`));
  await happens(state);
  timely(Date.now() - begun, DEAD_WITHIN, `a dead agent of ${relay}, which carries, is shown`);
  await page.goto(`${at}#/flows`);
  const row = page.getByRole('row', { name: new RegExp(`^${flow.id}`) });
  await happens(row.getByText(new RegExp(`; ${relay} is away`)));
  await page.goto(`${at}#/flows/${flow.id}`);
  await happens(page.getByText(`${relay} may carry nothing`));
  check(true, `and its flow ${flow.id} says so`);
}

/** Has an application send packets of the flow. */
async function send(lab) {
  const { flows } = await lab.ask('packets');
  const [host, port] = flows.find((flow) => flow.id === 'call').listen.split(':');
  const program =
    'import socket, time\n' +
    's = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n' +
    `for _ in range(100): s.sendto(bytes(200), ("${host}", ${port})); time.sleep(0.02)`;
  await lab.tell('lab', 'exec', 'london', '--', 'python3', '-c', program);
}

/** Less money than was spent today: all is direct at once, and each page says why. */
async function spent(page, to, row) {
  await to('Plan');
  await budget(page, '0.001');
  await to('Flows');
  await happens(row.getByText('Direct', { exact: true }));
  await happens(row.getByText('the budget of today is spent'));
  await to('Money and gain');
  await happens(page.getByText('The budget of today is spent: all flows go direct'));
  check(true, 'once the budget is spent the flow is direct, and why');
  await accessible(page, 'a budget that is spent');
}

/** A token that only reads: pages work, the API refuses, and the page says so. */
async function reader(browser, lab) {
  const address = await lab.tell('dashboard', '--reader');
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

/** Checks that something took less time. */
function timely(took, most, what) {
  if (took >= most) throw new Late(`${what} after ${took.toFixed(0)} ms, not ${most}`);
  check(true, `${what} after ${took.toFixed(0)} ms`);
}

/** Waits until the page shows something that the overlay does. */
async function happens(locator) {
  try {
    await locator.waitFor({ timeout: PATIENCE });
  } catch (error) {
    throw error.name === 'TimeoutError' ? new Late(error.message) : error;
  }
}

async function until(what, isSo) {
  const deadline = Date.now() + PATIENCE;
  while (!(await isSo())) {
    if (Date.now() > deadline) throw new Late(`not within ${PATIENCE / 1000} s: ${what()}`);
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
}
