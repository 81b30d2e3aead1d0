// What every run checks: origins, the page's policy, axe, and that nothing is wider than the
// screen.

import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

import { chromium } from 'playwright-core';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

let checks = 0;
let failures = 0;

/** Counts a check, and tells of it. */
export function check(isRight, what) {
  checks += 1;
  if (!isRight) failures += 1;
  console.log(`${isRight ? 'ok  ' : 'FAIL'} ${what}`);
}

/** Counts a failure that ends a run. */
export function fail(what) {
  check(false, what);
}

/** Returns how many checks there were, and how many of them failed. */
export function counted() {
  return { checks, failures };
}

/** Counts as if nothing had been checked since: an invalid run proves nothing. */
export function recount(before) {
  ({ checks, failures } = before);
}

/** Ends with the line that tells how many checks passed, and the exit code; returns the verdict. */
export function end(invalid) {
  const unproven = invalid === null ? '' : `; INVALID over the lab: ${invalid}`;
  console.log(`${checks - failures} passed, ${failures} failed${unproven}`);
  const [verdict, code] =
    failures > 0 ? ['fail', 1] : invalid === null ? ['pass', 0] : ['invalid', 3];
  process.exitCode = code;
  return verdict;
}

export function launch() {
  const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
  return chromium.launch({ executablePath, args: ['--no-sandbox'] });
}

/** Opens a page of `base` that reports what it must not do. */
export async function open(browser, base, options = {}) {
  const context = await browser.newContext({
    viewport: { width: 1280, height: 800 },
    locale: 'en-GB',
    reducedMotion: 'reduce',
    ...options,
  });
  const page = await context.newPage();
  const foreign = [];
  const problems = [];
  page.on('request', (request) => {
    if (!request.url().startsWith(`${base}/`)) foreign.push(request.url());
  });
  page.on('pageerror', (error) => problems.push(String(error)));
  await page.exposeFunction('policyViolation', (what) => problems.push(`policy: ${what}`));
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) =>
      window.policyViolation(`${event.violatedDirective} ${event.blockedURI}`),
    );
  });
  const close = async (name) => {
    check(foreign.length === 0, `${name}: asks no other origin ${foreign.join(' ')}`);
    check(problems.length === 0, `${name}: no error, no violation ${problems.join(' ')}`);
    await context.close();
  };
  return { page, close };
}

/** Has axe look at the page in light and dark. */
export async function accessible(page, name) {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    // Through the debugger, whose scripts the page's policy does not hold.
    await page.evaluate(axe);
    const found = await page.evaluate(async () => {
      const { violations } = await window.axe.run(document);
      return violations.map(
        (one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' | ')}`,
      );
    });
    check(
      found.length === 0,
      `${name}, ${colorScheme}: axe finds nothing ${found.join('\n     ')}`,
    );
  }
  await page.emulateMedia({ colorScheme: 'light' });
}

/** Checks that the page fits a small telephone. */
export async function narrow(page, name) {
  const before = page.viewportSize();
  await page.setViewportSize({ width: 360, height: 740 });
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  check(width <= 360, `${name}: fits 360 px (${width})`);
  await page.setViewportSize(before);
}
