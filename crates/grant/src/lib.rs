//! Authorization: identities, grants, authenticated hop headers, destination policy.
//!
//! Nothing is an open relay. An operator signs a [`Grant`]: this gateway may reach these
//! destinations over these relays until a given time. A gateway opens every session with a *hop
//! header* that names the destination and the whole route and carries the grant; each relay on the
//! route finds in it a tag that only the gateway and that relay can compute, and a tag that only
//! its neighbour and itself can compute. A relay answers with a *reply* that proves its identity.
//!
//! | module | holds |
//! |---|---|
//! | [`identity`] | X25519 identities of gateways and relays, Ed25519 keys of operators |
//! | [`signing`] | signatures by an identity, for handshakes |
//! | [`token`] | the grant: an operator's signed permission |
//! | [`spec`] | the grant as an operator writes it in TOML |
//! | [`header`] | the hop header's format and its route |
//! | [`sealer`] | the gateway's side: sealing headers |
//! | [`verifier`] | the relay's side: opening headers and forwarding them |
//! | [`revocation`] | grants that an operator revokes before their end |
//! | [`trust`] | the operators whose grants are accepted, and their revocations |
//! | [`reply`] | the authenticated answer to a header |
//! | [`warm`] | the hello of a warm connection |
//! | [`terms`] | the terms of a header's leg and of later dials |
//! | [`join`] | joins of further connections to the session of a striped leg |
//! | [`trace`] | the ids of a session's trace |
//! | [`echo`] | the round-trip times in the reply to a probe |
//! | [`first_flight`] | the dialling side's proof that it knows the relay |
//! | [`replay`] | the table of headers seen before |
//! | [`destination`] | destinations and the rules that cover them |
//! | [`source`] | ranges of source addresses of packets |
//! | [`policy`] | the decision whether a destination is allowed |
//! | [`forbidden`] | addresses that are never dialled |
//!
//! The crate is pure: entropy and time are arguments. A [`Timestamp`] here counts from the Unix
//! epoch.
//!
//! [`Timestamp`]: tradewind_units::Timestamp

pub mod date;
pub mod destination;
pub mod echo;
mod error;
pub mod first_flight;
pub mod forbidden;
pub mod header;
pub mod identity;
pub mod join;
mod pair;
pub mod policy;
pub mod replay;
pub mod reply;
pub mod revocation;
mod schema;
pub mod sealer;
pub mod signing;
pub mod source;
pub mod spec;
pub mod terms;
mod text;
pub mod token;
pub mod trace;
pub mod trust;
pub mod verifier;
pub mod warm;
mod wire;

pub use destination::{Destination, DestinationRule, HostName};
pub use echo::Echo;
pub use error::GrantError;
pub use first_flight::FirstFlightKey;
pub use header::{Hop, Nonce, ReceivedHeader, Route};
pub use identity::{IdentityKey, KeyId, OperatorKey, OperatorPublicKey, PublicIdentity};
pub use join::{JoinKey, SessionName};
pub use pair::{PAIR_LIMIT, PairKey, PairKeys};
pub use policy::{Check, Policy, Target};
pub use replay::ReplayTable;
pub use reply::{Reply, ReplyKey, Status};
pub use revocation::{RevocationList, Revocations, SignedRevocations};
pub use sealer::{Request, SealedHeader, Sealer};
pub use signing::IdentitySigner;
pub use source::SourceRange;
pub use spec::{GrantSpec, parse_moment};
pub use terms::{DialLimit, Terms};
pub use token::{Extensions, Grant, GrantId, Relays, SignedGrant, VerifiedGrant};
pub use trace::{SpanId, TraceId, TraceSeed};
pub use trust::Trust;
pub use verifier::{OpenHeader, Opening, Refusal, Sighting, UnjudgedHeader, Verifier};
