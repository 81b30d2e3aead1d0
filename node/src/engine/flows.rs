//! Flows of applications that link this crate: routes that come and go while the node runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tradewind_packet::session::Now;

use super::Engine;
use super::conversations::Written;
use super::local::Local;
use super::routes::Route;
use crate::config::Course;
use crate::mailbox::{Held, Order, Outgoing};

/// Flows of one worker. Chosen: as many as conversations, of which each is one.
const MOST: usize = super::conversations::MOST;
/// The only source of a flow.
const SOURCE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Engine {
    /// Does what flows have ordered.
    pub(crate) fn obey_orders(&mut self, now: Now) {
        for order in self.desk.take() {
            match order {
                Order::Register { flow, to, course, mailbox } => {
                    self.register(now, flow, (to, *course), mailbox);
                }
                Order::Collect { flow } => self.collect(now, flow),
                Order::Close { flow } => self.close(flow),
                Order::Members(members) => self.set_members(now, *members),
            }
        }
    }

    fn register(&mut self, now: Now, flow: u64, (to, course): (SocketAddr, Course), held: Held) {
        let mailbox = Arc::clone(&held.0);
        if self.flows.len() == MOST {
            drop(held);
            return mailbox.end("its node has no room for another flow");
        }
        match self.add_route(now, Local::Flow(held), to, &course) {
            Ok(route) => {
                self.flows.insert(flow, route);
                self.tell_open();
            }
            Err(error) => {
                tracing::warn!(%error, "a flow was refused");
                mailbox.end("its node has no room for another neighbour");
            }
        }
    }

    fn collect(&mut self, now: Now, flow: u64) {
        let Some(id) = self.flows.get(&flow).copied() else { return };
        let Some(Local::Flow(held)) = self.routes.get(id).map(|route| &route.local) else { return };
        let mut datagrams = std::mem::take(&mut self.collected);
        held.0.collect(&mut datagrams);
        for Outgoing { bytes, is_vital } in &datagrams {
            let written = Written { is_vital: *is_vital, ..Written::by(SOURCE) };
            self.take_application(now, id, written, bytes);
        }
        self.collected = datagrams;
    }

    fn close(&mut self, flow: u64) {
        let route = self.flows.remove(&flow).and_then(|id| self.routes.remove(id));
        let Some(Route { sources, end, .. }) = route else { return };
        for conversation in sources.values() {
            self.outbound.remove(*conversation);
        }
        self.ends_are_due |= end.is_some();
    }

    /// Tells flows whether their far endpoints have agreed on keys.
    pub(super) fn tell_open(&self) {
        for route in self.flows.values().filter_map(|id| self.routes.get(*id)) {
            if let Local::Flow(held) = &route.local {
                held.0.set_open(self.sessions.is_open(route.far));
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.desk.close();
    }
}
