//! Where routes lead: at first, when members change, and when another relay is nearer.

use std::net::SocketAddr;

use tradewind_config::packet::{Chosen, DeliveryPolicy, Group as GroupConfig};
use tradewind_grant::Hop;
use tradewind_packet::session::{Link, Now, PeerId};
use tradewind_units::Duration;

use super::groups::Group;
use super::local::Local;
use super::neighbours::RouteTarget;
use super::refusals::Refused;
use super::remotes::RemoteEndpoint;
use super::routes::{Part, Route};
use super::{Engine, nobody};
use crate::NodeError;
use crate::handover::Handover;

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
        let (remote, relays, hops) = if self.would_loop(id, &hops) {
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
            if let Some(outbound) = self.outbound.get_mut(*conversation) {
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
}
