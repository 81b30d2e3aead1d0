//! Flows of applications that link this crate: routes that are added and removed while the node
//! runs.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tradewind_config::packet::DeliveryPolicy;
use tradewind_packet::message::Carriage;
use tradewind_packet::session::{Now, PeerId};
use tradewind_telemetry::limited;

use super::Engine;
use super::conversations::{DatagramMeta, Inbound};
use super::local::Local;
use crate::flow::Flow;
use crate::listener::Accepted;
use crate::listener::QueueGuard;
use crate::mailbox::{Command, Mailbox, MailboxGuard, Outgoing};
use crate::record::Outcome;

/// Most flows of one worker. Chosen: as many as conversations, of which each is one.
const MAX: usize = super::conversations::MAX;
/// The only source of a flow.
const SOURCE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Programs that accept conversations, by the destination.
pub(super) type Listeners = BTreeMap<SocketAddr, (u64, QueueGuard)>;

impl Engine {
    /// Carries out the flows' commands.
    pub(crate) fn handle_orders(&mut self, now: Now) {
        for command in self.commands.take() {
            match command {
                Command::Register { flow, client, to, delivery, mailbox } => {
                    self.register(now, (flow, client), (to, *delivery), mailbox);
                }
                Command::Collect { flow } => self.collect(now, flow),
                Command::Close { flow } => self.close(now, flow),
                Command::Listen { number, to, queue } => {
                    self.listeners.insert(to, (number, queue));
                }
                Command::Leave { number, to } => {
                    if self.listeners.get(&to).is_some_and(|(listener, _)| *listener == number) {
                        self.listeners.remove(&to);
                    }
                }
                Command::Members(members) => self.set_members(now, *members),
                Command::Rules(config) => self.set_rules(now, config),
            }
        }
    }

    fn register(
        &mut self,
        now: Now,
        (flow, client): (u64, Option<SocketAddr>),
        (to, delivery): (SocketAddr, DeliveryPolicy),
        held: MailboxGuard,
    ) {
        let mailbox = Arc::clone(&held.0);
        if self.flows.len() == MAX {
            drop(held);
            return mailbox.end("its node has no room for another flow");
        }
        match self.add_route(now, Local::Flow(held), to, &delivery) {
            Ok(route) => {
                self.flows.insert(flow, route);
                if let Some(route) = self.routes.get_mut(route) {
                    route.client = client;
                }
                self.report_open();
            }
            Err(error) => {
                limited!(warn, self.context.refusal_lines, None, %error, "a flow was refused");
                mailbox.end("its node has no room for another neighbour");
            }
        }
    }

    fn collect(&mut self, now: Now, flow: u64) {
        let route = self.flows.get(&flow).copied();
        let inbound = self.accepted.get(&flow).copied();
        let of_route = route.and_then(|id| self.routes.get(id)).map(|route| &route.local);
        let of_inbound = inbound.and_then(|id| self.conversations.inbound.get(id));
        let to = of_inbound.map_or(SOURCE, Inbound::to);
        let local = of_route.or(of_inbound.map(|inbound| &inbound.local));
        let Some(Local::Flow(held)) = local else { return };
        let mut datagrams = std::mem::take(&mut self.collected);
        held.0.collect(&mut datagrams);
        for Outgoing { bytes, is_high_priority } in &datagrams {
            let meta = DatagramMeta { is_high_priority: *is_high_priority, ..DatagramMeta::by(to) };
            match (route, inbound) {
                (Some(id), _) => self.take_application(now, id, meta, bytes),
                (None, Some(id)) => self.take_reply(now, id, meta, bytes),
                (None, None) => {}
            }
        }
        self.collected = datagrams;
    }

    /// Accepts a conversation of `remote` with a destination at which a program listens: it ends in
    /// a flow, if the queue has room.
    pub(super) fn accept(
        &mut self,
        now: Now,
        remote: PeerId,
        ends: (u32, Carriage, SocketAddr),
    ) -> Option<()> {
        let from = self.context.sessions.identity_of(remote)?;
        let (_, queue) = self.listeners.get(&ends.2)?;
        let queue = Some(Arc::clone(&queue.0)).filter(|queue| queue.has_capacity())?;
        let mailbox = Arc::new(Mailbox::new().ok()?);
        mailbox.set_open(true);
        let local = Local::Flow(MailboxGuard(Arc::clone(&mailbox)));
        let id = self.add_inbound(now, Inbound::new(now, local, remote, ends))?;
        let flow = Flow::of_another(mailbox, Arc::clone(&self.commands));
        self.accepted.insert(flow.number(), id);
        queue.put(Accepted { flow, from });
        Some(())
    }

    /// Cleans up after a conversation that ended in a flow.
    pub(super) fn forget_accepted(&mut self, id: u32, local: Local) {
        if let Local::Flow(held) = local {
            self.accepted.retain(|_, inbound| *inbound != id);
            let mailbox = Arc::clone(&held.0);
            drop(held);
            mailbox.end("its conversation is over: the other endpoint has gone or has ended it");
        }
    }

    fn close(&mut self, now: Now, flow: u64) {
        if let Some(id) = self.accepted.remove(&flow) {
            return self.drop_inbound(now, id, Outcome::Closed);
        }
        let Some(id) = self.flows.remove(&flow) else { return };
        let conversations = self.routes.get(id).map(|route| route.sources.values().copied());
        let conversations: Vec<u32> = conversations.into_iter().flatten().collect();
        for conversation in conversations {
            self.report_over(now, id, conversation);
            self.record_outbound(conversation, Outcome::Closed);
            self.conversations.outbound.remove(conversation);
        }
        let Some(route) = self.routes.remove(id) else { return };
        // Its legs stay for a while (`legs`): its last packets may still be in flight, or need
        // recovery.
        self.ends_are_due |= route.end.is_some();
    }

    /// Reports to flows whether the session with their remote endpoint is open.
    pub(super) fn report_open(&self) {
        for route in self.flows.values().filter_map(|id| self.routes.get(*id)) {
            if let Local::Flow(held) = &route.local {
                held.0.set_open(self.context.sessions.is_open(route.remote));
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.commands.close();
    }
}
