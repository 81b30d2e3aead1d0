//! The changes, done by Terraform and by the controller's API.
//!
//! Order: ask for invites and write them down, drain what goes, have Terraform make and remove,
//! and only then revoke. A run that is cut off at any point is finished by the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Instant;

use tradewind_config::MachinesConfig;
use tradewind_control::record::Role;
use tradewind_controller::view::{HostState, Hosts, InviteAnswer, InviteRequest, InviteView};
use tradewind_controller::{Client, ClientError};
use tradewind_machines::{Order, document};
use tradewind_stream::clock::unix_now;
use tradewind_units::{Duration, HostId, RelayTypeId};

use super::changes::{Action, Change, changes};
use super::folder::{Folder, Record};
use super::show::MachineAnswer;
use super::terraform::{Resource, State, Terraform};
use crate::hosts::drain;
use crate::output;

/// Time that an invite lasts. Chosen: a machine boots in minutes, and clouds may be slow.
const INVITE_MS: u64 = 3_600_000;
/// Time between two questions to the controller.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The work of one run.
pub(super) struct Work {
    pub(super) folder: Folder,
    pub(super) terraform: Terraform,
    /// Absent only where all machines are removed, and no controller answers.
    pub(super) client: Option<Client>,
    pub(super) patience: Duration,
}

impl Work {
    /// Makes all as the file has it; returns the answers about machines.
    pub(super) fn apply(
        &mut self,
        config: &MachinesConfig,
        orders: &[Order],
    ) -> anyhow::Result<Vec<MachineAnswer>> {
        let regions = orders.iter().map(|order| order.region.clone());
        self.folder.records.regions.extend(regions);
        self.folder.save()?;
        let tag = self.folder.tag(&config.name);
        self.terraform.prepare(&document(config, orders, &tag, &self.folder.records.regions))?;
        // A machine that somebody has removed is to be made again, with an invite of its own.
        let state = self.terraform.refreshed()?;
        self.learn_hosts()?;
        let mut changes = changes(orders, &state, &self.folder.records.machines)?;
        self.replace_lost(&mut changes)?;
        let invites = self.invite(orders, &changes)?;
        self.drain_retired()?;
        let replaced: Vec<&Resource> = changes
            .iter()
            .filter(|change| change.action == Action::Replace)
            .filter_map(|change| state.machine(&change.machine))
            .collect();
        self.terraform.apply(&invites, &replaced)?;
        self.revoke_retired()?;
        let mut answers = self.await_machines(&changes)?;
        let state = self.terraform.state()?;
        for answer in &mut answers {
            answer.address = state.addresses.get(&answer.machine).cloned();
        }
        Ok(answers)
    }

    /// Takes all away; returns the answers about machines.
    pub(super) fn destroy(&mut self) -> anyhow::Result<Vec<MachineAnswer>> {
        let state = self.terraform.state()?;
        let changes = changes(&[], &state, &self.folder.records.machines)?;
        if let Some(client) = &self.client
            && let Err(error) = client.get::<Hosts>("/v1/hosts")
        {
            output::note(format_args!("hosts are neither drained nor revoked: {error}"));
            self.client = None;
        }
        if self.client.is_some() {
            self.learn_hosts()?;
        }
        for record in std::mem::take(&mut self.folder.records.machines).into_values() {
            self.folder.records.retired.extend(record.host);
        }
        self.folder.save()?;
        self.drain_retired()?;
        if !state.resources.is_empty() {
            self.terraform.destroy()?;
        }
        self.revoke_retired()?;
        Ok(changes.iter().map(|change| MachineAnswer::of(change, "removed")).collect())
    }

    /// Returns an answer of the controller; nothing without one, or if it does not know the thing.
    fn ask<T: serde::de::DeserializeOwned>(&self, path: &str) -> anyhow::Result<Option<T>> {
        known(self.client.as_ref().map(|client| client.get(path)))
    }

    /// Writes down who has used invites.
    fn learn_hosts(&mut self) -> anyhow::Result<()> {
        let mut found = BTreeMap::new();
        let unknown = self.folder.records.machines.iter().filter(|(_, it)| it.host.is_none());
        for (name, record) in unknown {
            let invite: Option<InviteView> = self.ask(&format!("/v1/invites/{}", record.invite))?;
            if let Some(host) = invite.and_then(|invite| invite.host) {
                found.insert(name.clone(), host);
            }
        }
        for (name, host) in found {
            if let Some(record) = self.folder.records.machines.get_mut(&name) {
                record.host = Some(host);
            }
        }
        self.folder.save()
    }

    /// Has machines made anew that are there, have not joined, and can do so no more.
    fn replace_lost(&self, changes: &mut [Change]) -> anyhow::Result<()> {
        let now_ms = unix_now().as_nanos() / 1_000_000;
        for change in changes.iter_mut().filter(|change| change.action == Action::Keep) {
            let record = self.folder.records.machines.get(&change.machine);
            let is_lost = match record {
                None => true,
                Some(Record { host: Some(_), .. }) => false,
                Some(record) => self
                    .ask::<InviteView>(&format!("/v1/invites/{}", record.invite))?
                    .is_none_or(|invite| invite.expires_unix_ms <= now_ms),
            };
            if is_lost {
                output::note(format_args!("{} has never joined: it is replaced", change.machine));
                change.action = Action::Replace;
            }
        }
        Ok(())
    }

    /// Asks for the invites of machines that come, and writes down what is asked for and who goes;
    /// returns the invites by machine.
    fn invite(
        &mut self,
        orders: &[Order],
        changes: &[Change],
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let mut invites = BTreeMap::new();
        for change in changes {
            let old = self.folder.records.machines.get(&change.machine);
            let old = old.and_then(|record| record.host.clone());
            if change.action == Action::Remove {
                self.folder.records.machines.remove(&change.machine);
            } else if change.action.begins_one() {
                let of_machine = |order: &&Order| order.machine == change.machine;
                let Some(order) = orders.iter().find(of_machine) else { continue };
                let (invite, record) = self.invited(order)?;
                invites.insert(change.machine.clone(), invite);
                self.folder.records.machines.insert(change.machine.clone(), record);
            } else {
                continue;
            }
            self.folder.records.retired.extend(old);
        }
        // Of machines that went without this program.
        let wanted: BTreeSet<&str> = orders.iter().map(|order| order.machine.as_str()).collect();
        let machines = std::mem::take(&mut self.folder.records.machines);
        for (name, record) in machines {
            if wanted.contains(name.as_str()) {
                self.folder.records.machines.insert(name, record);
            } else {
                self.folder.records.retired.extend(record.host);
            }
        }
        self.folder.save()?;
        Ok(invites)
    }

    fn invited(&self, order: &Order) -> anyhow::Result<(String, Record)> {
        let relay_type = RelayTypeId::new(&order.machine_type)?;
        let role = Role::Relay { region: order.region.clone(), relay_type };
        let request = InviteRequest { role, ttl_ms: INVITE_MS };
        let client = self.client.as_ref().ok_or_else(|| anyhow::anyhow!("no controller"))?;
        let answer: InviteAnswer = client.post("/v1/invites", &request)?;
        let record = Record {
            region: order.region.clone(),
            machine_type: order.machine_type.clone(),
            invite: answer.id,
            host: None,
        };
        Ok((answer.invite, record))
    }

    fn drain_retired(&self) -> anyhow::Result<()> {
        let Some(client) = &self.client else { return Ok(()) };
        let retired = &self.folder.records.retired;
        let hosts = client.get::<Hosts>("/v1/hosts")?.hosts;
        let is_there = |state| !matches!(state, HostState::Revoked);
        let going = hosts.iter().filter(|it| retired.contains(&it.id) && is_there(it.state));
        let going: Vec<_> = going.map(|host| host.id.clone()).collect();
        if !going.is_empty() {
            let names: Vec<&str> = going.iter().map(HostId::as_str).collect();
            output::note(format_args!("drains {}", names.join(", ")));
            drain(client, &going, self.patience)?;
        }
        Ok(())
    }

    fn revoke_retired(&mut self) -> anyhow::Result<()> {
        let Some(client) = &self.client else { return Ok(()) };
        for host in std::mem::take(&mut self.folder.records.retired) {
            known(Some(client.act(&format!("/v1/hosts/{host}/revoke"))))?;
        }
        self.folder.save()
    }

    /// Waits until the controller hears all machines, or for so long; returns the answers.
    fn await_machines(&mut self, changes: &[Change]) -> anyhow::Result<Vec<MachineAnswer>> {
        let begun = Instant::now();
        loop {
            self.learn_hosts()?;
            let hosts = self.ask::<Hosts>("/v1/hosts")?.map(|it| it.hosts).unwrap_or_default();
            let answers: Vec<MachineAnswer> = changes
                .iter()
                .map(|change| {
                    if change.action == Action::Remove {
                        return MachineAnswer::of(change, "removed");
                    }
                    let record = self.folder.records.machines.get(&change.machine);
                    let host = record.and_then(|record| record.host.clone());
                    let view = hosts.iter().find(|view| Some(&view.id) == host.as_ref());
                    let state = view.map_or("not joined", |view| view.state.as_str());
                    MachineAnswer { host, ..MachineAnswer::of(change, state) }
                })
                .collect();
            let is_done = answers.iter().all(|answer| !answer.is_failure());
            if is_done || begun.elapsed() >= self.patience {
                return Ok(answers);
            }
            sleep(ASK_EVERY);
        }
    }
}

/// Returns an answer of the controller; nothing if it does not know the thing, as after it was
/// restored from an older backup.
fn known<T>(answer: Option<Result<T, ClientError>>) -> anyhow::Result<Option<T>> {
    match answer {
        Some(Err(ClientError::Refused { status: 404, .. })) | None => Ok(None),
        Some(answer) => Ok(Some(answer?)),
    }
}

impl MachineAnswer {
    /// Returns what would be done.
    pub(super) fn would(change: &Change, state: &State) -> Self {
        let address = state.addresses.get(&change.machine).cloned();
        Self { address, ..Self::of(change, "") }
    }
}
