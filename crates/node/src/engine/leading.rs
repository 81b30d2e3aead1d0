//! Leads routes: at first, when members change, and when another relay is nearer. Begins and ends
//! the legs that they need, and ends what changed rules no longer allow.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use tradewind_config::packet::{
    Chosen, DeliveryPolicy, Group as GroupConfig, Path, TrafficSource, Tunnel,
};
use tradewind_grant::{DestinationRule, Hop};
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Carriage, Message};
use tradewind_packet::sender::Copies;
use tradewind_packet::session::{Link, Now, PeerId};
use tradewind_units::Duration;

use super::endpoints::{Carrier, Choice};
use super::groups::Group;
use super::intercepted::InterceptedLocal;
use super::local::Local;
use super::loops::{check_local_output, would_loop};
use super::neighbours::{Former, RouteTarget};
use super::paths::Paths;
use super::refusals::Refused;
use super::remotes::RemoteEndpoint;
use super::routes::{Part, Route};
use super::tunnel::TunnelLocal;
use super::{Engine, identities, nobody, trust};
use crate::NodeError;
use crate::config::NodeConfig;
use crate::handover::Handover;
use crate::membership::Members;
use crate::record::Outcome;

impl Engine {
    /// Adds a route from `local` to `known`, or, where datagrams are intercepted, to each one's
    /// destination, of which `known` is an example; returns its id.
    pub(super) fn add_route(
        &mut self,
        now: Now,
        local: Local,
        known: SocketAddr,
        delivery: &DeliveryPolicy,
    ) -> Result<u32, NodeError> {
        self.add_part(now, (local, Part::Alone), known, delivery)
    }

    /// Does the same for a part of a group.
    pub(super) fn add_part(
        &mut self,
        now: Now,
        (local, part): (Local, Part),
        known: SocketAddr,
        delivery: &DeliveryPolicy,
    ) -> Result<u32, NodeError> {
        let full = || {
            let problem =
                "too many; expected at most 4096 relays and remote gateways in all".into();
            NodeError::Config { key: "packet".into(), problem }
        };
        let route = Route::new(now, (local, part), known, delivery);
        let id = self.routes.add(route).ok_or_else(full)?;
        if self.update_route(now, id).is_none() {
            self.routes.remove(id);
            return Err(full());
        }
        Ok(id)
    }

    pub(super) fn update_all_routes(&mut self, now: Now) {
        let routes: Vec<u32> = self.routes.ids().collect();
        for id in routes {
            if self.update_route(now, id).is_none() {
                tracing::warn!("a route stays as it was: there are too many neighbours");
            }
        }
    }

    /// Updates a route to its policy's current target; `None` when there is no room for another
    /// neighbour.
    pub(super) fn update_route(&mut self, now: Now, id: u32) -> Option<()> {
        let leads = |route: &&Route| !matches!(route.part, Part::Head(_));
        let Some(route) = self.routes.get(id).filter(leads) else { return Some(()) };
        let RouteTarget { remote, relays, remote_access } =
            self.neighbours.members.resolve(&route.delivery);
        let hops: Vec<Hop> = relays.iter().chain(&remote).copied().collect();
        let (remote, relays, hops) = if would_loop(&self.context, route, &hops) {
            (None, Vec::new(), Vec::new())
        } else {
            (remote, relays, hops)
        };
        let (remote_before, first_before) = (route.remote, route.first());
        let is_as_before = hops == route.hops();
        let first = match relays.first() {
            Some(hop) => Some(self.leg_to(now, *hop)?),
            None => None,
        };
        let peer = match remote {
            Some(hop) => self.leg_to(now, hop)?,
            None => nobody(),
        };
        if is_as_before && (peer, first) == (remote_before, first_before) {
            self.set_access(remote_before, remote_access);
            return Some(());
        }
        self.point(now, id, (peer, first, hops));
        self.set_access(peer, remote_access);
        [Some(remote_before), first_before]
            .into_iter()
            .flatten()
            .for_each(|gone| self.leave_leg(now, gone));
        Some(())
    }

    fn set_access(&mut self, remote: PeerId, round_trip: Option<Duration>) {
        if let Some(remote) = self.remotes.get_mut(&remote) {
            remote.access = round_trip;
        }
    }

    fn leg_to(&mut self, now: Now, hop: Hop) -> Option<PeerId> {
        self.neighbours.leg_to(&mut self.context, now, hop)
    }

    /// Points a route to a remote endpoint over `hops`, of which that is the last.
    pub(super) fn point(
        &mut self,
        now: Now,
        id: u32,
        (remote, first, hops): (PeerId, Option<PeerId>, Vec<Hop>),
    ) {
        self.know_neighbours(&hops);
        let Some(route) = self.routes.get_mut(id) else { return };
        let (before, end) = (route.remote, route.end);
        (route.first, route.hops, route.next_open) = (first, hops, now.steady);
        if before == remote {
            let label = self.remotes.get_mut(&remote).and_then(RemoteEndpoint::leave_path);
            label.into_iter().for_each(|label| self.forwarding.labels.drop_label(label));
            end.into_iter().for_each(|end| self.services.ends.measure_again(end));
            return;
        }
        (route.remote, route.end) = (remote, None);
        let (carriage, carrier, choice) = (route.end_carriage(), route.carrier(), route.choice());
        let copies = Chosen::copies(route.delivery.copies.as_ref());
        for conversation in route.sources.values() {
            if let Some(outbound) = self.conversations.outbound.get_mut(*conversation) {
                outbound.introduce_again();
            }
        }
        self.ends_are_due |= end.is_some();
        if remote == nobody() {
            return;
        }
        self.remotes.add(remote);
        let end = choice
            .and_then(|choice| self.new_end(now, (remote, carriage, copies, carrier), choice));
        if let Some(route) = self.routes.get_mut(id) {
            route.end = end;
        }
    }

    pub(super) fn answered(
        &mut self,
        now: Now,
        peer: PeerId,
        link: Link,
        (round_trip, bytes): (Duration, usize),
    ) {
        match link {
            Link::Internet(_) => {
                let neighbours = &mut self.neighbours;
                if !neighbours.note_answer(&self.context, now, (peer, link), round_trip) {
                    return;
                }
            }
            Link::Overlay(_) => self.refusals.clear(peer, Refused::Path),
        }
        match self.remotes.get_mut(&peer) {
            Some(remote) => remote.note_answer(now, link, (round_trip, bytes)),
            None if self.context.sessions.is_ours(peer) => {
                self.neighbours.legs.note_round_trip(peer, round_trip);
            }
            None => {}
        }
    }

    /// Adds a group: its head, and a route to each member.
    pub(super) fn add_group(
        &mut self,
        now: Now,
        handover: &mut Handover,
        group: &GroupConfig,
    ) -> Result<(), NodeError> {
        let full = || NodeError::Config { key: "group".into(), problem: "too many flows".into() };
        let mut known = Group::new(now, group.carriage)?;
        for (to, delivery) in group.courses() {
            let route = self.add_part(now, (Local::Nowhere, Part::Member), to, &delivery)?;
            known.add_member(route);
        }
        let first = group.courses().next().ok_or_else(full)?;
        let flow = known.flow();
        self.services.sender.set_flow(flow, known.at_sender()).map_err(|_| full())?;
        let mark = self.context.config.delivery_mark();
        let local = Local::open(handover, (group.listen, first.0), false, mark)?;
        let head = Part::Head(Box::new(known));
        let head = self.add_part(now, (local, head), first.0, &first.1)?;
        self.routes.add_head(flow, head);
        Ok(())
    }

    /// Returns the neighbours that need not be pinged now.
    pub(super) fn idle_neighbours(&self) -> Vec<PeerId> {
        let carries = |peer| self.routes.go_over(peer);
        let is_idle = |peer: &PeerId| {
            let is_of_rendezvous = self.rendezvous.is_with(*peer);
            self.neighbours.is_idle(*peer, is_of_rendezvous, carries)
        };
        self.neighbours.legs.peers().filter(is_idle).collect()
    }

    /// Moves sessions to better addresses.
    pub(super) fn maintain_several(&mut self, now: Now) {
        let idle = self.idle_neighbours();
        let moved = self.neighbours.several.note_pings(&mut self.context, now, &idle);
        for (peer, round_trip) in moved {
            if let Some(remote) = self.remotes.get_mut(&peer) {
                remote.is_elsewhere(now, round_trip);
            }
            self.neighbours.legs.set_round_trip(peer, round_trip);
        }
    }

    /// Replaces the members.
    pub(super) fn set_members(&mut self, now: Now, members: Members) {
        let Former { registry, relays } =
            self.neighbours.set_members(&mut self.context, now, members);
        registry.into_iter().for_each(|gone| self.leave_leg(now, gone));
        self.update_all_routes(now);
        relays.into_iter().for_each(|gone| self.leave_leg(now, gone));
    }

    /// Measures relays, has routes follow the results, and looks up the endpoints that they lead
    /// to.
    pub(super) fn maintain_members(&mut self, now: Now) {
        let Self { context, neighbours, routes, remotes, .. } = self;
        let is_there = |route: &Route| {
            remotes.get(&route.remote).is_some_and(|remote| remote.is_there(now))
                || matches!(route.part, Part::Head(_))
        };
        let lead = routes.values().map(|route| (&route.delivery, is_there(route)));
        neighbours.members.maintain_registration(context, now, lead);
        if neighbours.members.maintain(now, |peer| routes.go_over(peer)) {
            self.update_all_routes(now);
        }
    }

    /// Handles a message between endpoints and the registry.
    pub(super) fn take_membership(&mut self, now: Now, from: PeerId, message: Message<'_>) {
        let Self { context, neighbours, routes, .. } = self;
        let asked = routes.values().map(|route| &route.delivery);
        if neighbours.members.handle_message(context, now, (from, message), asked) {
            self.update_all_routes(now);
        }
    }

    /// Ends a leg now, if nothing needs it any more.
    pub(super) fn leave_leg(&mut self, now: Now, peer: PeerId) {
        let is_needed = self.is_retained_near(peer) || self.needed().any(|needed| needed == peer);
        if !is_needed && self.neighbours.legs.has(peer) {
            self.end_leg(now, peer);
        }
    }

    /// Ends legs that nothing has needed for a while.
    pub(super) fn maintain_legs(&mut self, now: Now) {
        if !self.neighbours.legs.is_check_due(now) {
            return;
        }
        let mut needed: BTreeSet<PeerId> = self.needed().collect();
        needed.extend(self.neighbours.legs.peers().filter(|peer| self.is_retained_near(*peer)));
        let gone = self.neighbours.legs.check(&self.context, now, &needed);
        gone.into_iter().for_each(|peer| self.end_leg(now, peer));
    }

    /// Returns whether this node keeps a session with a relay for its own measurements, registry or
    /// rendezvous.
    pub(super) fn is_retained_near(&self, peer: PeerId) -> bool {
        self.neighbours.has(peer) || self.rendezvous.is_with(peer)
    }

    /// Returns the neighbours of routes, paths, flows and conversations.
    pub(super) fn needed(&self) -> impl Iterator<Item = PeerId> {
        let of_routes = self.routes.neighbours();
        let of_paths = self.forwarding.labels.neighbours();
        let of_flows = self.serving.neighbours();
        let of_conversations = self.conversations.inbound_ids.keys().map(|(remote, _)| *remote);
        of_routes.chain(of_paths).chain(of_flows).chain(of_conversations)
    }

    pub(super) fn end_leg(&mut self, now: Now, peer: PeerId) {
        // The path to it that this node has opened needs a leg, too.
        if let Some(label) = self.remotes.get(&peer).and_then(|remote| remote.label) {
            self.forwarding.labels.drop_label(label);
        }
        self.neighbours.legs.end(&mut self.context, peer);
        self.forget(now, peer);
    }

    /// Adds the routes of a path of the configuration: one, or one for each family that is
    /// intercepted.
    pub(super) fn add_path(
        &mut self,
        now: Now,
        handover: &mut Handover,
        path: &Path,
    ) -> Result<(), NodeError> {
        let intercepted = match &path.source {
            TrafficSource::Port { listen, to } => {
                let tells_dscp = Chosen::looks_at_dscp(path.delivery.copies.as_ref());
                let mark = self.context.config.delivery_mark();
                let local = Local::open(handover, (*listen, *to), tells_dscp, mark)?;
                self.add_route(now, local, *to, &path.delivery)?;
                return Ok(());
            }
            TrafficSource::Intercepted(intercepted) => {
                check_local_output(&self.context, intercepted, &path.delivery)?;
                intercepted
            }
            TrafficSource::Tunnel(tunnel) => {
                return self.add_tunnel(now, handover, (tunnel, &path.delivery));
            }
        };
        for is_ipv6 in [false, true] {
            let of_family =
                |rule: &&DestinationRule| rule.range().is_some_and(|at| at.0.is_ipv6() == is_ipv6);
            let rules: Vec<_> =
                intercepted.destinations.iter().filter(of_family).cloned().collect();
            let first =
                rules.first().and_then(|rule| Some((rule.range()?.0, *rule.ports().start())));
            let Some(example) = first.map(SocketAddr::from) else { continue };
            let mark = self.context.config.delivery_mark();
            let local = InterceptedLocal::open(handover, intercepted, (rules, is_ipv6), mark)?;
            self.add_route(now, Local::Intercepted(Box::new(local)), example, &path.delivery)?;
        }
        Ok(())
    }

    pub(super) fn add_tunnel(
        &mut self,
        now: Now,
        handover: &mut Handover,
        (tunnel, delivery): (&Tunnel, &DeliveryPolicy),
    ) -> Result<(), NodeError> {
        let first = tunnel
            .destinations
            .first()
            .and_then(|rule| Some((rule.range()?.0, *rule.ports().start())));
        let Some(example) = first.map(SocketAddr::from) else { return Ok(()) };
        let local = TunnelLocal::new(handover, tunnel)?;
        self.add_route(now, Local::Tunnel(Box::new(local)), example, delivery).map(drop)
    }

    /// Applies the rules, the identities and the grant of `config` from now on; its other settings
    /// are those already in force.
    pub(super) fn set_rules(&mut self, now: Now, config: Arc<NodeConfig>) {
        self.context.config = config;
        self.context.access.set_policy(self.context.config.known_policy());
        self.forwarding.verifier().set_identities(&identities(&self.context.config));
        self.context.sessions.set_identities(identities(&self.context.config));
        self.rendezvous.set_identities(identities(&self.context.config));
        let known: Vec<Hop> = self.routes.values().flat_map(Route::hops).copied().collect();
        self.know_neighbours(&known);
        self.context.access.add_relays(self.neighbours.members.addresses());
        self.context.trust = Arc::new(trust(&self.context.config));
        self.forwarding.verifier().set_trust(Arc::clone(&self.context.trust));
        self.context
            .sessions
            .set_trust(Arc::clone(&self.context.trust), self.context.config.neighbours.clone());
        if let Some(grant) = &self.context.config.grant
            && self.routes.set_grant(grant)
        {
            self.context.sessions.set_shown(now, grant);
            self.rendezvous.deposit_under_grant(&self.context);
        }
        // Sessions that have ended take their paths and conversations along.
        self.dispatch(now);
        let paths = self.forwarding.drop_refused(&self.context);
        let conversations = self.drop_refused_conversations(now, |_| true);
        self.rendezvous.judge_senders_again(&self.context, now);
        if paths + conversations > 0 {
            tracing::info!(paths, conversations, "packets: ended, since rules allow them no more");
        }
    }

    /// Forbids delivery of packets to the addresses of these relays and remote endpoints.
    pub(super) fn know_neighbours(&mut self, hops: &[Hop]) {
        self.context.access.add_relays(hops.iter().map(|hop| hop.address));
    }

    /// Ends the conversations with some remote endpoints that the rules no longer allow; returns
    /// how many.
    pub(super) fn drop_refused_conversations(
        &mut self,
        now: Now,
        is_of: impl Fn(PeerId) -> bool,
    ) -> usize {
        let is_refused = |id: &u32| {
            let inbound = self.conversations.inbound.get(*id);
            inbound.is_some_and(|inbound| is_of(inbound.remote) && !self.rules().may_go_on(inbound))
        };
        let refused: Vec<u32> = self.conversations.inbound.ids().filter(is_refused).collect();
        refused.iter().for_each(|id| self.release(now, *id, Outcome::Revoked));
        refused.len()
    }

    /// Begins an end and returns its outgoing flow.
    fn new_end(
        &mut self,
        now: Now,
        carried: (PeerId, Carriage, Copies, Carrier),
        choice: Choice,
    ) -> Option<FlowNumber> {
        let Self { context, forwarding, remotes, services, neighbours, .. } = self;
        let around = (&mut Paths { context, forwarding, remotes }, &neighbours.legs);
        services.new_end(around, now, carried, choice)
    }

    pub(super) fn maintain_ends(&mut self, now: Now) {
        let Self { context, forwarding, remotes, services, neighbours, .. } = self;
        let paths = &mut Paths { context, forwarding, remotes };
        services.maintain_ends(paths, &neighbours.legs, now);
    }

    /// Has groups follow their members and paths.
    pub(super) fn maintain_groups(&mut self, now: Now) {
        let Self { context, forwarding, remotes, services, routes, .. } = self;
        let paths = &mut Paths { context, forwarding, remotes };
        for head in routes.head_ids().collect::<Vec<_>>() {
            let Some(mut group) = routes.take_group(head) else { continue };
            group.maintain((paths, services), routes, now);
            routes.put_group(head, group);
        }
    }
}
