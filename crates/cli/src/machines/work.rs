//! The changes, done by Terraform and by the controller's API.
//!
//! Order: ask for invites and write them down, drain what goes, have Terraform make and remove,
//! and only then revoke. A run that is cut off at any point is finished by the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Instant;

use tradewind_config::MachinesConfig;
use tradewind_control::record::Role;
use tradewind_controller::view::{
    HostState, Hosts, InviteAnswer, InviteRequest, InviteView, Status,
};
use tradewind_controller::{Client, ClientError};
use tradewind_machines::{Order, document};
use tradewind_stream::clock::unix_now;
use tradewind_units::{Duration, HostId, RelayTypeId};

use super::changes::{Action, Change, changes};
use super::folder::{Folder, Record};
use super::show::MachineAnswer;
use super::terraform::{Refreshed, Resource, State, Terraform};
use crate::hosts::drain;
use crate::output::{self, BadFile};

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
        self.check_controller()?;
        check_sections(config, &self.terraform.state()?)?;
        let regions = orders.iter().map(|order| order.region.clone());
        self.folder.records.regions.extend(regions);
        self.folder.save()?;
        let records = &self.folder.records;
        self.terraform.prepare(&document(config, orders, &records.tag, &records.regions))?;
        // A machine that somebody has removed is to be made again, with an invite of its own.
        let Refreshed { state, forced } = self.terraform.refreshed()?;
        self.learn_hosts()?;
        let mut changes = changes(orders, &state, &self.folder.records.machines, &forced)?;
        self.replace_lost(&mut changes)?;
        let invites = self.invite(orders, &changes, &state)?;
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
        let none = BTreeSet::new();
        let changes = changes(&[], &state, &self.folder.records.machines, &none)?;
        if self.client.is_some()
            && let Err(error) = self.check_controller()
        {
            output::note(format_args!("hosts are neither drained nor revoked: {error:#}"));
            self.client = None;
        }
        if self.client.is_some() {
            self.learn_hosts()?;
        }
        for record in std::mem::take(&mut self.folder.records.machines).into_values() {
            self.folder.records.retire(Some(record));
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

    /// Refuses a controller that is not the one that the machines have joined: its hosts of the
    /// same names are others.
    fn check_controller(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.ask::<Status>("/v1/status")? else { return Ok(()) };
        let identity = status.identity.to_string();
        match &self.folder.records.controller {
            Some(known) if *known != identity => {
                let problem =
                    format!("the machines belong to the controller {known}, not {identity}");
                Err(BadFile(problem).into())
            }
            Some(_) => Ok(()),
            None => {
                self.folder.records.controller = Some(identity);
                self.folder.save()
            }
        }
    }

    /// Writes down who has used invites.
    fn learn_hosts(&mut self) -> anyhow::Result<()> {
        for id in self.folder.records.superseded.clone() {
            let invite: Option<InviteView> = self.ask(&format!("/v1/invites/{id}"))?;
            if invite.as_ref().is_none_or(|it| it.host.is_some() || has_expired(it)) {
                self.folder.records.superseded.remove(&id);
                self.folder.records.retired.extend(invite.and_then(|invite| invite.host));
            }
        }
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

    /// Has machines made anew that are there and of no use: they have not joined and can do so no
    /// more, or the controller trusts their hosts no more.
    fn replace_lost(&self, changes: &mut [Change]) -> anyhow::Result<()> {
        let hosts = self.ask::<Hosts>("/v1/hosts")?.map(|it| it.hosts).unwrap_or_default();
        let is_trusted = |host: &HostId| {
            hosts.iter().any(|view| view.id == *host && view.state != HostState::Revoked)
        };
        for change in changes.iter_mut().filter(|change| change.action == Action::Keep) {
            let record = self.folder.records.machines.get(&change.machine);
            let is_lost = match record {
                None => true,
                Some(Record { host: Some(host), .. }) => !is_trusted(host),
                Some(record) => self
                    .ask::<InviteView>(&format!("/v1/invites/{}", record.invite))?
                    .is_none_or(|invite| has_expired(&invite)),
            };
            if is_lost {
                let name = &change.machine;
                output::note(format_args!("{name} is no host of the overlay: it is replaced"));
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
        state: &State,
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let mut invites = BTreeMap::new();
        for change in changes.iter().filter(|change| change.action.begins_one()) {
            let of_machine = |order: &&Order| order.machine == change.machine;
            let Some(order) = orders.iter().find(of_machine) else { continue };
            let (invite, mut record) = self.invited(order)?;
            record.replaces = state.machine(&change.machine).map(|resource| resource.id.clone());
            invites.insert(change.machine.clone(), invite);
            let old = self.folder.records.machines.insert(change.machine.clone(), record);
            self.folder.records.retire(old);
        }
        // Those that are no longer in the file.
        let wanted: BTreeSet<&str> = orders.iter().map(|order| order.machine.as_str()).collect();
        let machines = std::mem::take(&mut self.folder.records.machines);
        for (name, record) in machines {
            if wanted.contains(name.as_str()) {
                self.folder.records.machines.insert(name, record);
            } else {
                self.folder.records.retire(Some(record));
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
            replaces: None,
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

/// Returns whether nobody can join by an invite any more.
fn has_expired(invite: &InviteView) -> bool {
    u128::from(invite.expires_unix_ms) <= u128::from(unix_now().as_nanos() / 1_000_000)
}

/// Refuses a file without the section of a cloud that still has machines.
fn check_sections(config: &MachinesConfig, state: &State) -> anyhow::Result<()> {
    let clouds =
        [("gcp", "google_", config.gcp.is_some()), ("azure", "azurerm_", config.azure.is_some())];
    for (section, kinds, is_there) in clouds {
        if !is_there && state.resources.iter().any(|it| it.kind.starts_with(kinds)) {
            let problem = format!("`[{section}]` is missing, and machines are still there");
            return Err(BadFile(problem).into());
        }
    }
    Ok(())
}

/// Returns an answer of the controller; nothing if it does not know the thing, as after it was
/// restored from an older backup, or the thing is as it should be.
fn known<T>(answer: Option<Result<T, ClientError>>) -> anyhow::Result<Option<T>> {
    match answer {
        Some(Err(ClientError::Refused { status: 404 | 409, .. })) | None => Ok(None),
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
