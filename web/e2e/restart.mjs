// A real controller without hosts, which is killed and comes back while its page is open.

import { once } from 'node:events';
import { createServer } from 'node:net';

import { accessible, check, open } from './check.mjs';
import { Lab } from './overlay.mjs';

export async function run(browser, program) {
  const overlay = new Lab(program);
  try {
    await restarted(browser, overlay);
  } finally {
    await overlay.end();
  }
}

async function restarted(browser, overlay) {
  const addresses = ['--agents', await free(), '--api', await free()];
  await overlay.tell('controller', 'init', 'net', ...addresses);
  const first = await overlay.control();
  const { origin, hash } = new URL(await overlay.tell('dashboard'));
  const { page, close } = await open(browser, origin);
  await page.goto(origin);
  await page.getByLabel('Token of this controller').fill(hash.replace('#token=', ''));
  await page.keyboard.press('Enter');
  await page.getByText('Live', { exact: true }).waitFor();
  check(true, 'a real controller lets in who types its token');

  first.kill('SIGKILL');
  await once(first, 'exit');
  await page.getByText('Stale since').waitFor();
  await accessible(page, 'a controller that is gone');
  await overlay.control();
  await page.getByText('Live', { exact: true }).waitFor();
  const flow = 'flow add nightly --from office --to 192.0.2.7:443 --to-site tokyo --per-day 2GB';
  await overlay.tell(...flow.split(' '));
  await page.getByRole('link', { name: 'nightly' }).waitFor();
  check(true, 'stale while its controller is gone, the page goes on with the next one');
  await close('a controller that restarts');
}

/** Returns an address of this host that nobody listens on. */
async function free() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return `127.0.0.1:${port}`;
}
