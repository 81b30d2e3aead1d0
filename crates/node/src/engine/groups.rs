//! Groups: datagrams that an application writes to one port go to several remote endpoints `[JQ
//! 3.5]`.
//!
//! A group is a route that has the port, its *head*, and a route without one for each *member*,
//! which leads there as other routes do. Its packets are numbered in one flow. Over the Internet
//! each member gets its own, sealed in its session. Over the relays goes one copy, sealed once for
//! all (`tradewind_packet::group`): the relays of all members' paths serve the flow together, and
//! make as many copies as there are branches.
//!
//! | service | over the Internet | at the last relays |
//! |---|---|---|
//! | forwarding | to each member, or to none | packets are forwarded to the members |
//! | caching (*hybrid multicast*) | to each member | packets are cached for recovery |
//!
//! A member is *in reach* of the relays while it has the key and confirms that a relay serves the
//! flow to it. Others get every packet over the Internet, whatever the service, and over their
//! overlay path where the Internet path is down. Replies come back from each member as in any
//! conversation.

mod joined;
mod reports;
mod send;
#[cfg(test)]
mod send_tests;

use std::collections::{BTreeMap, BTreeSet};

use tradewind_grant::PublicIdentity;
use tradewind_net::entropy;
use tradewind_packet::group::{GroupKey, Secret};
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Carriage, Message};
use tradewind_packet::sender::{Copies, Paths as Over, Reports, SenderFlow};
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::{Duration, Ratio, Timestamp};

use super::accounting::Accounting;
use super::nobody;
use super::paths::Paths;
use super::routes::{Route, Routes};
use super::services::Services;
use crate::NodeError;
use crate::status::FlowStatistics;
pub(super) use joined::Joined;

/// Interval of messages to members and relays. Chosen: that of relays' reports on served flows.
const SEND_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which a member counts as not served. Chosen: of three messages one may get lost.
const SERVED_FOR: Duration = Duration::from_secs(3);
/// Age at which a key is replaced. Chosen: that of sessions' keys.
const KEY_LASTS: Duration = Duration::from_secs(120);
/// Time that members have to learn the next key. Those who have not learned it are out of reach
/// then, for a while.
const KEY_IS_TOLD_FOR: Duration = Duration::from_secs(10);
/// A head's state of its group.
#[derive(Debug)]
pub(crate) struct Group {
    flow: FlowNumber,
    carriage: Carriage,
    /// The members' routes.
    members: Vec<u32>,
    key: GroupKey,
    key_since: Timestamp,
    /// The next key, and the time since when it is announced.
    next_key: Option<(GroupKey, Timestamp)>,
    /// Conversations, with the members that know them.
    known: BTreeSet<(u32, PeerId)>,
    member_states: BTreeMap<PeerId, MemberState>,
    /// The first relay, while some member is in reach.
    ingress: Option<PeerId>,
    next_send: Timestamp,
    sent: Sent,
    /// Reports by relay.
    accounting: Accounting<PublicIdentity>,
}

/// A member's last messages.
#[derive(Debug, Default)]
struct MemberState {
    /// The newest key that it confirmed.
    epoch: Option<u8>,
    /// The time at which it last confirmed that a relay serves the flow to it.
    served: Option<Timestamp>,
    reports: Reports,
    reported: FlowStatistics,
    internet_loss: Option<Ratio>,
}

/// The packets that were sent to all, and their copies.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    packets: u64,
    bytes: u64,
    copies: u64,
    resent: u64,
}

fn draw_key(flow: FlowNumber, epoch: u8) -> Result<GroupKey, NodeError> {
    Ok(GroupKey::new(flow, epoch, Secret(&entropy::bytes()?)))
}

impl Group {
    pub(super) fn new(now: Now, carriage: Carriage) -> Result<Self, NodeError> {
        let flow = FlowNumber(u64::from_be_bytes(entropy::bytes()?));
        Ok(Self {
            flow,
            carriage,
            members: Vec::new(),
            key: draw_key(flow, 0)?,
            key_since: now.steady,
            next_key: None,
            known: BTreeSet::new(),
            member_states: BTreeMap::new(),
            ingress: None,
            next_send: now.steady,
            sent: Sent::default(),
            accounting: Accounting::default(),
        })
    }

    pub(super) fn flow(&self) -> FlowNumber {
        self.flow
    }

    /// Adds the route to a member.
    pub(super) fn add_member(&mut self, route: u32) {
        self.members.push(route);
    }

    pub(super) fn members(&self) -> &[u32] {
        &self.members
    }

    /// Records that a member knows a conversation; it may be sent the key now.
    pub(super) fn note_known(&mut self, conversation: u32, remote: PeerId) {
        if self.known.insert((conversation, remote)) {
            self.next_send = Timestamp::ZERO;
        }
    }

    /// Records that a member has dropped a conversation.
    pub(super) fn note_unknown(&mut self, conversation: u32, remote: PeerId) {
        self.known.remove(&(conversation, remote));
    }

    /// Resets a member that may be another process now.
    pub(super) fn introduce_again(&mut self, remote: PeerId) {
        self.known.retain(|(_, known)| *known != remote);
        if let Some(member_state) = self.member_states.get_mut(&remote) {
            (member_state.epoch, member_state.served) = (None, None);
        }
        self.next_send = Timestamp::ZERO;
    }

    /// Forgets a conversation that has ended.
    pub(super) fn forget(&mut self, conversation: u32) {
        self.known.retain(|(known, _)| *known != conversation);
    }

    fn has_key(&self, member_state: &MemberState) -> bool {
        let next = self.next_key.as_ref().map(|(key, _)| key.epoch());
        let has = |epoch: u8| epoch == self.key.epoch() || Some(epoch) == next;
        member_state.epoch.is_some_and(has)
    }

    fn is_served(&self, now: Now, remote: PeerId) -> bool {
        self.member_states.get(&remote).is_some_and(|member_state| {
            let served = member_state.served.is_some_and(|at| now.steady.since(at) < SERVED_FOR);
            served && self.has_key(member_state)
        })
    }

    pub(super) fn at_sender(&self) -> SenderFlow {
        SenderFlow {
            receiver: None,
            ingress: self.ingress.map(Into::into),
            service: self.carriage.service,
            paths: Over::Overlay,
            copies: Copies::All,
            worth: self.carriage.worth(),
        }
    }

    /// Announces a new key once the current one is old, and switches to it once members have had
    /// time to learn it.
    fn maintain_key(&mut self, now: Now) {
        let knows = |epoch: u8| {
            let served = |member_state: &&MemberState| member_state.served.is_some();
            self.member_states.values().filter(served).all(|known| known.epoch == Some(epoch))
        };
        match &self.next_key {
            Some((key, since)) => {
                let is_late = now.steady.since(*since) >= KEY_IS_TOLD_FOR;
                if (is_late || knows(key.epoch()))
                    && let Some((key, _)) = self.next_key.take()
                {
                    (self.key, self.key_since) = (key, now.steady);
                }
            }
            None if now.steady.since(self.key_since) >= KEY_LASTS => self.renew_key(now),
            None => {}
        }
    }

    /// Announces another key to the members from now on, even if one was being announced.
    fn renew_key(&mut self, now: Now) {
        let newest = self.next_key.as_ref().map_or(&self.key, |(key, _)| key);
        // Without randomness the old key is kept, and this is tried again.
        if let Ok(key) = draw_key(self.flow, newest.epoch().wrapping_add(1)) {
            self.next_key = Some((key, now.steady));
            self.next_send = Timestamp::ZERO;
        }
    }

    /// Follows members and their paths, and sends the members and the relays their messages.
    pub(super) fn maintain(
        &mut self,
        (paths, services): (&mut Paths<'_>, &mut Services),
        routes: &Routes,
        now: Now,
    ) {
        let members: BTreeMap<PeerId, Option<PeerId>> = (self.members.iter())
            .filter_map(|id| routes.get(*id).filter(|route| route.remote != nobody()))
            .map(|route| (route.remote, route.first()))
            .collect();
        let before = (self.member_states.len(), self.known.len());
        self.member_states.retain(|remote, _| members.contains_key(remote));
        self.known.retain(|(_, remote)| members.contains_key(remote));
        if (self.member_states.len(), self.known.len()) != before {
            // Former members can open nothing from the next key on.
            self.renew_key(now);
        }
        self.maintain_key(now);
        let ingress = members.iter().find_map(|(remote, first)| {
            let relay = paths.path_to(now, *remote)?.0;
            (*first == Some(relay) && self.is_served(now, *remote)).then_some(relay)
        });
        if self.ingress != ingress {
            self.ingress = ingress;
            // Without room there are no copies, and every packet goes over the Internet.
            let _ = services.sender.set_flow(self.flow, self.at_sender());
        }
        if now.steady < self.next_send {
            return;
        }
        self.next_send = now.steady + SEND_INTERVAL;
        let (flow, service) = (self.flow, self.carriage.service);
        for remote in members.into_keys() {
            if self.known.iter().any(|(_, known)| *known == remote) {
                let next = self.next_key.as_ref().map(|(key, _)| key);
                for key in [Some(&self.key), next].into_iter().flatten() {
                    let (epoch, key) = (key.epoch(), key.secret());
                    let message = Message::GroupKey { flow, epoch, key };
                    paths.send_to_both((now, &mut services.sender), remote, &message);
                }
            }
            if let Some((relay, label)) = paths.path_to(now, remote) {
                paths.context.send_message(relay, &Message::Join { label, flow, service });
            }
        }
    }

    /// Returns whether a member has the group's packets from the relays that get the copies.
    fn is_in_reach(&self, relay: Option<(PeerId, u32)>, now: Now, remote: PeerId) -> bool {
        let relay = relay.map(|path| path.0);
        relay.is_some() && relay == self.ingress && self.is_served(now, remote)
    }

    /// Records a member's confirmation of a key, and whether relays serve the flow to it.
    pub(super) fn note_confirmed(&mut self, now: Now, member: PeerId, epoch: u8, is_served: bool) {
        let member_state = self.member_states.entry(member).or_default();
        member_state.epoch = Some(epoch);
        member_state.served = is_served.then_some(now.steady);
    }

    /// Returns the routes to the members.
    fn routes_of<'a>(&'a self, routes: &'a Routes) -> impl Iterator<Item = &'a Route> {
        self.members.iter().filter_map(|member| routes.get(*member))
    }
}

#[cfg(test)]
mod tests {
    use tradewind_packet::message::Service;

    use super::super::paths::EITHER_PATH;
    use super::*;
    use tradewind_packet::id::Peer;

    fn at(seconds: u64) -> Now {
        let steady = Timestamp::ZERO + Duration::from_secs(seconds);
        Now { steady, unix: steady }
    }

    fn peer(number: u32) -> PeerId {
        Peer(number).into()
    }

    fn group() -> Group {
        let carriage = Carriage { service: Service::Caching, ..EITHER_PATH };
        let mut group = Group::new(at(0), carriage).unwrap();
        for remote in [1, 2] {
            let member_state = group.member_states.entry(peer(remote)).or_default();
            (member_state.epoch, member_state.served) = (Some(0), Some(at(0).steady));
        }
        group
    }

    fn learns(group: &mut Group, remote: u32, epoch: u8) {
        group.member_states.get_mut(&peer(remote)).unwrap().epoch = Some(epoch);
    }

    #[test]
    fn next_key_after_all_members_confirm() {
        let mut group = group();
        group.maintain_key(at(119));
        assert!(group.next_key.is_none());
        group.maintain_key(at(120));
        learns(&mut group, 1, 1);
        group.maintain_key(at(121));
        assert_eq!(group.key.epoch(), 0, "one does not have it yet");
        assert!(group.member_states.values().all(|member_state| group.has_key(member_state)));
        learns(&mut group, 2, 1);
        group.maintain_key(at(122));
        assert_eq!((group.key.epoch(), group.next_key.is_none()), (1, true));
        assert!(group.member_states.values().all(|member_state| group.has_key(member_state)));
    }

    #[test]
    fn key_change_does_not_wait_for_silent_member() {
        let mut group = group();
        group.maintain_key(at(120));
        learns(&mut group, 1, 1);
        group.maintain_key(at(129));
        assert_eq!(group.key.epoch(), 0);
        group.maintain_key(at(130));
        assert_eq!(group.key.epoch(), 1);
        let served = [1, 2].map(|remote| group.is_served(at(2), peer(remote)));
        assert_eq!(served, [true, false], "who has no key is out of reach");
    }

    #[test]
    fn key_of_removed_member_is_unused() {
        let mut group = group();
        group.maintain_key(at(120));
        group.member_states.remove(&peer(2));
        group.renew_key(at(121));
        learns(&mut group, 1, 1);
        group.maintain_key(at(122));
        assert_eq!(group.key.epoch(), 0);
        learns(&mut group, 1, 2);
        group.maintain_key(at(123));
        assert_eq!(group.key.epoch(), 2);
    }

    #[test]
    fn epochs_wrap() {
        let mut group = group();
        for round in 1..=300_u64 {
            group.maintain_key(at(round * 1000));
            let (epoch, _) = group.next_key.as_ref().map(|(key, at)| (key.epoch(), *at)).unwrap();
            [1, 2].into_iter().for_each(|remote| learns(&mut group, remote, epoch));
            group.maintain_key(at(round * 1000 + 1));
            assert_eq!(u64::from(group.key.epoch()), round % 256);
        }
    }
}
