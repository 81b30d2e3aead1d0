// What fails in a real overlay, and how soon the page says so.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { check } from './check.mjs';
import { happens, Late, timely, until } from './overlay.mjs';

/** Longest time from the end of a relay's agent to the page that says so. */
export const DEAD_WITHIN = 3000;
/** Longest time from a relay process that hangs to the page that says so. */
const HUNG_WITHIN = 6000;

/** The agent of a relay that carries a flow dies: its host and the flow say so. */
export async function dead(page, lab) {
  const at = page.url().split('#')[0];
  const { flows } = await lab.ask('flows');
  const flow = flows.find(({ path }) => path.length > 0);
  if (flow === undefined) throw new Late('no flow goes over relays');
  const relay = flow.path[0];
  const state = await look(page, relay);
  const begun = Date.now();
  lab.kill(`${lab.agentOf(relay)}\0`);
  await happens(state('Away'));
  timely(Date.now() - begun, DEAD_WITHIN, `a dead agent of ${relay}, which carries, is shown`);
  await page.goto(`${at}#/flows`);
  const row = page.getByRole('row', { name: new RegExp(`^${flow.id}`) });
  await happens(row.getByText(new RegExp(`; ${relay} is away`)));
  await page.goto(`${at}#/flows/${flow.id}`);
  await happens(page.getByText(`${relay} may carry nothing`));
  check(true, `and its flow ${flow.id} says so`);
}

/** The process of a relay that carries a flow fails: its host says so, and the flow leaves it. */
async function failing(page, lab, { does, within, act }) {
  let flow;
  await until(() => 'a flow goes over relays that are well', async () => {
    const [{ flows }, { hosts }] = [await lab.ask('flows'), await lab.ask('hosts')];
    const isWell = (id) => hosts.some((host) => host.id === id && host.state === 'well');
    flow = flows.find(({ path }) => path.length > 0 && path.every(isWell));
    return flow !== undefined;
  });
  const relay = flow.path[0];
  const state = await look(page, relay);
  const config = join(lab.agentOf(relay), 'data', 'relay.toml');
  const begun = Date.now();
  act(config);
  await happens(state('Failing'));
  timely(Date.now() - begun, within, `a relay process that ${does}, of ${relay}, is shown`);
  await page.goto(`${page.url().split('#')[0]}#/flows`);
  const row = page.getByRole('row', { name: new RegExp(`^${flow.id}`) });
  await until(() => `${flow.id} leaves ${relay}`, async () => {
    const path = row.getByText(relay);
    return (await row.count()) === 1 && (await path.count()) === 0;
  });
  check(true, `and its flow ${flow.id} leaves it`);
  return config;
}

/** A relay process hangs until it goes on; another one dies, and cannot start again. */
export async function processes(page, lab) {
  const hangs = { does: 'hangs', within: HUNG_WITHIN, act: (it) => lab.kill(it, 'SIGSTOP') };
  lab.kill(await failing(page, lab, hangs), 'SIGCONT');
  const dies = (config) => {
    writeFileSync(config, 'nonsense');
    lab.kill(config);
  };
  await failing(page, lab, { does: 'dies', within: DEAD_WITHIN, act: dies });
}

/** A host vanishes from the network without a word. A second one does if the machine was busy. */
export async function vanished(page, lab) {
  let took = Infinity;
  for (let round = 0; round < 2 && took >= DEAD_WITHIN; round += 1) {
    const host = await spare(lab);
    const state = await look(page, host);
    const chain = 'type filter hook output priority 0; policy drop;';
    const rules = `table inet gone { chain out { ${chain} }; }`;
    const begun = Date.now();
    await lab.tell('lab', 'exec', host.replace(/-\d+$/, ''), '--', 'nft', rules);
    await happens(state('Away'));
    took = Date.now() - begun;
  }
  timely(took, DEAD_WITHIN, 'a host that has vanished is shown as away');
}

/** Returns a relay's host that is well, and that no flow takes. */
async function spare(lab) {
  let host;
  await until(() => 'a relay is well that no flow takes', async () => {
    const [{ flows }, { hosts }] = [await lab.ask('flows'), await lab.ask('hosts')];
    const isUsed = (id) => flows.some(({ path }) => path.includes(id));
    const isFit = ({ id, role, state }) => role === 'relay' && state === 'well' && !isUsed(id);
    host = hosts.find(isFit)?.id;
    return host !== undefined;
  });
  return host;
}

/** Opens the page of a host that is well; returns how its state is found. */
async function look(page, host) {
  await page.goto(`${page.url().split('#')[0]}#/hosts/${encodeURIComponent(host)}`);
  await page.getByRole('heading', { name: host }).waitFor();
  const state = (text) => page.getByRole('main').locator('.tools').getByText(text, { exact: true });
  await happens(state('Well'));
  return state;
}
