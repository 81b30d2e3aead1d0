// `node e2e/run.mjs [--minutes N] [TRADEWIND SCREENSHOTS]`: the pages in a real browser; with the
// program also over a real overlay in the lab; with minutes the made-up one stays open that long.

import { parseArgs } from 'node:util';

import { launch, end } from './check.mjs';
import * as lab from './lab.mjs';
import * as large from './large.mjs';

const { values, positionals } = parseArgs({
  options: { minutes: { type: 'string', default: '0' } },
  allowPositionals: true,
});
const minutes = Number(values.minutes);
if (!(minutes >= 0)) throw new Error('--minutes: expected a number, such as 60');
const [program, screenshots] = positionals;
const browser = await launch();
try {
  await large.run(browser, minutes);
  if (program !== undefined) await lab.run(browser, program, screenshots);
} finally {
  await browser.close();
}
end();
// Pipes of programs that the lab has ended may still be open.
process.exit();
