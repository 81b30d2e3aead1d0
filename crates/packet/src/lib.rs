//! Packet services as state machines, and their wire format `[JQ 3, 4]`: forwarding, caching, and
//! coding with cooperative recovery.
//!
//! One machine for each role, pure: datagrams and times come in, datagrams and events go out.
//! Whoever drives them puts sockets, sessions and sealing around them; a simulation and a fuzzer
//! run the same code.
//!
//! | module | holds |
//! |---|---|
//! | [`message`] | what is said, byte by byte in `docs/packet-wire.md` |
//! | [`sender`] | packets to the Internet path, copies to the ingress relay; which packets are vital |
//! | [`ingress`] | copies in, packets and repair packets out: Algorithm 1 of [JQ A] |
//! | [`egress`] | what is kept near receivers; recovery |
//! | [`receiver`] | loss detection, first copy wins, helper's packets |
//! | [`group`] | one seal for all members of a group |
//! | [`rendezvous`] | packets that wait at a relay until their receiver is online |
//! | [`session`] | who may send datagrams to whom: handshakes, sealed datagrams, replay, addresses |
//! | [`fragment`] | long datagrams, cut and joined |
//! | [`order`] | packets put in order where they leave |
//! | [`path_mtu`] | how long a datagram may be on a path |
//! | [`event`] | what machines tell of themselves: metrics come from there alone |
//! | [`budget`], [`store`], [`outbox`] | what bounds requests, memory and queues |
//!
//! All have the same verbs:
//!
//! ```
//! use tradewind_packet::id::{FlowNumber, Peer};
//! use tradewind_packet::message::{Class, Service};
//! use tradewind_packet::sender::{Copies, Paths, Sender, SenderConfig, SenderFlow};
//! use tradewind_units::Timestamp;
//!
//! let (flow, now) = (FlowNumber(1), Timestamp::ZERO);
//! let mut sender = Sender::new(SenderConfig::default());
//! let over = SenderFlow {
//!     receiver: Some(Peer(1)),
//!     ingress: Some(Peer(2)),
//!     service: Service::Caching,
//!     paths: Paths::Overlay,
//!     copies: Copies::All,
//!     worth: None,
//! };
//! sender.set_flow(flow, over).expect("there is room");
//! sender.send(now, flow, Class::Usual, b"sealed").expect("it is neither empty nor too long");
//! // One datagram for the Internet path, a copy for the ingress relay.
//! assert_eq!(sender.poll_transmit().expect("the packet").to, Peer(1));
//! assert_eq!(sender.poll_transmit().expect("the copy").to, Peer(2));
//! ```
//!
//! Around that: `handle_datagram` for what comes in, `poll_event`, and `poll_timeout`, which says
//! when to call `handle_timeout` and what for. Receivers have `poll_delivery` besides. Times must
//! not go back; an earlier one only delays.
//!
//! Peers are sessions: a machine trusts that what is said to come from a peer does, and that nobody
//! between has altered it. That a payload is what its sender sealed it asks
//! [`Genuine`](id::Genuine).
//!
//! Not here: which service a flow gets (`plan::service`).

pub mod budget;
mod early;
pub mod egress;
pub mod event;
pub mod fragment;
pub mod group;
pub mod id;
pub mod ingress;
pub mod message;
mod noise;
mod numbered;
pub mod order;
pub mod outbox;
pub mod path_mtu;
pub mod receiver;
pub mod rendezvous;
mod room;
mod round_trip;
pub mod sender;
pub mod session;
mod shares;
pub mod store;
mod tally;
mod timers;
mod window;
