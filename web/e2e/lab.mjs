// A whole session over a real overlay in the lab: from a host that joins to a budget that is spent.
// It waits for what happens, never for a time. What comes too late proves nothing where the lab did
// not keep time; all else that is wrong is a failure on any machine.

import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { accessible, check, counted, fail, fits, open, recount, words } from './check.mjs';
import { DEAD_WITHIN, dead, processes, vanished } from './faults.mjs';
import { happens, Lab, Late, timely, until } from './overlay.mjs';

/** Longest wait for the page itself, which depends on no lab. */
const PAGE_PATIENCE = 60_000;
/** Longest time of the first load. */
const LOADED_WITHIN = 1000;
/** Runs, of which the first that is valid counts. */
const TRIES = 2;
/** Bytes of a download, and downloads at a time: twelve make both arms comparable. */
const FILE = 8_000_000;
const AT_ONCE = 4;
/** Packets that an application sends: a few of them get lost. */
const PACKETS = 300;
/** The region where one more relay joins. */
const REGION = 'gcp:australia-southeast1';
const JOINED = `${REGION}-2`;
/** The destination that a gateway learns from its proxy. */
const LEARNED_PORT = 8003;
const LEARNED = `10.200.0.4:${LEARNED_PORT}`;

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
    serve(lab);
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

/** Serves a file in Tokyo: to a flow, and to programs behind the proxy. */
function serve(lab) {
  const folder = join(lab.folder, 'www');
  mkdirSync(folder);
  writeFileSync(join(folder, 'file'), randomBytes(FILE));
  for (const port of [8000, LEARNED_PORT]) {
    const server = ['python3', '-m', 'http.server', String(port), '--directory', folder];
    lab.start('ignore', 'lab', 'exec', 'tokyo', '--', ...server);
  }
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
  await adopted(page, lab);
  await processes(page, lab);
  await vanished(page, lab);
  await spent(page, to, row);
  await close('the overlay');
}

/** Declares by commands what the pages show: flows, a tenant, packets, learners of windows. */
async function declare(lab) {
  const tell = (text, ...more) => lab.tell(...text.split(' '), ...more);
  // So that packets of `call` are worth a relay.
  await tell('lab set london,hamina loss=3%');
  await tell('tenant add acme --alarm 80% --budget', '5 usd/day');
  await tell('jumpstart overlay on --sites sao-paulo --probes');
  const add = 'flow add nightly --from sao-paulo --to 10.200.0.4:8000 --to-site tokyo';
  await tell(`${add} --per-day 200MB --listen 127.0.0.1:20000`);
  await tell('flow add replica --from hamina --to 10.200.0.4:8001 --to-site tokyo --per-day 2GB');
  const logs = 'flow add logs --from london --to 10.200.0.1:8002 --to-site hamina';
  await tell(`${logs} --per-day 500MB --tenant acme`);
  const call = 'flow add-packets call --from london --to 10.200.0.1:5004 --to-site hamina';
  // As planned from the first packet on: `auto` would begin with the Internet alone.
  await tell(`${call} --packets-per-second 50 --packet 200B --budget 150ms --service planned`);
  await tell('proxies sao-paulo --socks5 127.0.0.1:1080 --to 10.200.0.0/16:*');
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
  await page.getByRole('button', { name: 'Undrain…' }).click();
  await page.getByRole('button', { name: 'Undrain', exact: true }).click();
  await happens(state('Well'));
  await page.getByRole('button', { name: 'Drain…' }).click();
  await page.getByRole('button', { name: 'Drain', exact: true }).click();
  await happens(state('Drained'));
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
  await whatIf(page);
}

/** Asks what no money would buy: the flow that has just moved would go direct. */
async function whatIf(page) {
  const form = page.getByRole('region', { name: 'What if' });
  await form.getByLabel('Other budget').fill('0');
  const compute = form.getByRole('button', { name: 'Compute', exact: true });
  const moves = form.getByRole('listitem').filter({ hasText: /^nightly/ });
  // One plan is computed at a time: it may be refused while the slider's are.
  await until(() => 'what if is computed', async () => {
    await compute.click();
    await compute.waitFor();
    return (await moves.count()) === 1;
  });
  const told = words(await moves.innerText());
  check(/to direct/.test(told), `what no money would buy: ${told}`);
  const facts = words(await form.locator('dl').innerText());
  check(/→ \$0\.00/.test(facts) && /Relays [1-9]\d* → 0/.test(facts), `and costs: ${facts}`);
  await form.getByLabel('Other budget').fill('');
  const relay = told.match(/from (\S+)/)[1].replace(/,$/, '');
  await form.getByLabel('Without regions').fill(relay);
  await form.getByLabel('Other prices').fill('gcp:*=x2');
  const region = form.getByText(`${relay}: 0 relays, now 1`);
  await until(() => `what if without ${relay} is computed`, async () => {
    await compute.click();
    await compute.waitFor();
    return (await region.count()) === 1;
  });
  check(true, `a region less, and prices doubled: ${words(await form.locator('dl').innerText())}`);
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
const movedBy = (lab, relay) => metricOf(lab, relay, 'tradewind_relay_moved_bytes_total');

/** Returns a figure of a relay's own metrics, summed over all labels that begin so. */
async function metricOf(lab, relay, name) {
  const ask = ['curl', '--silent', '--fail', 'http://127.0.0.1:9101/metrics'];
  const text = await lab.tell('lab', 'exec', relay.replace(/-\d+$/, ''), '--', ...ask);
  const lines = text.split('\n').filter((it) => it.startsWith(name));
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
  await call.getByRole('link').click();
  await page.getByRole('heading', { name: 'call', exact: true }).waitFor();
  await packetsAgree(page, lab);
  await show('jumpstart', 'tbody tr:has-text("sao-paulo-1")', 'jumpstart');
  await show('money', 'tbody tr:has-text("acme")', 'money');
  await show('events', 'tbody tr:nth-child(10)', 'events');
  await live(page, lab, show);
}

/** Checks that a packet flow's page counts what command and relays count. */
async function packetsAgree(page, lab) {
  const expectedBy = 'Expected by the receiver';
  const copied = 'Copies to its first relay';
  const NAMES = ['Sent', copied, expectedBy, 'In time', 'Late', 'Lost', 'Lost by the Internet'];
  const rows = page.locator('table.plain tbody tr');
  let told = '';
  await until(() => `the page and the command count the same: ${told}`, async () => {
    const { flows } = await lab.ask('packets');
    const { counts, path } = flows.find((flow) => flow.id === 'call');
    const { packets, copies, expected, in_time, late, lost, lost_by_internet } = counts;
    const ofCommand = [packets, copies, expected, in_time, late, lost, lost_by_internet];
    const shown = await rows.evaluateAll((rows) =>
      rows.map((row) => [...row.cells].slice(0, 2).map((cell) => cell.textContent)),
    );
    const ofPage = NAMES.map((name) => {
      const row = shown.find(([it]) => it === name);
      return Number(row?.[1].replace(/,/g, ''));
    });
    const cached = 'tradewind_packet_datagrams_total{outcome="cached"}';
    const cachedBy = await Promise.all(path.map((relay) => metricOf(lab, relay, cached)));
    told = `${ofPage} by the page, ${ofCommand} by the command; cached by relays: ${cachedBy}`;
    // Nearly all were sent after the gateways knew each other, and each of those became something.
    const isSent = packets > 0.9 * PACKETS && packets <= PACKETS;
    const isWhole = isSent && expected >= packets && in_time + late + lost >= packets;
    const isCached = copies > 0 && cachedBy.includes(copies);
    return isWhole && lost_by_internet > 0 && isCached && ofPage.join() === ofCommand.join();
  });
  check(true, `${NAMES.join(', ').toLowerCase()}: ${told}`);
  await accessible(page, 'a packet flow of the lab');
  await fits(page, 'a packet flow of the lab');
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

/** A program reaches a destination by the gateway's proxy: it is learned, and adopted as a flow. */
async function adopted(page, lab) {
  const at = page.url().split('#')[0];
  const get = ['curl', '--silent', '--fail', '--output', '/dev/null'];
  const proxy = ['--proxy', 'socks5://127.0.0.1:1080', `http://${LEARNED}/file`];
  await lab.tell('lab', 'exec', 'sao-paulo', '--', ...get, ...proxy);
  await page.goto(`${at}#/flows`);
  const learned = page.getByRole('table', { name: 'Learned destinations' });
  await happens(learned.getByRole('button', { name: `Adopt ${LEARNED}` }));
  check(true, 'a destination of the proxy is learned');
  await learned.getByRole('button', { name: `Adopt ${LEARNED}` }).click();
  const question = page.getByRole('dialog');
  await accessible(page, 'the question whether to adopt');
  await question.getByRole('button', { name: 'Adopt', exact: true }).click();
  await question.waitFor({ state: 'detached' });
  const name = `sao-paulo:${LEARNED}`;
  const flow = page.getByRole('table', { name: 'Flows' }).getByRole('row', { name });
  await happens(flow);
  await happens(page.getByText('Nothing is learned yet'));
  const { flows } = await lab.ask('flows');
  check(flows.some((flow) => flow.id === name), 'it is adopted, and a flow from then on');
}

/** Has an application send packets of the flow. */
async function send(lab) {
  const { flows } = await lab.ask('packets');
  const [host, port] = flows.find((flow) => flow.id === 'call').listen.split(':');
  const program =
    'import socket, time\n' +
    's = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n' +
    `for _ in range(${PACKETS}): s.sendto(bytes(200), ("${host}", ${port})); time.sleep(0.02)`;
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
