//! Routes: local ports of the configuration, the remote endpoints that they lead to, and the
//! overlay paths to those.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tradewind_config::packet::{Chosen, DeliveryPolicy};
use tradewind_grant::{Destination, Hop, Nonce, Request};
use tradewind_net::entropy;
use tradewind_net::udp::Target;
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Carriage, Message, Service};
use tradewind_packet::session::{Link, Now, PeerId};
use tradewind_telemetry::limited;
use tradewind_units::{Duration, FlowId, Timestamp};

use super::ends::{Carrier, Choice, Selection};
use super::groups::Group;
use super::local::Local;
use super::neighbours::RouteTarget;
use super::refusals::Refused;
use super::remotes::RemoteEndpoint;
use super::{Engine, nobody};
use crate::NodeError;

/// Interval of the tries to open an overlay path. Chosen: the opening and the first ping take two
/// round trips, and a path has to be back two seconds after its relay.
const OPEN_EVERY: Duration = Duration::from_secs(1);

/// The relation of a route to others.
#[derive(Debug)]
pub(crate) enum Part {
    /// A route by itself.
    Alone,
    /// A group's route: it has the port, and leads nowhere itself.
    Head(Box<Group>),
    /// A route to a member of a group, without a port.
    Member,
}

/// A path of the configuration, or an application's flow.
pub(crate) struct Route {
    pub(crate) local: Local,
    pub(super) part: Part,
    /// The client of a program's flow, where the flow is for another process.
    pub(super) client: Option<SocketAddr>,
    /// The destination of its datagrams, unless each has its own.
    pub(super) to: Option<SocketAddr>,
    /// A destination for which its overlay path is opened.
    pub(super) known: SocketAddr,
    pub(super) delivery: DeliveryPolicy,
    /// The flow in which a service carries it.
    pub(super) end: Option<FlowNumber>,
    /// The relays and the remote endpoint, as currently known.
    hops: Vec<Hop>,
    pub(super) remote: PeerId,
    first: Option<PeerId>,
    flow: FlowId,
    next_open: Timestamp,
    /// Datagrams without numbers, and their bytes as sealed.
    pub(super) sent: [u64; 2],
    /// Conversations by application, address of this host, and destination.
    pub(super) sources: BTreeMap<(Target, SocketAddr), u32>,
}

impl Route {
    pub(super) fn carriage(&self) -> Carriage {
        self.delivery.carriage
    }

    pub(super) fn hops(&self) -> &[Hop] {
        &self.hops
    }

    /// Returns the first relay.
    pub(super) fn first(&self) -> Option<PeerId> {
        self.first
    }

    /// Returns the group's state at its head.
    pub(super) fn group(&mut self) -> Option<&mut Group> {
        match &mut self.part {
            Part::Head(group) => Some(group),
            Part::Alone | Part::Member => None,
        }
    }

    /// Returns the carriage of packets that its own end sends: to a member goes nothing but the
    /// group's flow.
    fn end_carriage(&self) -> Carriage {
        match self.part {
            Part::Member => Carriage { service: Service::Direct, ..self.carriage() },
            Part::Alone | Part::Head(_) => self.carriage(),
        }
    }

    /// Returns the choice of its service, where its packets are numbered.
    fn choice(&self) -> Option<Choice> {
        if matches!(self.part, Part::Member) {
            // Replies are numbered.
            return Some(Choice::Configured);
        }
        let Carriage { service, budget_ms, .. } = self.carriage();
        let budget = Duration::from_millis(budget_ms.into());
        match (self.delivery.max_loss, service) {
            (Some(loss), _) => {
                let selection = Selection::new(budget, loss, self.delivery.assumed);
                Some(Choice::Selected(Box::new(selection)))
            }
            (None, Service::Forwarding | Service::Caching | Service::Coding) => {
                Some(Choice::Configured)
            }
            (None, Service::Direct) => None,
        }
    }

    /// Returns the carrier of its packets.
    fn carrier(&self) -> Carrier {
        match self.part {
            Part::Alone if self.delivery.copies.is_none() => Carrier::of(self.carriage().service),
            Part::Alone | Part::Head(_) | Part::Member => Carrier::Machines,
        }
    }
}

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
        let to = (!local.is_intercepted()).then_some(known);
        let (delivery, next_open) = (delivery.clone(), now.steady);
        let flow = FlowId::new("packet").expect("a short word");
        let (remote, first, end) = (nobody(), None, None);
        let (hops, sent, sources) = (Vec::new(), [0; 2], BTreeMap::new());
        let route = Route {
            local,
            part,
            client: None,
            to,
            known,
            delivery,
            end,
            hops,
            remote,
            first,
            flow,
            next_open,
            sent,
            sources,
        };
        let salt = self.next_salt();
        let id = self.routes.insert(salt, route).ok_or_else(full)?;
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

    /// Opens the paths over a first relay again: it has new keys, and may have restarted, which
    /// loses earlier openings.
    pub(super) fn open_again(&mut self, now: Now, first: PeerId) {
        for route in self.routes.values_mut().filter(|route| route.first == Some(first)) {
            route.next_open = now.steady;
            if let Some(remote) = self.remotes.get_mut(&route.remote) {
                remote.may_try_again(now, &route.hops);
            }
        }
    }

    /// Opens overlay paths where none answers.
    pub(super) fn maintain_routes(&mut self, now: Now) {
        let mut up = 0;
        let mut due = Vec::new();
        let routes: Vec<u32> = self.routes.ids().collect();
        for at in routes {
            let Some(route) = self.routes.get(at) else { continue };
            let is_direct = route.carriage().service == Service::Direct && route.end.is_none();
            let Some(first) = route.first.filter(|_| !is_direct) else { continue };
            let remote = self.remotes.get(&route.remote);
            if remote.is_some_and(|remote| remote.is_overlay_alive(now)) {
                up += 1;
                continue;
            }
            if now.steady >= route.next_open && self.context.sessions.is_open(first) {
                let was_tried_last = remote.is_some_and(|remote| remote.has_tried(&route.hops));
                due.push((was_tried_last, at, first));
            }
        }
        // Paths to one remote endpoint over different relays are opened one after the other, in
        // turns.
        due.sort_unstable();
        for (_, at, first) in due {
            let remote = self.routes.get(at).and_then(|route| self.remotes.get(&route.remote));
            if remote.is_none_or(|remote| !remote.is_trying(now)) {
                self.open_route(now, at, first);
            }
        }
        self.context.counts.paths_up.store(up, std::sync::atomic::Ordering::Relaxed);
    }

    fn open_route(&mut self, now: Now, at: u32, first: PeerId) {
        let Some(route) = self.routes.get_mut(at) else { return };
        route.next_open = now.steady + OPEN_EVERY;
        let destination = Destination::Address(route.known);
        let Ok(hops) = tradewind_grant::Route::new(route.hops.clone()) else { return };
        let request = Request { flow: &route.flow, destination: &destination, route: &hops };
        let (Some(sealer), Ok(nonce)) = (&mut self.sealer, entropy::bytes()) else { return };
        let sealed = match sealer.seal(now.unix, Nonce::from_entropy(nonce), &request) {
            Ok(sealed) => sealed,
            Err(error) => {
                limited!(warn, self.context.refusal_lines, None, %error, "no overlay path");
                return;
            }
        };
        let (remote, tried) = (route.remote, (route.hops.clone(), route.next_open));
        let Some(label) = self.forwarding.labels.open(now.steady, first) else { return };
        let old = self.remotes.get_mut(&remote);
        let old = old.and_then(|remote| remote.try_path(label, tried));
        if let Some(old) = old {
            self.forwarding.labels.drop_label(old);
        }
        self.context.send_message(first, &Message::Open { label, header: &sealed.bytes });
    }
}
