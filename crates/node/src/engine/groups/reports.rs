//! Status reports of a group at its sender: a flow to each member.

use tradewind_packet::message::{Report, Service};
use tradewind_packet::session::{Now, PeerId};
use tradewind_plan::service::RelayUsage;
use tradewind_units::{Ratio, Timestamp};

use super::super::accounting::Role;
use super::super::endpoints::{ForwardedBills, name};
use super::super::remotes::Remotes;
use super::super::reports::Reporter;
use super::super::routes::{Route, Routes};
use super::Group;
use crate::status::{Billed, Direction, FlowStatus};

impl Group {
    /// Records a member's report on the flow.
    pub(in super::super) fn note_report(&mut self, from: PeerId, report: Report) {
        if let Some(member_state) = self.member_states.get_mut(&from) {
            if report.sums.expected / 2 > self.sent.packets {
                return;
            }
            let Some(news) = member_state.reports.take(report) else { return };
            member_state.reported.add(&news);
            let share = news.lost_by_internet as f64 / news.expected as f64;
            member_state.internet_loss = Ratio::new(share).ok();
        }
    }

    /// Counts a copy for all members.
    pub(in super::super) fn note_copy(&mut self, resent: u8) {
        self.sent.copies += 1;
        self.sent.resent += u64::from(resent > 0);
    }

    /// Records a relay's report, along the path of `label`, of what it has sent for the flow. Each
    /// relay's sums count once, over however many paths they come.
    pub(in super::super) fn take_bill(
        &mut self,
        (routes, remotes): (&Routes, &Remotes),
        now: Timestamp,
        label: u32,
        (role, report): (Role, RelayUsage),
    ) {
        let leads_there = |route: &&Route| {
            remotes.get(&route.remote).is_some_and(|remote| remote.label == Some(label))
        };
        let relay = self.routes_of(routes).find(leads_there).and_then(|route| {
            let relays = route.hops().split_last()?.1;
            if role == Role::Egress { relays.last() } else { relays.first() }
        });
        if let Some(from) = relay.map(|relay| (role, relay.identity)) {
            self.accounting.take(now, from, report);
        }
    }

    /// Returns the status of the flow at each member, and of the replies. What is the same for all
    /// is listed with the first.
    pub(in super::super) fn report(&self, reporter: &Reporter<'_>, now: Now) -> Vec<FlowStatus> {
        let mut statuses = Vec::new();
        for (place, route) in self.routes_of(reporter.routes).enumerate() {
            let (is_first, none) = (place == 0, ForwardedBills::default());
            let sent = self.report_member(reporter, now, route);
            let (copies, resent) = (self.sent.copies, self.sent.resent);
            statuses.push(FlowStatus {
                copies: if is_first { copies } else { 0 },
                resent: if is_first { resent } else { 0 },
                billed: is_first.then(|| self.accounting.billed()),
                ..sent
            });
            let remote = reporter.context.name_of(route.remote);
            let replies = route.end.map(|end| reporter.ends.report(end, &remote, &none));
            let came =
                |flow: &FlowStatus| flow.direction == Direction::Received && flow.packets > 0;
            let replies = replies.into_iter().flatten().filter(came);
            statuses.extend(replies.map(|flow| FlowStatus { to: route.to, ..flow }));
        }
        statuses
    }

    fn report_member(&self, reporter: &Reporter<'_>, now: Now, route: &Route) -> FlowStatus {
        let member_state = self.member_states.get(&route.remote);
        let is_up = reporter.remotes.is_overlay_alive(now, route.remote);
        let relay = reporter.remotes.path_to(&reporter.forwarding.labels, now, route.remote);
        let is_in_reach = self.is_in_reach(relay, now, route.remote);
        let why = match (is_up, is_in_reach) {
            (false, _) => "the path over the relays does not answer",
            (true, false) => "it is not known to be served over the relays",
            (true, true) => "as configured",
        };
        let service = if is_in_reach { self.carriage.service } else { Service::Direct };
        FlowStatus {
            direction: Direction::Sent,
            remote: reporter.context.name_of(route.remote),
            listen: None,
            to: route.to,
            service: name(service).to_owned(),
            why: why.to_owned(),
            packets: self.sent.packets,
            bytes: self.sent.bytes,
            copies: 0,
            resent: 0,
            statistics: Some(
                member_state.map(|member_state| member_state.reported).unwrap_or_default(),
            ),
            internet_loss: member_state.and_then(|member_state| member_state.internet_loss),
            longest: route.longest(reporter.remotes),
            billed: None::<Billed>,
        }
    }
}
