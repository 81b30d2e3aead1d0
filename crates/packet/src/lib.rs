//! Packet services as state machines, and their wire format `[JQ 3, 4]`: forwarding, caching, and
//! coding with cooperative recovery.
//!
//! Each role has one state machine without I/O: datagrams and times in, datagrams and events out.
//! The caller adds sockets, sessions and sealing; a simulation and a fuzzer run the same code.
//!
//! | module | holds |
//! |---|---|
//! | [`message`] | the wire format, byte by byte in `docs/reference/wire-packets.md` |
//! | [`sender`] | packets to the Internet path, copies to the ingress relay; which packets have high priority |
//! | [`ingress`] | copies in, packets and repair packets out: Algorithm 1 of [JQ A] |
//! | [`egress`] | packets kept near receivers; recovery |
//! | [`receiver`] | loss detection, deduplication, packets lent as a helper |
//! | [`group`] | one seal for all members of a group |
//! | [`rendezvous`] | packets that wait at a relay until their receiver is online |
//! | [`session`] | authenticated neighbours: handshakes, sealed datagrams, replay, addresses |
//! | [`label`] | overlay paths by label: the forwarding table of a relay |
//! | [`fragment`] | long datagrams, cut and joined |
//! | [`order`] | packets put in order where they leave |
//! | [`path_mtu`] | the longest datagram that a path takes |
//! | [`event`] | events of the machines: the only source of metrics |
//! | [`budget`], [`store`], [`outbox`] | bounds on requests, memory and queues |
//! | `early` | packets of flows that are not served yet |
//! | `numbered`, `shares` | numbered values of several owners; bounded storage that owners share |
//! | `round_trip`, `window` | a smoothed round trip; the sequences that have come |
//!
//! All have the same methods:
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
//! sender.send(now, flow, Class::Normal, b"sealed").expect("it is neither empty nor too long");
//! // One datagram for the Internet path, a copy for the ingress relay.
//! assert_eq!(sender.poll_transmit().expect("the packet").to, Peer(1));
//! assert_eq!(sender.poll_transmit().expect("the copy").to, Peer(2));
//! ```
//!
//! The others are `handle_datagram` for received datagrams, `poll_event`, and `poll_timeout`, which
//! returns when to call `handle_timeout` and for which reason. Receivers also have `poll_delivery`.
//! Times must not go back; an earlier one only delays timers.
//!
//! Peers are sessions: a machine trusts that a message comes from the peer it is attributed to, and
//! that it was not altered on the way. [`Genuine`](id::Genuine) checks that a payload is the one
//! that its sender sealed.
//!
//! Not here: the choice of a flow's service (`plan::service`).

pub mod budget;
mod capacity;
mod early;
pub mod egress;
pub mod event;
pub mod fragment;
pub mod group;
pub mod id;
pub mod ingress;
pub mod label;
pub mod message;
mod noise;
mod numbered;
pub mod order;
pub mod outbox;
pub mod path_mtu;
pub mod receiver;
pub mod rendezvous;
mod round_trip;
pub mod sender;
pub mod session;
mod shares;
pub mod store;
mod tally;
mod timers;
mod window;
