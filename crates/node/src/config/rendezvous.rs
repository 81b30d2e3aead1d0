//! What a node leaves at relays for receivers that need not be online, where its own packets wait,
//! and what a relay keeps `[JQ 3.5]`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tradewind_grant::{Hop, PublicIdentity};
use tradewind_packet::rendezvous::{MOST_KEPT, MessageStoreConfig};
use tradewind_units::{Bytes, Duration};

use crate::NodeError;

/// Relays where packets of one node may wait. Chosen: it asks each of them every second.
const MOST_RELAYS: usize = 8;
/// Paths whose packets wait. Chosen.
const MOST_DEPOSITS: usize = 256;
/// Of these, to one receiver: it knows as many flows of a sender at a time.
const MOST_TO_ONE: usize = 16;
/// And by one relay: half the streams that it knows of a sender, since each restart of the sender
/// is another one.
const MOST_BY_ONE: usize = 32;
/// Least that a relay keeps of one sender: some of the longest packets.
const LEAST_BYTES: Bytes = Bytes::new(100_000);
/// How long packets are worth keeping when nothing else is told, and what a relay keeps. Chosen: a
/// tunnel, a flight of stairs, a change of trains; the pictures and words of a day of some thousand
/// senders.
pub(crate) const KEEP: Duration = Duration::from_secs(600);
const DEPOT: MessageStoreConfig = MessageStoreConfig {
    bytes: Bytes::new(256_000_000),
    per_sender: Bytes::new(32_000_000),
    keep: Duration::from_secs(3600),
};

/// The rendezvous of an endpoint.
#[derive(Debug, Clone, Default)]
pub struct Rendezvous {
    /// What is left at relays.
    pub deposits: Vec<Deposits>,
    /// Relays where packets for this node may wait.
    pub relays: Vec<Hop>,
}

/// Datagrams of unmodified applications that wait at a relay until their receiver is online.
#[derive(Debug, Clone)]
pub struct Deposits {
    /// Where applications write to; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Where the receiver delivers.
    pub to: SocketAddr,
    /// The receiver.
    pub far: Recipient,
    /// Where they wait.
    pub relay: Hop,
    /// How long they are worth keeping, from when they are sealed.
    pub keep: Duration,
}

/// A receiver that need not be online, nor have an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recipient {
    /// This one.
    Identity(PublicIdentity),
    /// The one that the members call so.
    Member(String),
}

fn refused(key: &'static str, problem: &str) -> NodeError {
    NodeError::Config { key, problem: problem.into() }
}

impl Rendezvous {
    pub(crate) fn is_empty(&self) -> bool {
        self.deposits.is_empty() && self.relays.is_empty()
    }

    pub(super) fn check(&self) -> Result<(), NodeError> {
        if self.relays.len() > MOST_RELAYS {
            return Err(refused("rendezvous", "expected at most 8 relays"));
        }
        if self.deposits.len() > MOST_DEPOSITS {
            return Err(refused("packet", "expected at most 256 with `service = \"rendezvous\"`"));
        }
        let receivers = self.deposits.iter().map(|deposits| &deposits.far);
        if most_alike(receivers) > MOST_TO_ONE {
            return Err(refused("packet", "expected at most 16 rendezvous with one receiver"));
        }
        let relays = self.deposits.iter().map(|deposits| deposits.relay.identity);
        if most_alike(relays) > MOST_BY_ONE {
            return Err(refused("packet", "expected at most 32 rendezvous at one relay"));
        }
        self.deposits.iter().try_for_each(|deposits| check_keep(deposits.keep))
    }

    /// Receivers that the members must know.
    pub(super) fn members(&self) -> impl Iterator<Item = &String> {
        self.deposits.iter().filter_map(|deposits| match &deposits.far {
            Recipient::Member(name) => Some(name),
            Recipient::Identity(_) => None,
        })
    }
}

/// How often the most frequent one comes.
fn most_alike<T: Ord>(all: impl Iterator<Item = T>) -> usize {
    let mut counts = BTreeMap::new();
    all.for_each(|one| *counts.entry(one).or_insert(0) += 1);
    counts.into_values().max().unwrap_or(0)
}

pub(super) fn check_keep(keep: Duration) -> Result<(), NodeError> {
    if keep < Duration::from_secs(1) || keep > MOST_KEPT {
        return Err(refused("keep", "expected 1 s to 24 h"));
    }
    Ok(())
}

/// What a relay is told to keep, with defaults for the rest.
pub(super) fn message_store(
    bytes: Option<Bytes>,
    per_sender: Option<Bytes>,
    keep: Option<Duration>,
) -> MessageStoreConfig {
    let bytes = bytes.unwrap_or(DEPOT.bytes);
    MessageStoreConfig {
        bytes,
        per_sender: per_sender.unwrap_or(DEPOT.per_sender.min(bytes)),
        keep: keep.unwrap_or(DEPOT.keep),
    }
}

pub(super) fn check_store(message_store: &MessageStoreConfig) -> Result<(), NodeError> {
    let MessageStoreConfig { bytes, per_sender, keep } = message_store;
    if *per_sender < LEAST_BYTES || bytes < per_sender {
        let problem = "expected `per_sender` of 100 kB at least, and `bytes` of no less";
        return Err(refused("rendezvous", problem));
    }
    check_keep(*keep)
}
