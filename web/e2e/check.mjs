// What every run checks: origins, the page's policy, axe, and that nothing is wider than the
// screen.

import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

import { chromium } from 'playwright-core';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

let checks = 0;
let failures = 0;

/** Returns a text in one line. */
export const words = (text) => text.trim().replace(/\s+/g, ' ');

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

/** Takes back what has passed since: an invalid run proves nothing. What failed stays. */
export function recount(before) {
  checks = before.checks + failures - before.failures;
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
    await axed(page, `${name}, ${colorScheme}`);
  }
  await page.emulateMedia({ colorScheme: 'light' });
}

async function axed(page, name) {
  // Through the debugger, whose scripts the page's policy does not hold.
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document);
    return violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' | ')}`);
  });
  check(found.length === 0, `${name}: axe finds nothing ${found.join('\n     ')}`);
}

/** Widths from a small telephone on, each side of those at which the layout changes. */
const WIDTHS = [360, 730, 800, 1024, 1280, 1920];
/** Least width at which no table is wider than its room. */
const WIDE = 1280;
/** Least width of a column, and of the first, which has the names, in pixels. */
const LEAST = [56, 96];

/** Returns the tables that are wider than their room, with how much; in the page. */
function cutTables() {
  const over = (table) => table.scrollWidth - table.parentElement.clientWidth;
  const cut = [...document.querySelectorAll('table')].filter((table) => over(table) > 1);
  const name = (table) => table.ariaLabel ?? table.closest('section, div')?.innerText.slice(0, 40);
  return cut.map((table) => `${name(table)}: ${over(table)} px`);
}

/** Checks that the page fits screens: nothing is wider, each column has room, axe. */
export async function fits(page, name) {
  const before = page.viewportSize();
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: 740 });
    // Rows that came into sight are drawn in the next frame.
    await page.evaluate(
      () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve))),
    );
    const whole = await page.evaluate(() => document.documentElement.scrollWidth);
    check(whole <= width, `${name}: fits ${width} px (${whole})`);
    const tight = await page.evaluate(tightColumns, LEAST);
    check(tight.length === 0, `${name}: at ${width} px each column has room ${tight.join(', ')}`);
    if (width >= WIDE) {
      const cut = await page.evaluate(cutTables);
      check(cut.length === 0, `${name}: at ${width} px all columns are in sight ${cut.join(', ')}`);
    }
    if (width === 360 || width === 800) await axed(page, `${name}, ${width} px`);
  }
  await page.setViewportSize(before);
}

/**
 * Returns the columns of long lists that are too narrow, or whose label or, in the first, names are
 * cut; in the page.
 */
function tightColumns([least, first]) {
  const isCut = (element) =>
    element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight + 2;
  return [...document.querySelectorAll('table[aria-rowcount]')].flatMap((table) => {
    const heads = [...table.querySelectorAll('th')]
      .filter((head) => getComputedStyle(head).display !== 'none')
      .map((head, index) => [head, head.getBoundingClientRect().width, index === 0 ? first : least])
      .filter(([head, width, wanted]) => width < wanted || isCut(head))
      .map(([head, width]) => `${table.ariaLabel} ${head.innerText}: ${width.toFixed(0)} px`);
    const names = [...table.querySelectorAll('td:first-child, td:first-child > *')]
      .filter(isCut)
      .map((name) => name.innerText);
    return heads.concat(names.length === 0 ? [] : `${names.length} such as ${names[0]}`);
  });
}
