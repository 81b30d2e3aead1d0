//! The hop header, which opens every session between a gateway and a relay, and between two relays.
//!
//! The first part is fixed by the gateway; the last two fields change at every hop. Format, version
//! 1, at most [`HEADER_LIMIT`] bytes, numbers big-endian:
//!
//! ```text
//! bytes  field
//!     3  magic "TWH"
//!     1  version, 1
//!     2  length of the whole header, the same at every hop
//!     8  issued at, ms since the Unix epoch
//!    16  nonce: random, new for every header; its last 8 bytes are the session's, see `trace`
//!     1  length of the flow's id, 1 to 64
//!     x  flow id
//!     x  destination: kind 4 + 4 bytes, kind 6 + 16 bytes or kind 1 + length + name; then port, 2;
//!        or kind 0 and nothing else: a probe, which the last relay answers without dialling
//!     2  length of the grant
//!     x  signed grant, see `token`
//!     1  number of hops N, 1 to 8
//!   N x  relay's address: kind 4 + 4 bytes or kind 6 + 16 bytes, port 2; then its identity, 32
//! ---- the transcript is the BLAKE3 hash of the bytes so far ----
//!  16 N  one tag for each hop: keyed hash of the transcript, with the key that the gateway shares
//!        with that relay
//! ---- rewritten at every hop ----
//!     1  hop that this copy of the header is for, from 0; whether the neighbour may stripe the
//!        leg, so that further connections may join the session, see `join`; and for how long
//!        relays may dial the next one, see `terms`
//!    16  neighbour's tag: keyed hash of transcript, tags and hop, with the key that the dialling
//!        neighbour (the gateway for hop 0, else the relay of the hop before) shares with this
//!        relay
//! ```
//!
//! The neighbour's identity follows from the route and the hop, so it is not in the header. Data
//! may follow the header in the same flight. After the reply to a probe another probe may follow on
//! the same connection: a header of its own, with its own nonce, time and tags.

use std::fmt;
use std::net::SocketAddr;

use tradewind_units::{FlowId, Timestamp};

use crate::pair::{TAG_BYTES, Tag};
use crate::terms::Terms;
use crate::token::GRANT_LIMIT;
use crate::wire::{Reader, from_unix_ms, put_socket_addr, unix_ms};
use crate::{
    Destination, GrantError, GrantId, OperatorPublicKey, PublicIdentity, SignedGrant, VerifiedGrant,
};

/// Longest header: the most that a relay reads before the sender is authenticated.
pub const HEADER_LIMIT: usize = 1024;
/// Most relays on a route.
pub const HOP_LIMIT: usize = 8;
/// Length of the prefix that gives a header's length.
pub const HEADER_PREFIX_BYTES: usize = 6;

const MAGIC: [u8; 4] = *b"TWH\x01";
const LENGTH_AT: usize = 4;
/// Length of the part that changes: hop and neighbour's tag.
pub(crate) const TAIL_BYTES: usize = 1 + TAG_BYTES;
/// The kind byte of a probe, in place of a destination's kind.
const KIND_PROBE: u8 = 0;
/// Length of a probe for a one-letter flow over one hop, with an empty grant.
const MIN: usize = 30 + 2 + 1 + 2 + 1 + 39 + TAG_BYTES + TAIL_BYTES;

/// The nonce of a header: 16 bytes of the system's entropy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// Creates a nonce from 16 bytes of the system's entropy.
    #[must_use]
    pub const fn from_entropy(entropy: [u8; 16]) -> Self {
        Self(entropy)
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    pub(crate) fn leading_bits(&self) -> u64 {
        let (leading, _) = self.0.split_first_chunk::<8>().expect("a nonce has 16 bytes");
        u64::from_be_bytes(*leading)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One relay of a route: its address and identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hop {
    /// Its address.
    #[serde(deserialize_with = "tradewind_units::address::one")]
    pub address: SocketAddr,
    /// Its identity.
    pub identity: PublicIdentity,
}

/// The relays of a path in order: one to [`HOP_LIMIT`], without repetition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route(Vec<Hop>);

impl Route {
    /// Creates a route from the hops in order.
    ///
    /// # Errors
    /// When there are none or too many, one relay is repeated, or a port is 0.
    pub fn new(mut hops: Vec<Hop>) -> Result<Self, GrantError> {
        let refused = |value: String, expected: &'static str| {
            Err(GrantError::invalid("route", value, expected))
        };
        if !(1..=HOP_LIMIT).contains(&hops.len()) {
            return refused(format!("of {} relays", hops.len()), "1 to 8 relays");
        }
        for (index, hop) in hops.iter().enumerate() {
            if hops[..index].iter().any(|before| before.identity == hop.identity) {
                return refused(hop.identity.to_string(), "no relay twice");
            }
            if hop.address.port() == 0 {
                return refused(hop.address.to_string(), "a port from 1 to 65535");
            }
        }
        for hop in &mut hops {
            // A scope or flow label has no meaning for the relay that dials.
            hop.address = SocketAddr::new(hop.address.ip().to_canonical(), hop.address.port());
        }
        Ok(Self(hops))
    }

    /// Returns the hops in order.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        &self.0
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.0.len() as u8);
        for hop in &self.0 {
            put_socket_addr(out, hop.address);
            out.extend_from_slice(hop.identity.as_bytes());
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, GrantError> {
        let what = "route";
        let at = reader.at();
        let count = usize::from(reader.u8(what)?);
        let malformed = || GrantError::Malformed { what, at };
        if count > HOP_LIMIT {
            return Err(malformed());
        }
        let mut hops = Vec::with_capacity(count);
        for _ in 0..count {
            let kind = reader.u8(what)?;
            let ip = reader.ip(kind, what)?;
            let address = SocketAddr::new(ip, reader.port(what)?);
            let identity = PublicIdentity::from_bytes(reader.array(what)?);
            hops.push(Hop { address, identity });
        }
        Self::new(hops).map_err(|_| malformed())
    }
}

/// Returns the length in a header's first [`HEADER_PREFIX_BYTES`] bytes.
///
/// # Errors
/// [`GrantError::Malformed`] when it is no header or its length is out of bounds.
pub fn header_length(prefix: &[u8]) -> Result<usize, GrantError> {
    let mut reader = Reader::new(prefix);
    reader.magic(MAGIC, "header magic and version")?;
    let at = reader.at();
    let length = usize::from(reader.u16("header length")?);
    if (MIN..=HEADER_LIMIT).contains(&length) {
        Ok(length)
    } else {
        Err(GrantError::Malformed { what: "header length", at })
    }
}

/// The part of a header that the gateway fixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fixed<'a> {
    pub(crate) issued_at: Timestamp,
    pub(crate) nonce: Nonce,
    pub(crate) flow: FlowId,
    /// The destination; `None` for a probe.
    pub(crate) destination: Option<Destination>,
    pub(crate) grant: &'a [u8],
    pub(crate) route: Route,
}

impl Fixed<'_> {
    /// Encodes the fixed part, with the length of the whole header in it.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, GrantError> {
        let mut out = Vec::with_capacity(HEADER_LIMIT);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&unix_ms(self.issued_at).to_be_bytes());
        out.extend_from_slice(&self.nonce.0);
        out.push(self.flow.as_str().len() as u8);
        out.extend_from_slice(self.flow.as_str().as_bytes());
        match &self.destination {
            Some(destination) => destination.put(&mut out),
            None => out.push(KIND_PROBE),
        }
        out.extend_from_slice(&(self.grant.len() as u16).to_be_bytes());
        out.extend_from_slice(self.grant);
        self.route.put(&mut out);
        let bytes = out.len() + self.route.hops().len() * TAG_BYTES + TAIL_BYTES;
        if bytes > HEADER_LIMIT {
            return Err(GrantError::TooLong { what: "hop header", bytes, limit: HEADER_LIMIT });
        }
        out[LENGTH_AT..HEADER_PREFIX_BYTES].copy_from_slice(&(bytes as u16).to_be_bytes());
        Ok(out)
    }
}

/// A parsed header; nothing in it is verified yet.
#[derive(Debug, Clone)]
pub struct ReceivedHeader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) fixed: Fixed<'a>,
    /// The id of the grant that it carries.
    pub(crate) grant_id: GrantId,
    /// The BLAKE3 hash of the fixed part.
    pub(crate) transcript: [u8; 32],
    /// The gateway's tags, one for each hop.
    pub(crate) tags: &'a [u8],
    pub(crate) hop: u8,
    pub(crate) terms: Terms,
    pub(crate) neighbour_tag: Tag,
}

impl<'a> ReceivedHeader<'a> {
    /// Parses a header. `bytes` is the header alone, of the length that [`header_length`] returns.
    ///
    /// # Errors
    /// [`GrantError::Malformed`] with the first malformed part.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GrantError> {
        if header_length(bytes)? != bytes.len() {
            return Err(GrantError::Malformed { what: "header length", at: LENGTH_AT });
        }
        let mut reader = Reader::new(bytes);
        reader.take(HEADER_PREFIX_BYTES, "header prefix")?;
        let issued_at = from_unix_ms(reader.u64("time of issue")?);
        let nonce = Nonce(reader.array("nonce")?);
        let flow = take_flow(&mut reader)?;
        let destination =
            if reader.skip_if(KIND_PROBE) { None } else { Some(Destination::take(&mut reader)?) };
        let at = reader.at();
        let grant_bytes = usize::from(reader.u16("length of the grant")?);
        if grant_bytes > GRANT_LIMIT {
            return Err(GrantError::Malformed { what: "length of the grant", at });
        }
        let grant = reader.take(grant_bytes, "grant")?;
        let route = Route::take(&mut reader)?;
        let transcript = *blake3::hash(&bytes[..reader.at()]).as_bytes();
        let hops = route.hops().len();
        let tags = reader.take(hops * TAG_BYTES, "gateway's tags")?;
        let at = reader.at();
        let (hop, terms) = Terms::of_byte(reader.u8("hop")?);
        if usize::from(hop) >= hops {
            return Err(GrantError::Malformed { what: "hop", at });
        }
        let neighbour_tag = reader.array("neighbour's tag")?;
        reader.end("end of the header")?;
        let fixed = Fixed { issued_at, nonce, flow, destination, grant, route };
        let grant_id = GrantId::of(grant);
        Ok(Self { bytes, fixed, grant_id, transcript, tags, hop, terms, neighbour_tag })
    }

    /// Verifies the signature of the grant that the header carries: the most expensive check of a
    /// relay. It needs only the keys of `operators`, and no verifier.
    ///
    /// # Errors
    /// When the grant is malformed or none of `operators` signed it.
    pub fn verify_grant(
        &self,
        operators: &[OperatorPublicKey],
    ) -> Result<VerifiedGrant, GrantError> {
        SignedGrant::from_bytes(self.fixed.grant)?.into_verified(operators)
    }

    /// Returns the gateway's tag for the hop that the header has reached.
    pub(crate) fn gateway_tag(&self) -> Tag {
        let at = usize::from(self.hop) * TAG_BYTES;
        self.tags[at..at + TAG_BYTES].try_into().expect("one tag for each hop was read")
    }
}

fn take_flow(reader: &mut Reader<'_>) -> Result<FlowId, GrantError> {
    let at = reader.at();
    let length = usize::from(reader.u8("flow id")?);
    let flow = reader.text(length, "flow id")?;
    FlowId::new(flow).map_err(|_| GrantError::Malformed { what: "flow id", at })
}

/// Appends the part that changes.
pub(crate) fn put_tail(out: &mut Vec<u8>, hop_byte: u8, neighbour_tag: &Tag) {
    out.push(hop_byte);
    out.extend_from_slice(neighbour_tag);
}

/// Replaces the part that changes.
pub(crate) fn replace_tail(out: &mut Vec<u8>, hop_byte: u8, neighbour_tag: &Tag) {
    out.truncate(out.len().saturating_sub(TAIL_BYTES));
    put_tail(out, hop_byte, neighbour_tag);
}
