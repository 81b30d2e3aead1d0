//! Settings of the rendezvous: a node's deposits at relays for receivers that may be offline, the
//! relays where its own packets wait, and a relay's storage `[JQ 3.5]`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tradewind_grant::{Hop, PublicIdentity};
use tradewind_packet::rendezvous::{MAX_KEPT, MessageStoreConfig};
use tradewind_units::{Bytes, Duration};

use crate::ConfigError;

/// Most relays where packets of one node may wait. Chosen: it asks each of them every second.
const MAX_RELAYS: usize = 8;
/// Most paths with deposits. Chosen.
const MAX_DEPOSITS: usize = 256;
/// Most of these to one receiver, which knows as many flows of a sender at a time.
const MAX_TO_ONE: usize = 16;
/// Most of these at one relay: half the streams that it tracks of a sender, since each restart of
/// the sender begins another one.
const MAX_BY_ONE: usize = 32;
/// Least storage of a relay for one sender: some of the longest packets.
const MIN_BYTES: Bytes = Bytes::new(100_000);
/// The default time for which packets are worth storing, and a relay's default storage. Chosen: the
/// time of a tunnel or a change of trains; a day of messages and pictures of some thousand senders.
pub(super) const KEEP: Duration = Duration::from_secs(600);
const MESSAGE_STORE: MessageStoreConfig = MessageStoreConfig {
    bytes: Bytes::new(256_000_000),
    per_sender: Bytes::new(32_000_000),
    keep: Duration::from_secs(3600),
};

/// The rendezvous of an endpoint.
#[derive(Debug, Clone, Default)]
pub struct Rendezvous {
    /// Its deposits at relays.
    pub deposits: Vec<Deposits>,
    /// Relays where packets for this node may wait.
    pub relays: Vec<Hop>,
}

/// Datagrams of unmodified applications that wait at a relay until their receiver is online.
#[derive(Debug, Clone)]
pub struct Deposits {
    /// The address that applications write to; with port 0 the system chooses a port.
    pub listen: SocketAddr,
    /// The address to which the receiver delivers.
    pub to: SocketAddr,
    /// The receiver.
    pub remote: Recipient,
    /// The relay where they wait.
    pub relay: Hop,
    /// The time for which they are worth storing, from their sealing.
    pub keep: Duration,
}

/// A receiver that may be offline, and needs no address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recipient {
    /// The node with this identity.
    Identity(PublicIdentity),
    /// The node with this id among the members.
    Member(String),
}

fn refused(key: &'static str, problem: &str) -> ConfigError {
    ConfigError::new(key, problem)
}

impl Rendezvous {
    /// Returns true if there are no deposits and no relays.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deposits.is_empty() && self.relays.is_empty()
    }

    /// Checks the numbers of relays and deposits.
    ///
    /// # Errors
    /// The number that is too high.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.relays.len() > MAX_RELAYS {
            return Err(refused("packet_endpoint.rendezvous", "expected at most 8 relays"));
        }
        if most_alike(self.relays.iter().map(|relay| relay.identity)) > 1 {
            return Err(refused("packet_endpoint.rendezvous", "expected no relay twice"));
        }
        if self.deposits.len() > MAX_DEPOSITS {
            return Err(refused("packet", "expected at most 256 with `service = \"rendezvous\"`"));
        }
        let receivers = self.deposits.iter().map(|deposits| &deposits.remote);
        if most_alike(receivers) > MAX_TO_ONE {
            return Err(refused("packet", "expected at most 16 rendezvous with one receiver"));
        }
        let relays = self.deposits.iter().map(|deposits| deposits.relay.identity);
        if most_alike(relays) > MAX_BY_ONE {
            return Err(refused("packet", "expected at most 32 rendezvous at one relay"));
        }
        self.deposits.iter().try_for_each(|deposits| check_keep(deposits.keep))
    }
}

/// Returns the count of the most frequent element.
fn most_alike<T: Ord>(all: impl Iterator<Item = T>) -> usize {
    let mut counts = BTreeMap::new();
    all.for_each(|one| *counts.entry(one).or_insert(0) += 1);
    counts.into_values().max().unwrap_or(0)
}

pub(super) fn check_keep(keep: Duration) -> Result<(), ConfigError> {
    if keep < Duration::from_secs(1) || keep > MAX_KEPT {
        return Err(refused("keep", "expected 1 s to 24 h"));
    }
    Ok(())
}

/// Returns a relay's storage settings, with defaults for those that are absent.
pub(super) fn message_store(
    bytes: Option<Bytes>,
    per_sender: Option<Bytes>,
    keep: Option<Duration>,
) -> MessageStoreConfig {
    let bytes = bytes.unwrap_or(MESSAGE_STORE.bytes);
    MessageStoreConfig {
        bytes,
        per_sender: per_sender.unwrap_or(MESSAGE_STORE.per_sender.min(bytes)),
        keep: keep.unwrap_or(MESSAGE_STORE.keep),
    }
}

pub(super) fn check_store(message_store: &MessageStoreConfig) -> Result<(), ConfigError> {
    let MessageStoreConfig { bytes, per_sender, keep } = message_store;
    if *per_sender < MIN_BYTES || bytes < per_sender {
        let problem = "expected `per_sender` of 100 kB at least, and `bytes` of no less";
        return Err(refused("rendezvous", problem));
    }
    check_keep(*keep).map_err(|error| error.within("rendezvous"))
}
