//! The known relays and endpoints `[JQ 3.3]`, with the relays near each endpoint.
//!
//! A node reads them from a file, and again when it changes. The relay near the node *itself* is
//! not listed: the node measures that while it runs (`engine::neighbours`).
//!
//! ```toml
//! registry = { address = "192.0.2.5:7001", identity = "twid_..." }   # may be absent
//!
//! [[relay]]
//! address = "192.0.2.1:7001"
//! identity = "twid_..."
//!
//! [[endpoint]]                                    # `address` may be a list, a relay's as well
//! id = "berlin"
//! address = "192.0.2.9:7001"
//! identity = "twid_..."
//! # Nearest first.
//! relays = [{ address = "192.0.2.1:7001", identity = "twid_...", round_trip = "8 ms" }]
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use tradewind_config::packet::{Addresses, Placed};
use tradewind_grant::{Hop, PublicIdentity};
use tradewind_net::text_file;
use tradewind_packet::message::MAX_NEAR;
use tradewind_units::time::as_text;
use tradewind_units::{Duration, address, in_plain_words};

use crate::NodeError;

/// Longest file that is read. Chosen: more than the most endpoints take.
const MAX_MIB: u64 = 4;
/// Most relays that a node measures. Chosen: the regions of several clouds.
pub const MAX_RELAYS: usize = 64;
/// Most endpoints that it knows. Chosen.
pub const MAX_ENDPOINTS: usize = 4096;

/// A relay near an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Near {
    /// The address at which it listens.
    #[serde(deserialize_with = "address::one")]
    pub address: SocketAddr,
    /// Its identity.
    pub identity: PublicIdentity,
    /// The round trip between them, if it is known.
    #[serde(default, with = "as_text::option")]
    pub round_trip: Option<Duration>,
}

impl Near {
    /// Returns the relay as a hop of a path.
    #[must_use]
    pub fn hop(&self) -> Hop {
        Hop { address: self.address, identity: self.identity }
    }
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub id: String,
    /// The address at which it listens.
    pub address: SocketAddr,
    /// Its identity.
    pub identity: PublicIdentity,
    /// Relays near it, the nearest first.
    pub relays: Vec<Near>,
}

/// All known relays and endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// Relays that this node may use.
    pub relays: Vec<Hop>,
    /// The relay that keeps the registry: this node reports its address to it, and looks up
    /// endpoints that the file does not name.
    pub registry: Option<Hop>,
    /// Endpoints that it may send to.
    pub endpoints: Vec<Member>,
    /// Addresses of relays and endpoints after the first.
    pub further: BTreeMap<PublicIdentity, Vec<SocketAddr>>,
}

/// A file in its written form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, rename = "relay")]
    relays: Vec<Spanned<Placed>>,
    #[serde(default)]
    registry: Option<Hop>,
    #[serde(default, rename = "endpoint")]
    endpoints: Vec<Spanned<WrittenMember>>,
}

/// An endpoint in its written form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMember {
    id: String,
    address: Addresses,
    identity: PublicIdentity,
    #[serde(default)]
    relays: Vec<Near>,
}

impl Written {
    /// Returns the members, or the problem and its position in bytes.
    fn resolve(self) -> Result<Members, (usize, String)> {
        let Self { relays, registry, endpoints } = self;
        if relays.len() > MAX_RELAYS || endpoints.len() > MAX_ENDPOINTS {
            let most = format!("expected at most {MAX_RELAYS} relays, {MAX_ENDPOINTS} endpoints");
            return Err((0, most));
        }
        let mut members = Members { registry, ..Members::default() };
        let mut known = BTreeSet::new();
        for written in relays {
            let at = written.span().start;
            let Placed { hop, others } = written.into_inner();
            if !known.insert(hop.identity) {
                return Err((at, format!("relay {} is named twice", hop.identity)));
            }
            members.add_further(hop.identity, others);
            members.relays.push(hop);
        }
        let (mut known, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for written in endpoints {
            let at = written.span().start;
            let WrittenMember { id, address, identity, relays } = written.into_inner();
            if !known.insert(identity) || !ids.insert(id.clone()) {
                return Err((at, format!("endpoint `{id}` is named twice")));
            }
            if relays.len() > MAX_NEAR {
                let problem = format!("endpoint `{id}`: expected at most {MAX_NEAR} relays");
                return Err((at, problem));
            }
            let Addresses { first, others } = address;
            members.add_further(identity, others);
            members.endpoints.push(Member { id, address: first, identity, relays });
        }
        Ok(members)
    }
}

fn refused(problem: String) -> NodeError {
    NodeError::Config { key: "members".into(), problem }
}

impl Members {
    /// Parses a file's text.
    ///
    /// # Errors
    /// [`NodeError::Config`] with the problem.
    pub fn parse(text: &str) -> Result<Self, NodeError> {
        let in_line = |at: usize, problem: &str| {
            let before = text.as_bytes().iter().take(at);
            let line = 1 + before.filter(|byte| **byte == b'\n').count();
            refused(format!("line {line}: {problem}"))
        };
        let written: Written = toml::from_str(text).map_err(|error| {
            let problem = error.message().lines().collect::<Vec<_>>().join(" ");
            in_line(error.span().map_or(0, |span| span.start), &in_plain_words(&problem))
        })?;
        written.resolve().map_err(|(at, problem)| in_line(at, &problem))
    }

    fn add_further(&mut self, identity: PublicIdentity, others: Vec<SocketAddr>) {
        if !others.is_empty() {
            self.further.insert(identity, others);
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, and as [`Members::parse`].
    pub fn read(file: &Path) -> Result<Self, NodeError> {
        let unread = |error: std::io::Error| refused(format!("{}: {error}", file.display()));
        Self::parse(&text_file::read(file, MAX_MIB).map_err(unread)?).map_err(|error| match error {
            NodeError::Config { problem, .. } => refused(format!("{}: {problem}", file.display())),
            other => other,
        })
    }

    /// Returns the endpoint with `name` as its id or identity.
    #[must_use]
    pub fn endpoint(&self, name: &str) -> Option<&Member> {
        let by_id = self.endpoints.iter().find(|member| member.id == name);
        by_id.or_else(|| self.endpoint_of(name.parse().ok()?))
    }

    /// Returns whether the endpoint of this name is known, or can be looked up.
    pub(crate) fn may_know(&self, name: &str) -> bool {
        let can_be_asked = self.registry.is_some() && name.parse::<PublicIdentity>().is_ok();
        can_be_asked || self.endpoint(name).is_some()
    }

    /// Returns the endpoint with this identity.
    #[must_use]
    pub fn endpoint_of(&self, identity: PublicIdentity) -> Option<&Member> {
        self.endpoints.iter().find(|member| member.identity == identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_grant::IdentityKey;

    fn text(number: u8) -> String {
        let identity = IdentityKey::from_entropy([number; 32]).public();
        format!("address = '192.0.2.{number}:7001', identity = '{identity}'")
    }

    #[test]
    fn endpoints_are_found_by_id_and_identity() {
        let [relay, remote] = [1, 2].map(text);
        let file = format!(
            "relay = [{{ {relay} }}]\nendpoint = [{{ id = 'berlin', {remote}, \
             relays = [{{ {relay}, round_trip = '8 ms' }}] }}]"
        );
        let members = Members::parse(&file).unwrap();
        let berlin = members.endpoint("berlin").unwrap();
        assert_eq!(members.endpoint(&berlin.identity.to_string()), Some(berlin));
        assert_eq!(members.endpoint("paris"), None);
        assert_eq!(berlin.relays[0].round_trip, Some(Duration::from_millis(8)));
        assert_eq!(berlin.relays[0].hop(), members.relays[0]);
    }

    #[test]
    fn invalid_files_are_refused() {
        let [one, two] = [1, 2].map(text);
        let refused = |file: &str| Members::parse(file).unwrap_err().to_string();
        let twice = refused(&format!("relay = [{{ {one} }}, {{ {one} }}]"));
        assert!(twice.starts_with("members: line 1: relay twid_"), "{twice}");
        assert!(twice.ends_with(" is named twice"), "{twice}");
        let [one, two] = [one, two].map(|lines| lines.replace(", ", "\n"));
        assert_eq!(
            refused(&format!("[[endpoint]]\nid = 'a'\n{one}\n\n[[endpoint]]\nid = 'a'\n{two}")),
            "members: line 6: endpoint `a` is named twice"
        );
        let unknown = refused("\nrelays = []");
        assert!(unknown.starts_with("members: line 2: unknown field `relays`"), "{unknown}");
        assert!(!unknown.contains('\n'));
        let address = refused(&format!("[[relay]]\n{one}\n\n[[relay]]\naddress = 'x'\n"));
        assert!(address.starts_with("members: line "), "{address}");
    }

    #[test]
    fn members_have_several_addresses() {
        let identity = |number| IdentityKey::from_entropy([number; 32]).public();
        let addresses = "address = ['192.0.2.1:7001', '[2001:db8::1]:7001']";
        let [relay, remote] =
            [1, 2].map(|number| format!("{addresses}, identity = '{}'", identity(number)));
        let text = format!("relay = [{{ {relay} }}]\nendpoint = [{{ id = 'berlin', {remote} }}]");
        let members = Members::parse(&text).unwrap();
        let first: SocketAddr = "192.0.2.1:7001".parse().unwrap();
        assert_eq!((members.relays[0].address, members.endpoints[0].address), (first, first));
        for number in [1, 2] {
            assert_eq!(members.further[&identity(number)], ["[2001:db8::1]:7001".parse().unwrap()]);
        }
        let none = text.replace("['192.0.2.1:7001', '[2001:db8::1]:7001']", "[]");
        let refused = Members::parse(&none).unwrap_err().to_string();
        assert!(refused.contains("expected 1 to 4 addresses"), "{refused}");
    }
}
