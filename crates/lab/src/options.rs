//! The choices for one run of a lab, apart from its topology.

use tradewind_units::{Bytes, Duration};

/// The kind of attachment between hosts and the emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// TUN devices; packet sockets where those are unavailable.
    #[default]
    Auto,
    /// TUN devices only.
    Tun,
    /// veth pairs with packet sockets: slower, but needs no /dev/net/tun.
    PacketSocket,
}

/// The unit in which packets pass between hosts and emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Passage {
    /// As offloaded super-packets, accounted segment by segment.
    #[default]
    Super,
    /// One by one: the reference for super-packets, at a third of the speed.
    Single,
}

/// Settings of a lab. The default is what `tradewind lab up` uses.
#[derive(Debug, Clone, PartialEq)]
pub struct LabOptions {
    /// Seed of all randomness; `None` selects the topology's.
    pub seed: Option<u64>,
    /// The kind of attachment.
    pub backend: Backend,
    /// The unit of passage.
    pub passage: Passage,
    /// The largest spread of the due times of segments that are delivered together; `None` selects
    /// the emulator's default.
    pub coalesce: Option<Duration>,
    /// The receive buffer with which connections start (the middle value of `tcp_rmem`), unless a
    /// program sets its own; `None` selects the kernel's, 128 KiB.
    ///
    /// From 128 KiB the kernel enlarges the buffer by how fast the program reads, and with more
    /// hosts than CPUs on a machine it often stays at a window of 84 KB for good. With a wide
    /// buffer only the topology's windows bound a connection. An experiment on initial windows
    /// needs the kernel's value.
    pub first_receive_buffer: Option<Bytes>,
    /// Lateness that is added on purpose, to test what the validity record says of it; `None`
    /// adds none.
    pub late: Option<AddedLateness>,
}

/// Lateness that is added to deliveries, on top of what the machine causes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddedLateness {
    /// The share of deliveries that are late, from 0 to 1; those behind a late one wait for it.
    pub share: f64,
    /// Their least lateness.
    pub least: Duration,
    /// Their largest lateness; each is drawn evenly between the two.
    pub most: Duration,
}

/// A buffer for a window of some 6 MB with the kernel's overhead. Chosen: twice the windows that
/// papers report [CP VII].
const WIDE_RECEIVE_BUFFER: Bytes = Bytes::new(8 << 20);

impl Default for LabOptions {
    fn default() -> Self {
        Self {
            seed: None,
            backend: Backend::default(),
            passage: Passage::default(),
            coalesce: None,
            first_receive_buffer: Some(WIDE_RECEIVE_BUFFER),
            late: None,
        }
    }
}
