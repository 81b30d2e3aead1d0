// The processor time that the page's main thread takes to read a view's data and to draw it, which
// does not depend on what else the machine does.

/** Answers that belong to no view. */
const OF_ALL = ['/v1/events', '/v1/access', '/v1/status'];
/** Most times that a view is drawn: what the processor does for others slows it down, too. */
const MOST_ROUNDS = 10;
/** Milliseconds that each step has, on however busy a machine. */
const PAUSE = 350;

/**
 * Opens a view until it is drawn within so many milliseconds, or often enough; returns the least to
 * read its data, and to draw it.
 */
export async function costOf(page, address, wanted, within) {
  const least = { read: Infinity, draw: Infinity };
  for (let round = 0; round < MOST_ROUNDS && least.draw >= within; round += 1) {
    const { read, draw } = await once(page, address, wanted);
    least.read = Math.min(least.read, read);
    least.draw = Math.min(least.draw, draw);
  }
  return least;
}

/** Returns the least milliseconds that an act in the page takes; often enough, or until within. */
export async function costOfAct(page, act, given, within) {
  let least = Infinity;
  for (let round = 0; round < MOST_ROUNDS && least >= within; round += 1) {
    const begun = await spent(page);
    await page.evaluate(act, given);
    await page.waitForTimeout(PAUSE);
    least = Math.min(least, (await spent(page)) - begun);
  }
  return least;
}

/** Milliseconds that the work below takes where 100 ms were chosen: two cores, otherwise idle. */
const USUAL_WORK = 60;

/**
 * Returns how many times longer this machine takes now than the one for which limits were chosen,
 * at least 1: a core that is shared or older is no fault of the page.
 */
export async function slowness(page) {
  await count(page);
  const work = () =>
    setTimeout(() => {
      let seed = 1;
      const next = () => (seed = (seed * 48_271) % 0x7fff_ffff);
      const rows = Array.from({ length: 40_000 }, () => ({ id: `flow-${next()}`, rate: next() }));
      const read = JSON.parse(JSON.stringify(rows));
      read.sort((a, b) => a.rate - b.rate);
      window.worked = read.map((row) => row.id).join('').length;
    });
  return Math.max(1, (await costOfAct(page, work, null, USUAL_WORK)) / USUAL_WORK);
}

/** Has the page hold all data of views until it is told to read and to draw them. */
export async function hold(page) {
  await page.addInitScript((ofAll) => {
    const gate = () => {
      const made = {};
      made.opened = new Promise((resolve) => (made.open = resolve));
      return made;
    };
    const held = { asked: 0, came: 0, isDrawing: false, urls: new Set(), reading: gate() };
    held.drawing = gate();
    window.held = held;
    const isOfView = (url) => !ofAll.includes(new URL(url, location.href).pathname);
    const fetched = window.fetch;
    window.fetch = async (url, init) => {
      if (!isOfView(url)) return fetched(url, init);
      // What is read again later is not of the first drawing.
      if (held.isDrawing && held.urls.has(url)) return new Promise(() => {});
      held.urls.add(url);
      held.asked += 1;
      const response = await fetched(url, init);
      const text = await response.text();
      held.came += 1;
      response.text = async () => text;
      response.json = async () => {
        await held.reading.opened;
        const value = JSON.parse(text);
        await held.drawing.opened;
        return value;
      };
      return response;
    };
  }, OF_ALL);
}

/** Has the browser count the processor time of the page. */
async function count(page) {
  const debug = await page.context().newCDPSession(page);
  await debug.send('Performance.enable', { timeDomain: 'threadTicks' });
  debugs.set(page, debug);
}

const debugs = new WeakMap();

async function once(page, address, wanted) {
  await page.goto(address);
  await page.reload();
  const until = (isSo) => page.waitForFunction(isSo, null, { polling: 50 });
  await until(() => window.held?.asked > 0 && window.held.came === window.held.asked);
  // What was shown before the data came is drawn.
  await page.waitForTimeout(PAUSE);
  const begun = await spent(page);
  // In tasks of their own: what happens within a question is not counted.
  await page.evaluate(() => void setTimeout(window.held.reading.open));
  await page.waitForTimeout(PAUSE);
  const read = await spent(page);
  await page.evaluate(() => {
    window.held.isDrawing = true;
    setTimeout(window.held.drawing.open);
  });
  await page.waitForTimeout(PAUSE);
  const drawn = await spent(page);
  if ((await page.locator(wanted).count()) === 0) throw new Error(`not drawn: ${address}`);
  return { read: read - begun, draw: drawn - read };
}

/** Returns the milliseconds of processor that the main thread has taken, but for these questions. */
async function spent(page) {
  const { metrics } = await debugs.get(page).send('Performance.getMetrics');
  const of = (wanted) => metrics.find(({ name }) => name === wanted).value;
  return 1000 * (of('TaskDuration') - of('DevToolsCommandDuration'));
}
