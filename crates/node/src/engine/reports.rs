//! Status reports of all flows that begin or end here.

use std::collections::BTreeSet;

use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::Service;
use tradewind_packet::session::Now;

use super::context::Context;
use super::conversations::Inbound;
use super::endpoints::{FlowEndpoints, name};
use super::forwarding::Forwarding;
use super::local::Local;
use super::remotes::Remotes;
use super::routes::{Part, Route, Routes};
use crate::status::{Direction, FlowStatus};

/// The parts that a report is made of, borrowed for one call.
pub(super) struct Reporter<'a> {
    pub(super) context: &'a Context,
    pub(super) forwarding: &'a Forwarding,
    pub(super) remotes: &'a Remotes,
    pub(super) routes: &'a Routes,
    pub(super) ends: &'a FlowEndpoints,
}

impl Reporter<'_> {
    /// Returns the status of the flows that begin or end here. The programs that began or
    /// `accepted` them are notified of theirs.
    pub(super) fn flows<'a>(
        &self,
        now: Now,
        accepted: impl Iterator<Item = &'a Inbound>,
    ) -> Vec<FlowStatus> {
        let mut flows = Vec::new();
        let forwarded_bills = self.ends.forwarded_bills();
        for (head, group) in self.routes.heads() {
            let listen = self.routes.get(head).and_then(|route| route.local.address());
            let statuses = group.report(self, now).into_iter();
            flows.extend(statuses.map(|flow| FlowStatus { listen, ..flow }));
        }
        for route in self.routes.values().filter(|route| matches!(route.part, Part::Alone)) {
            let (listen, to) = (route.local.address(), route.to);
            let statuses = match route.end {
                Some(end) => {
                    self.ends.report(end, &self.context.name_of(route.remote), &forwarded_bills)
                }
                None => vec![self.plain(now, route)],
            };
            let from = flows.len();
            let longest = route.longest(self.remotes);
            let statuses = statuses.into_iter();
            flows.extend(statuses.map(|flow| FlowStatus { listen, to, longest, ..flow }));
            if let Local::Flow(held) = &route.local {
                held.0.set_status(&flows[from..]);
            }
        }
        for inbound in accepted {
            if let (Local::Flow(held), Some(end)) = (&inbound.local, inbound.end()) {
                let statuses =
                    self.ends.report(end, &self.context.name_of(inbound.remote), &forwarded_bills);
                held.0.set_status(&statuses);
            }
        }
        let own: BTreeSet<FlowNumber> = self.routes.values().filter_map(|it| it.end).collect();
        for (flow, remote) in self.ends.flows().filter(|(flow, _)| !own.contains(flow)) {
            flows.extend(self.ends.report(flow, &self.context.name_of(remote), &forwarded_bills));
        }
        flows
    }

    /// Returns the status of a route whose packets are not numbered.
    fn plain(&self, now: Now, route: &Route) -> FlowStatus {
        let is_alive = self.remotes.is_overlay_alive(now, route.remote);
        let wanted = route.carriage().service;
        let is_as_wanted = wanted == Service::Direct || is_alive;
        let why =
            if is_as_wanted { "as configured" } else { "the path over the relays does not answer" };
        let [packets, bytes] = route.sent;
        FlowStatus {
            direction: Direction::Sent,
            remote: self.context.name_of(route.remote),
            listen: None,
            to: None,
            service: name(if is_as_wanted { wanted } else { Service::Direct }).to_owned(),
            why: why.to_owned(),
            packets,
            bytes,
            copies: 0,
            resent: 0,
            statistics: None,
            internet_loss: None,
            longest: None,
            billed: None,
        }
    }
}
