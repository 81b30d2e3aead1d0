//! Who may send what where: identities, grants, authenticated hop headers, destination policy.
//!
//! Nothing is an open relay. An operator signs a [`Grant`]: this gateway may reach these
//! destinations over these relays until then. A gateway opens every session with a *hop header*
//! that names the destination and the whole route and carries the grant; each relay on the route
//! finds in it a tag that only the gateway and that relay can compute, and a tag that only its
//! neighbour and itself can compute. A relay answers with a *reply* that proves who answered.
//!
//! | module | holds |
//! |---|---|
//! | [`identity`] | X25519 identities of gateways and relays, Ed25519 keys of operators, their text forms |
//! | [`signing`] | signatures by an identity, for handshakes |
//! | [`token`] | the grant: what an operator allows, signed |
//! | [`spec`] | the grant as an operator writes it in TOML |
//! | [`header`] | the hop header's format and its route |
//! | [`sealer`] | gateways seal headers |
//! | [`verifier`] | relays open headers and pass them on |
//! | [`revocation`] | what an operator takes back before its time |
//! | [`trust`] | whose grants are believed, as long as nobody has revoked them |
//! | [`reply`] | the authenticated answer to a header |
//! | [`warm`] | the hello of a connection that is kept ready |
//! | [`terms`] | what a header says of its leg and of dials after it |
//! | [`join`] | how further connections join the session of a striped leg |
//! | [`echo`] | what a probe of a path brings back |
//! | [`first_flight`] | how who dials proves that it knows the relay, before that answers |
//! | [`replay`] | which headers were seen before |
//! | [`destination`] | destinations and the rules that cover them |
//! | [`source`] | where packets may come from |
//! | [`policy`] | where something may go: the one answer |
//! | [`forbidden`] | addresses that are never dialled |
//!
//! The crate is pure: entropy and time come in as arguments. A [`Timestamp`] here counts from the
//! Unix epoch.
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
pub mod sealer;
pub mod signing;
pub mod source;
pub mod spec;
pub mod terms;
mod text;
pub mod token;
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
pub use trust::Trust;
pub use verifier::{OpenHeader, Refusal, ReplayJudge, Verifier};
