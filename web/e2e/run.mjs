// `node e2e/run.mjs [TRADEWIND SCREENSHOTS]`: the pages in a real browser; with the program also
// over a real overlay in the lab.

import { launch, end } from './check.mjs';
import * as lab from './lab.mjs';
import * as large from './large.mjs';

const [program, screenshots] = process.argv.slice(2);
const browser = await launch();
try {
  await large.run(browser);
  if (program !== undefined) await lab.run(browser, program, screenshots);
} finally {
  await browser.close();
}
end();
// Pipes of programs that the lab has ended may still be open.
process.exit();
