//! Sessions between neighbours: the outer formats of every datagram, and the authentication of
//! their senders.
//!
//! Two neighbours (an endpoint and a relay, two relays, or the two endpoints of a flow) agree on
//! keys by a handshake of the Noise framework, pattern IK, between their identities of `grant`;
//! then every datagram between them is sealed. Between endpoints the same session is the end-to-end
//! seal: its datagrams travel over relays unchanged, relays and helpers see ciphertext, and a
//! wrongly recovered packet fails authentication.
//!
//! An attacker without keys gets no answer, or, when the receiver is busy and the attacker knows
//! its public identity, a cookie that is shorter than the initiation. A forged, replayed, truncated
//! or reflected datagram changes nothing but a counter; of passed datagrams that holds for their
//! headers (`passed`).
//!
//! - [`Sessions`] is the machine: datagrams and times in; datagrams to send, opened payloads and
//!   [`Event`]s out.
//! - `wire` parses datagrams, `handshake` runs Noise (crate `snow`), `cookie` proves addresses
//!   before there is any state, `cipher` seals and opens (AES-256-GCM of crate `ring`), `passed`
//!   seals the headers alone of datagrams that endpoints have sealed already, [`ReplayWindow`]
//!   accepts every counter once.
//!
//! Source: the roles of the messages follow WireGuard (Donenfeld, NDSS 2017, 5); addresses are
//! proven as in RFC 9000, 8.1 and 8.2; the window is that of RFC 6479, wider.

pub(crate) mod cipher;
mod cookie;
mod event;
mod handshake;
mod link;
mod passed;
mod peer;
pub(crate) mod random;
mod replay;
mod sessions;
mod table;
mod wire;

pub use event::{DropReason, Event, Now, Opened, SealError};
pub use link::{AddressPair, Link};
pub use passed::PASSED_BYTES;
pub use peer::PeerId;
pub use replay::{ReplayWindow, WINDOW};
pub use sessions::{Limits, Run, Sessions, SessionsConfig, Transmit};
pub use table::Table;
pub use wire::{HEADER_BYTES, OVERHEAD, PAYLOAD_LIMIT, TAG_BYTES, is_initiation};
