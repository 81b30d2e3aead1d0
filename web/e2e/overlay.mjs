// A real overlay in a lab of its own, and the wait for what it does.

import { execFile, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { check } from './check.mjs';

const TOPOLOGY = fileURLToPath(new URL('../../examples/cp-real-wan.toml', import.meta.url));
/** Longest wait for something that the overlay does: measurements, a plan, a move. */
const PATIENCE = 120_000;

/** Something that did not happen in time. */
export class Late extends Error {}

/** A controller in a folder of its own, with a lab if wanted, and what was started there. */
export class Lab {
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

  begin() {
    return this.control('--lab', TOPOLOGY);
  }

  /** Starts the controller; returns its process once it is ready. */
  async control(...options) {
    const net = join(this.folder, 'net');
    const controller = this.start('inherit', 'controller', 'run', net, ...options);
    await line(controller);
    return controller;
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

  /** Returns the folder of a host's agent, as its processes name it. */
  agentOf(host) {
    return join(this.folder, 'net', 'agents', host.replace(/-\d+$/, '').replace(':', '-'));
  }

  /** Waits until these hosts run what they should. */
  async settled(...names) {
    await until(() => `well: ${names}`, async () => {
      const { hosts } = await this.ask('hosts');
      const wanted = hosts.filter((host) => names.includes(host.id));
      return wanted.length === names.length && wanted.every((host) => host.state === 'well');
    });
  }

  /** Sends a signal to all processes of this lab that have a word in their command. */
  kill(word, signal = 'SIGKILL') {
    for (const name of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
      let words = '';
      try {
        words = readFileSync(`/proc/${name}/cmdline`, 'utf8');
      } catch {
        // It has ended.
      }
      const isMeant = words.includes(this.folder) && words.includes(word);
      if (isMeant) process.kill(Number(name), signal);
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

/** Checks that something took less time. */
export function timely(took, most, what) {
  if (took >= most) throw new Late(`${what} after ${took.toFixed(0)} ms, not ${most}`);
  check(true, `${what} after ${took.toFixed(0)} ms`);
}

/** Waits until the page shows something that the overlay does. */
export async function happens(locator) {
  try {
    await locator.waitFor({ timeout: PATIENCE });
  } catch (error) {
    throw error.name === 'TimeoutError' ? new Late(error.message) : error;
  }
}

export async function until(what, isSo) {
  const deadline = Date.now() + PATIENCE;
  while (!(await isSo())) {
    if (Date.now() > deadline) throw new Late(`not within ${PATIENCE / 1000} s: ${what()}`);
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
}
