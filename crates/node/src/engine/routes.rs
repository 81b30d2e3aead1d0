//! Routes: local ports of the configuration, the remote endpoints that they lead to, and the
//! overlay paths to those.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tradewind_config::packet::DeliveryPolicy;
use tradewind_grant::{Destination, Hop, Nonce, Request, Sealer, SignedGrant};
use tradewind_net::entropy;
use tradewind_net::udp::Target;
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Carriage, Message, Service};
use tradewind_packet::session::{Now, OVERHEAD, PeerId, Table};
use tradewind_plan::service::RelayUsage;
use tradewind_telemetry::limited;
use tradewind_units::{Duration, FlowId, Timestamp};

use super::accounting::Role;
use super::context::Context;
use super::endpoints::{Carrier, Choice, Selection};
use super::forwarding::Forwarding;
use super::groups::Group;
use super::local::Local;
use super::mtu::{FIRST_BYTES, NUMBER_BYTES, SOURCE_BYTES};
use super::nobody;
use super::remotes::Remotes;

/// Most routes of one worker. Chosen: those of any configuration, and as many flows as there may be
/// conversations.
const MAX: usize = 1 << 14;
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
    pub(super) hops: Vec<Hop>,
    pub(super) remote: PeerId,
    pub(super) first: Option<PeerId>,
    flow: FlowId,
    pub(super) next_open: Timestamp,
    /// Datagrams without numbers, and their bytes as sealed.
    pub(super) sent: [u64; 2],
    /// Conversations by application, address of this host, and destination.
    pub(super) sources: BTreeMap<(Target, SocketAddr), u32>,
}

impl Route {
    /// Stops taking replies from `to` once no conversation with it is left: one is over, or has not
    /// begun.
    pub(super) fn leave(&mut self, to: SocketAddr) {
        if !self.sources.keys().any(|(_, known)| *known == to) {
            self.local.end(to);
        }
    }

    /// Forgets a conversation that is over.
    pub(super) fn forget(&mut self, conversation: u32, (source, to): (Target, SocketAddr)) {
        self.sources.remove(&(source, to));
        self.group().into_iter().for_each(|group| group.forget(conversation));
        self.leave(to);
    }

    /// Returns one from `local` to `known`, or, where datagrams are intercepted, to each one's
    /// destination, of which `known` is an example. It leads nowhere yet.
    pub(super) fn new(
        now: Now,
        (local, part): (Local, Part),
        known: SocketAddr,
        delivery: &DeliveryPolicy,
    ) -> Self {
        let to = (!local.is_intercepted()).then_some(known);
        Self {
            local,
            part,
            client: None,
            to,
            known,
            delivery: delivery.clone(),
            end: None,
            hops: Vec::new(),
            remote: nobody(),
            first: None,
            flow: FlowId::new("packet").expect("a short word"),
            next_open: now.steady,
            sent: [0; 2],
            sources: BTreeMap::new(),
        }
    }

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

    /// Returns the longest datagram of an application that its Internet path takes, even if it is
    /// the first of its conversation.
    pub(super) fn longest(&self, remotes: &Remotes) -> Option<u64> {
        let takes = remotes.get(&self.remote)?.mtus.internet.longest()?;
        let numbered = if self.end.is_some() { NUMBER_BYTES } else { 0 };
        let source = if self.to.is_none() { SOURCE_BYTES } else { 0 };
        Some((takes - OVERHEAD - FIRST_BYTES - source - numbered) as u64)
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
    pub(super) fn end_carriage(&self) -> Carriage {
        match self.part {
            Part::Member => Carriage { service: Service::Direct, ..self.carriage() },
            Part::Alone | Part::Head(_) => self.carriage(),
        }
    }

    /// Returns the choice of its service, where its packets are numbered.
    pub(super) fn choice(&self) -> Option<Choice> {
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
    pub(super) fn carrier(&self) -> Carrier {
        match self.part {
            Part::Alone if self.delivery.copies.is_none() => Carrier::of(self.carriage().service),
            Part::Alone | Part::Head(_) | Part::Member => Carrier::Machines,
        }
    }
}

/// All routes, and the groups among them.
pub(crate) struct Routes {
    table: Table<Route>,
    /// Heads of groups, by their flows.
    pub(super) heads: BTreeMap<FlowNumber, u32>,
    /// The sealer of its own paths' headers, if it has a grant.
    pub(super) sealer: Option<Sealer>,
    salt: u16,
}

impl Routes {
    pub(super) fn new(sealer: Option<Sealer>) -> Self {
        Self { table: Table::new(MAX), heads: BTreeMap::new(), sealer, salt: 0 }
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Route> {
        self.table.get(id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Route> {
        self.table.get_mut(id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.table.ids()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Route> {
        self.table.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Route> {
        self.table.values_mut()
    }

    /// Adds a route; `None` when there are too many.
    pub(super) fn add(&mut self, route: Route) -> Option<u32> {
        self.salt = self.salt.wrapping_add(1);
        self.table.insert(self.salt, route)
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Route> {
        self.table.remove(id)
    }

    /// Uses this grant in the paths that it opens from now on; `false` when it opens none.
    pub(super) fn set_grant(&mut self, grant: &SignedGrant) -> bool {
        let Some(sealer) = &mut self.sealer else { return false };
        // It was checked, and the identity stays the same.
        let _taken = sealer.set_grant(grant.clone());
        true
    }

    /// Returns whether a route goes over a neighbour as its first relay.
    pub(super) fn go_over(&self, first: PeerId) -> bool {
        self.values().any(|route| route.first == Some(first))
    }

    /// Returns the neighbours that routes lead to or over.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = PeerId> {
        self.values().flat_map(|route| [Some(route.remote), route.first]).flatten()
    }

    /// Adds the head of the group that sends a flow.
    pub(super) fn add_head(&mut self, flow: FlowNumber, head: u32) {
        self.heads.insert(flow, head);
    }

    /// Returns the ids of the groups' heads.
    pub(super) fn head_ids(&self) -> impl Iterator<Item = u32> {
        self.heads.values().copied()
    }

    /// Returns all groups, by their heads.
    pub(super) fn heads(&self) -> impl Iterator<Item = (u32, &Group)> {
        self.heads.values().filter_map(|head| match &self.get(*head)?.part {
            Part::Head(group) => Some((*head, &**group)),
            Part::Alone | Part::Member => None,
        })
    }

    /// Returns the group that sends a flow.
    pub(super) fn group_of(&mut self, flow: FlowNumber) -> Option<&mut Group> {
        let head = self.heads.get(&flow)?;
        self.table.get_mut(*head).and_then(Route::group)
    }

    /// Takes the head's group out, to be put back with [`Routes::put_group`].
    pub(super) fn take_group(&mut self, head: u32) -> Option<Box<Group>> {
        let route = self.get_mut(head)?;
        match std::mem::replace(&mut route.part, Part::Alone) {
            Part::Head(group) => Some(group),
            other => {
                route.part = other;
                None
            }
        }
    }

    pub(super) fn put_group(&mut self, head: u32, group: Box<Group>) {
        if let Some(route) = self.get_mut(head) {
            route.part = Part::Head(group);
        }
    }

    /// Returns the route to `remote` that carries a conversation of `route`: that route itself, or
    /// a member's.
    pub(super) fn leading_to(&self, route: u32, remote: PeerId) -> Option<&Route> {
        let route = self.get(route)?;
        match &route.part {
            Part::Head(group) => {
                let members = group.members().iter().filter_map(|member| self.get(*member));
                members.into_iter().find(|member| member.remote == remote)
            }
            Part::Alone | Part::Member => Some(route).filter(|route| route.remote == remote),
        }
    }

    /// Records a relay's report, along the path of `label`, of what it has sent for a group's flow.
    pub(super) fn take_bill(
        &mut self,
        remotes: &Remotes,
        now: Timestamp,
        (label, flow): (u32, FlowNumber),
        bill: (Role, RelayUsage),
    ) {
        let head = self.heads.get(&flow).copied();
        if let Some((head, mut group)) = head.and_then(|head| Some((head, self.take_group(head)?)))
        {
            group.take_bill((self, remotes), now, label, bill);
            self.put_group(head, group);
        }
    }

    /// Returns whether a remote endpoint is a member of the group that sends a flow.
    pub(super) fn is_member(&self, flow: FlowNumber, remote: PeerId) -> bool {
        let head = self.heads.get(&flow);
        head.is_some_and(|head| self.leading_to(*head, remote).is_some())
    }

    /// Opens the paths over a first relay again: it has new keys, and may have restarted, which
    /// loses earlier openings.
    pub(super) fn open_again(&mut self, remotes: &mut Remotes, now: Now, first: PeerId) {
        for route in self.table.values_mut().filter(|route| route.first == Some(first)) {
            route.next_open = now.steady;
            if let Some(remote) = remotes.get_mut(&route.remote) {
                remote.may_try_again(now, &route.hops);
            }
        }
    }

    /// Opens overlay paths where none answers.
    pub(super) fn maintain(
        &mut self,
        context: &mut Context,
        (forwarding, remotes): (&mut Forwarding, &mut Remotes),
        now: Now,
    ) {
        let mut up = 0;
        let mut due = Vec::new();
        for (at, route) in self.table.ids().zip(self.table.values()) {
            let is_direct = route.carriage().service == Service::Direct && route.end.is_none();
            let Some(first) = route.first.filter(|_| !is_direct) else { continue };
            let remote = remotes.get(&route.remote);
            if remote.is_some_and(|remote| remote.is_overlay_alive(now)) {
                up += 1;
                continue;
            }
            if now.steady >= route.next_open && context.sessions.is_open(first) {
                let was_tried_last = remote.is_some_and(|remote| remote.has_tried(&route.hops));
                due.push((was_tried_last, at, first));
            }
        }
        // Paths to one remote endpoint over different relays are opened one after the other, in
        // turns.
        due.sort_unstable();
        for (_, at, first) in due {
            let remote = self.get(at).and_then(|route| remotes.get(&route.remote));
            if remote.is_none_or(|remote| !remote.is_trying(now)) {
                self.open(context, (forwarding, remotes), now, (at, first));
            }
        }
        context.counts.paths_up.store(up, std::sync::atomic::Ordering::Relaxed);
    }

    fn open(
        &mut self,
        context: &mut Context,
        (forwarding, remotes): (&mut Forwarding, &mut Remotes),
        now: Now,
        (at, first): (u32, PeerId),
    ) {
        let Some(route) = self.table.get_mut(at) else { return };
        route.next_open = now.steady + OPEN_EVERY;
        let destination = Destination::Address(route.known);
        let Ok(hops) = tradewind_grant::Route::new(route.hops.clone()) else { return };
        let request = Request { flow: &route.flow, destination: &destination, route: &hops };
        let (Some(sealer), Ok(nonce)) = (&mut self.sealer, entropy::bytes()) else { return };
        let sealed = match sealer.seal(now.unix, Nonce::from_entropy(nonce), &request) {
            Ok(sealed) => sealed,
            Err(error) => {
                limited!(warn, context.refusal_lines, None, %error, "no overlay path");
                return;
            }
        };
        let tried = (route.hops.clone(), route.next_open);
        let Some(label) = forwarding.labels.open(now.steady, first) else { return };
        let old = remotes.get_mut(&route.remote);
        if let Some(old) = old.and_then(|remote| remote.try_path(label, tried)) {
            forwarding.labels.drop_label(old);
        }
        context.send_message(first, &Message::Open { label, header: &sealed.bytes });
    }
}
