//! Lookups for reports, derived from hosts, flows and plans as they change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tradewind_grant::PublicIdentity;
use tradewind_plan::Legs;
use tradewind_units::{FlowId, HostId, SiteId};

use crate::legs;
use crate::record::{FlowRecord, Host, PlanRecord};

/// The lookups.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Index {
    identities: BTreeMap<PublicIdentity, HostId>,
    hosts: BTreeMap<SiteId, BTreeSet<HostId>>,
    flows_from: BTreeMap<SiteId, BTreeSet<FlowId>>,
    flows_to: BTreeMap<SiteId, BTreeSet<FlowId>>,
    next: BTreeMap<u64, BTreeMap<SiteId, Vec<SiteId>>>,
    next_of_packets: BTreeMap<u64, BTreeMap<SiteId, BTreeSet<SiteId>>>,
    legs: BTreeMap<u64, Arc<Legs>>,
}

impl Index {
    /// Returns the name of the host whose agent has this identity.
    pub(crate) fn host_of(&self, identity: &PublicIdentity) -> Option<&HostId> {
        self.identities.get(identity)
    }

    /// Returns the places of hosts, with the names of the hosts there.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&SiteId, &BTreeSet<HostId>)> {
        self.hosts.iter()
    }

    /// Returns the hosts of a place.
    pub(crate) fn hosts_of(&self, place: &SiteId) -> impl Iterator<Item = &HostId> {
        self.hosts.get(place).into_iter().flatten()
    }

    /// Returns the flows that come from a site.
    pub(crate) fn flows_from(&self, site: &SiteId) -> impl Iterator<Item = &FlowId> {
        self.flows_from.get(site).into_iter().flatten()
    }

    /// Returns the destinations of flows, with the flows that go there.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = (&SiteId, &BTreeSet<FlowId>)> {
        self.flows_to.iter()
    }

    /// Returns the places that follow a place on a path of this plan, and the destinations of its
    /// flows from there, first those of paths.
    pub(crate) fn next(&self, plan: u64, from: &SiteId) -> &[SiteId] {
        self.next.get(&plan).and_then(|plan| plan.get(from)).map_or(&[], Vec::as_slice)
    }

    /// Returns the places that follow a place on a path of this plan's packet flows.
    pub(crate) fn next_of_packets<'a>(
        &'a self,
        plan: u64,
        from: &SiteId,
    ) -> impl Iterator<Item = &'a SiteId> + use<'a> {
        let next = self.next_of_packets.get(&plan).and_then(|plan| plan.get(from));
        next.into_iter().flatten()
    }

    /// Returns the legs of this plan's paths, and the direct ones of its flows.
    pub(crate) fn legs(&self, plan: u64) -> Option<&Legs> {
        self.legs.get(&plan).map(AsRef::as_ref)
    }

    /// Replaces a host.
    pub(crate) fn set_host(&mut self, before: Option<&Host>, host: &Host) {
        if let Some(before) = before {
            self.identities.remove(&before.identity);
            take(&mut self.hosts, &before.role.site(), &before.id);
        }
        self.identities.insert(host.identity, host.id.clone());
        self.hosts.entry(host.role.site()).or_default().insert(host.id.clone());
    }

    /// Replaces a flow.
    pub(crate) fn set_flow(&mut self, before: Option<&FlowRecord>, flow: Option<&FlowRecord>) {
        if let Some(before) = before {
            take(&mut self.flows_from, &before.from, &before.id);
            take(&mut self.flows_to, &before.to_site, &before.id);
        }
        if let Some(flow) = flow {
            self.flows_from.entry(flow.from.clone()).or_default().insert(flow.id.clone());
            self.flows_to.entry(flow.to_site.clone()).or_default().insert(flow.id.clone());
        }
    }

    /// Adds a plan.
    pub(crate) fn add_plan(&mut self, plan: &PlanRecord) {
        let mut next: BTreeMap<SiteId, [Vec<SiteId>; 2]> = BTreeMap::new();
        for (flow, path) in plan.paths() {
            for pair in plan.places(flow, path).windows(2) {
                next.entry(pair[0].clone()).or_default()[0].push(pair[1].clone());
            }
            next.entry(flow.from.clone()).or_default()[1].push(flow.to_site.clone());
        }
        let each_once = |(from, [on_paths, direct]): (SiteId, [Vec<SiteId>; 2])| {
            let mut seen = BTreeSet::new();
            let all = on_paths.into_iter().chain(direct);
            (from, all.filter(|place| seen.insert(place.clone())).collect())
        };
        self.next.insert(plan.number, next.into_iter().map(each_once).collect());
        let mut next: BTreeMap<SiteId, BTreeSet<SiteId>> = BTreeMap::new();
        for places in plan.packets.places(&plan.plan) {
            for pair in places.windows(2) {
                next.entry(pair[0].clone()).or_default().insert(pair[1].clone());
            }
        }
        self.next_of_packets.insert(plan.number, next);
        self.legs.insert(plan.number, Arc::new(legs::of_paths(plan)));
    }

    /// Forgets all plans but these.
    pub(crate) fn keep_plans(&mut self, is_kept: impl Fn(u64) -> bool) {
        self.next.retain(|number, _| is_kept(*number));
        self.next_of_packets.retain(|number, _| is_kept(*number));
        self.legs.retain(|number, _| is_kept(*number));
    }
}

/// Takes a name out of a place's.
fn take<Name: Ord>(names: &mut BTreeMap<SiteId, BTreeSet<Name>>, place: &SiteId, name: &Name) {
    if let Some(of_place) = names.get_mut(place) {
        of_place.remove(name);
        if of_place.is_empty() {
            names.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::record::Record;
    use crate::state::State;
    use crate::testing::{Bench, flow, host, identity};

    /// Returns the index of the state's records, applied at once.
    fn anew(state: &State) -> Index {
        let mut index = Index::default();
        state.hosts.values().for_each(|host| index.set_host(None, host));
        state.flows.values().for_each(|flow| index.set_flow(None, Some(flow)));
        state.plans.values().for_each(|plan| index.add_plan(plan));
        index
    }

    #[test]
    fn index_follows_its_records() {
        let mut bench = Bench::in_service();
        assert_eq!(*bench.state().index, anew(bench.state()));
        let index = &bench.state().index;
        assert_eq!(index.host_of(&identity(1)), Some(&host("office-1")));
        let office = SiteId::new("office").unwrap();
        assert_eq!(index.flows_from(&office).count(), 1);
        let number = bench.state().rollout.to.unwrap();
        let names: Vec<_> = index.next(number, &office).iter().map(SiteId::as_str).collect();
        assert_eq!(names, ["gcp:europe-north1", "far7"]);
        bench.event(Event::AddFlow(flow("b", 8)));
        let elsewhere =
            crate::record::FlowRecord { to_site: SiteId::new("far9").unwrap(), ..flow("b", 8) };
        bench.event(Event::AddFlow(elsewhere));
        bench.event(Event::RemoveFlow(flow("a", 7).id));
        bench.event(Event::Drain { host: host("gcp:asia-east1-1"), is_drained: true });
        bench.pass(10);
        bench.plan();
        bench.pass(10);
        assert_eq!(*bench.state().index, anew(bench.state()));
        // A host that joins again under another identity.
        let known = bench.state().hosts[&host("office-1")].clone();
        let other = crate::record::Host { identity: identity(99), ..known };
        bench.controller.apply(Record::Host(other));
        assert_eq!(*bench.state().index, anew(bench.state()));
        assert_eq!(bench.state().index.host_of(&identity(1)), None);
    }
}
