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
use super::mtu::Mtus;
use super::services::SELF;
use super::{DEAD_AFTER, Engine};
use crate::NodeError;

/// Interval of the tries to open an overlay path. Chosen: the opening and the first ping take two
/// round trips, and a path has to be back two seconds after its relay.
const OPEN_EVERY: Duration = Duration::from_secs(1);

/// Silence after which a remote endpoint counts as gone. Chosen: four pings over each path, so that
/// datagrams take the original path again within a second.
const GONE_AFTER: Duration = Duration::from_millis(800);

/// A remote endpoint, and the state of the paths to it.
#[derive(Debug, Default)]
pub(super) struct RemoteEndpoint {
    /// The overlay path to it on which a message came last.
    pub(super) label: Option<u32>,
    overlay_last_received: Option<Timestamp>,
    internet_last_received: Option<Timestamp>,
    /// The MTUs of both paths.
    pub(super) mtus: Mtus,
    /// The smoothed round trip of the Internet path, and that over the relays.
    pub(super) round_trip: Option<Duration>,
    pub(super) overlay_round_trip: Option<Duration>,
    /// The round trip between it and the relay near it, if it is known.
    pub(super) access: Option<Duration>,
    /// The relays that were tried last, and until when no others are tried.
    tried: Option<(Vec<Hop>, Timestamp)>,
}

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

/// Returns the target of a route while its remote endpoint is not known. No session has this
/// number.
pub(super) fn nobody() -> PeerId {
    SELF.into()
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
            label.into_iter().for_each(|label| self.drop_label(label));
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
        self.remotes.entry(remote).or_default();
        let end = choice
            .and_then(|choice| self.new_end(now, remote, (carriage, copies, carrier), choice));
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
        if let Link::Internet(_) = link {
            if !self.is_of_its_address(peer, link) {
                return;
            }
            self.several.note_answer(now.steady, peer, round_trip);
            self.members.note_answer(now.steady, peer, round_trip);
        }
        let smooth = |before: Option<Duration>| match before {
            Some(before) => (before * 7 + round_trip) / 8,
            None => round_trip,
        };
        if let Some(remote) = self.remotes.get_mut(&peer) {
            let last_received = match link {
                Link::Internet(_) => &mut remote.internet_last_received,
                Link::Overlay(_) => &mut remote.overlay_last_received,
            };
            *last_received = Some(now.steady);
            remote.mtus.arrived(link, bytes);
        }
        if let Link::Overlay(_) = link {
            self.refusals.path_answers(peer);
        }
        match (self.remotes.get_mut(&peer), link) {
            (Some(remote), Link::Overlay(_)) => {
                remote.overlay_round_trip = Some(smooth(remote.overlay_round_trip));
            }
            (Some(remote), Link::Internet(_)) => {
                remote.round_trip = Some(smooth(remote.round_trip))
            }
            (None, _) => {
                let leg = smooth(self.leg_round_trips.get(&peer).copied());
                if self.sessions.is_ours(peer) {
                    self.leg_round_trips.insert(peer, leg);
                }
            }
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
            if now.steady >= route.next_open && self.sessions.is_open(first) {
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
        self.counts.paths_up.store(up, std::sync::atomic::Ordering::Relaxed);
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
                limited!(warn, self.refusal_lines, None, %error, "no overlay path");
                return;
            }
        };
        let (remote, tried) = (route.remote, (route.hops.clone(), route.next_open));
        let Some(label) = self.new_path(now, first) else { return };
        let old = self.remotes.get_mut(&remote).and_then(|remote| {
            remote.tried = Some(tried);
            remote.label.replace(label)
        });
        if let Some(old) = old {
            self.drop_label(old);
        }
        self.send_message(first, &Message::Open { label, header: &sealed.bytes });
    }
}

impl RemoteEndpoint {
    /// Returns whether it answers over any path.
    pub(super) fn is_there(&self, now: Now) -> bool {
        let last_received = self.internet_last_received.max(self.overlay_last_received);
        last_received.is_some_and(|at| now.steady.since(at) < GONE_AFTER)
    }

    /// Moves it to another of its addresses, which was measured.
    pub(super) fn is_elsewhere(&mut self, now: Now, round_trip: Option<Duration>) {
        (self.internet_last_received, self.round_trip) = (Some(now.steady), round_trip);
        self.mtus.internet.begin_again(now.steady);
    }

    /// Records a path along which relays serve a flow, and which has not answered here yet: it
    /// counts as alive until its answer is due.
    pub(super) fn presume_path(&mut self, now: Now, label: u32) {
        if self.overlay_last_received.is_none() {
            (self.label, self.overlay_last_received) = (Some(label), Some(now.steady));
        }
    }

    /// Leaves the path, since other relays are to be used. Returns its label, which the caller has
    /// to drop.
    fn leave_path(&mut self) -> Option<u32> {
        (self.overlay_last_received, self.overlay_round_trip, self.tried) = (None, None, None);
        self.label.take()
    }

    /// Returns whether a path was requested just now: it has its time to answer, and serves all
    /// that goes there.
    fn is_trying(&self, now: Now) -> bool {
        self.tried.as_ref().is_some_and(|(_, until)| now.steady < *until)
    }

    /// Returns whether the path requested last goes over these relays.
    fn has_tried(&self, hops: &[Hop]) -> bool {
        self.tried.as_ref().is_some_and(|(tried, _)| tried == hops)
    }

    /// Stops waiting for the answer to an opening over these relays.
    fn may_try_again(&mut self, now: Now, hops: &[Hop]) {
        if let Some((_, until)) = self.tried.as_mut().filter(|(tried, _)| tried == hops) {
            *until = now.steady;
        }
    }

    pub(super) fn is_alive(&self, now: Now) -> bool {
        self.is_internet_alive(now) || self.is_overlay_alive(now)
    }

    pub(super) fn is_internet_alive(&self, now: Now) -> bool {
        self.internet_last_received.is_some_and(|at| now.steady.since(at) < DEAD_AFTER)
    }

    pub(super) fn is_overlay_alive(&self, now: Now) -> bool {
        self.overlay_last_received.is_some_and(|at| now.steady.since(at) < DEAD_AFTER)
    }
}
