//! Status reports of a group at its sender: a flow to each member.

use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Feedback, Service};
use tradewind_packet::session::{Now, PeerId};
use tradewind_plan::service::RelayUsage;
use tradewind_units::{Ratio, Timestamp};

use super::super::Engine;
use super::super::accounting::Role;
use super::super::ends::{ForwardedBills, name};
use super::super::routes::{Part, Route};
use super::Group;
use crate::status::{Billed, Direction, FlowStatus};

impl Engine {
    /// Records a member's report on the flow; `false` when the flow is no group's.
    pub(in super::super) fn note_group_report(&mut self, from: PeerId, report: &Feedback) -> bool {
        let Some(group) = self.group_of(report.flow) else { return false };
        if let Some(member_state) = group.member_states.get_mut(&from) {
            member_state.reported.add(report);
            let share = report.lost_by_internet as f64 / report.expected.max(1) as f64;
            member_state.internet_loss = Ratio::new(share).ok();
        }
        true
    }

    /// Counts a copy for all members.
    pub(in super::super) fn note_group_copy(&mut self, flow: FlowNumber, resent: u8) {
        if let Some(group) = self.group_of(flow) {
            group.sent.copies += 1;
            group.sent.resent += u64::from(resent > 0);
        }
    }

    /// Records a relay's report, along the path of `label`, of what it has sent for a group's flow.
    /// Each relay's sums count once, over however many paths they come.
    pub(in super::super) fn take_group_bill(
        &mut self,
        now: Timestamp,
        (label, flow): (u32, FlowNumber),
        (role, report): (Role, RelayUsage),
    ) {
        let Some(head) = self.groups.get(&flow).copied() else { return };
        let leads_there = |route: &&Route| {
            self.remotes.get(&route.remote).is_some_and(|remote| remote.label == Some(label))
        };
        let relay = self.members_of(head).find(leads_there).and_then(|route| {
            let relays = route.hops().split_last()?.1;
            if role == Role::Egress { relays.last() } else { relays.first() }
        });
        let Some(from) = relay.map(|relay| (role, relay.identity)) else { return };
        if let Some(group) = self.group_of(flow) {
            group.accounting.take(now, from, report);
        }
    }

    /// Returns the routes to the members of a group.
    fn members_of(&self, head: u32) -> impl Iterator<Item = &Route> {
        let members = match self.routes.get(head).map(|route| &route.part) {
            Some(Part::Head(group)) => group.members(),
            _ => &[],
        };
        members.iter().filter_map(|member| self.routes.get(*member))
    }

    /// Returns the status of a group's flow at each member, and of the replies. What is the same
    /// for all is listed with the first.
    pub(in super::super) fn report_group(
        &self,
        now: Now,
        head: u32,
        group: &Group,
    ) -> Vec<FlowStatus> {
        let mut statuses = Vec::new();
        for (place, route) in self.members_of(head).enumerate() {
            let (is_first, none) = (place == 0, ForwardedBills::default());
            let sent = self.report_member(now, group, route);
            let (copies, resent) = (group.sent.copies, group.sent.resent);
            statuses.push(FlowStatus {
                copies: if is_first { copies } else { 0 },
                resent: if is_first { resent } else { 0 },
                billed: is_first.then(|| group.accounting.billed()),
                ..sent
            });
            let replies = route.end.map(|end| {
                self.services.ends.report(end, &self.context.name_of(route.remote), &none)
            });
            let came =
                |flow: &FlowStatus| flow.direction == Direction::Received && flow.packets > 0;
            let replies = replies.into_iter().flatten().filter(came);
            statuses.extend(replies.map(|flow| FlowStatus { to: route.to, ..flow }));
        }
        statuses
    }

    fn report_member(&self, now: Now, group: &Group, route: &Route) -> FlowStatus {
        let member_state = group.member_states.get(&route.remote);
        let is_up = self.remotes.is_overlay_alive(now, route.remote);
        let is_in_reach = self.is_in_reach(now, group, route.remote);
        let why = match (is_up, is_in_reach) {
            (false, _) => "the path over the relays does not answer",
            (true, false) => "it is not known to be served over the relays",
            (true, true) => "as configured",
        };
        let service = if is_in_reach { group.carriage.service } else { Service::Direct };
        FlowStatus {
            direction: Direction::Sent,
            remote: self.context.name_of(route.remote),
            listen: None,
            to: route.to,
            service: name(service).to_owned(),
            why: why.to_owned(),
            packets: group.sent.packets,
            bytes: group.sent.bytes,
            copies: 0,
            resent: 0,
            statistics: Some(
                member_state.map(|member_state| member_state.reported).unwrap_or_default(),
            ),
            internet_loss: member_state.and_then(|member_state| member_state.internet_loss),
            longest: self.longest(route),
            billed: None::<Billed>,
        }
    }
}
