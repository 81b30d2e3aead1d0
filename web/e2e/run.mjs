// `node e2e/run.mjs [--verdict FILE] [TRADEWIND SCREENSHOTS]`: the pages in a real browser; with
// the program also over a real overlay in the lab. Ends with 3 where the lab did not keep time, as
// then nothing is proven; the file says `pass`, `fail` or `invalid`.
// `node e2e/run.mjs --minutes N`: only the memory of a page that is open that long.

import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

import { launch, end, fail } from './check.mjs';
import * as lab from './lab.mjs';
import * as large from './large.mjs';
import * as restart from './restart.mjs';

const { values, positionals } = parseArgs({
  options: { minutes: { type: 'string', default: '0' }, verdict: { type: 'string' } },
  allowPositionals: true,
});
const minutes = Number(values.minutes);
if (!(minutes === 0 || minutes >= 2)) throw new Error('--minutes: expected 2 or more, such as 60');
const [program, screenshots] = positionals;
const browser = await launch();
let invalid = null;
try {
  if (minutes > 0) {
    await large.long(browser, minutes);
  } else {
    await large.run(browser);
    if (program !== undefined) {
      await restart.run(browser, program);
      invalid = await lab.run(browser, program, screenshots);
    }
  }
} catch (error) {
  fail(error.stack ?? String(error));
} finally {
  await browser.close();
}
const verdict = end(invalid);
if (values.verdict !== undefined) writeFileSync(values.verdict, verdict);
// Pipes of programs that the lab has ended may still be open.
process.exit();
