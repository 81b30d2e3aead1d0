//! What is chosen per run of a lab, beside its topology.

use tradewind_units::{Bytes, Duration};

/// How hosts are attached to the emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// TUN devices; packet sockets where those are not to be had.
    #[default]
    Auto,
    /// TUN devices only.
    Tun,
    /// veth pairs with packet sockets: slower, but needs no /dev/net/tun.
    PacketSocket,
}

/// How packets pass between hosts and emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Passage {
    /// As offloaded super-packets, accounted segment by segment.
    #[default]
    Super,
    /// One by one: the ground truth that super-packets are compared with, at a third of the speed.
    Single,
}

/// The choices. The default is what `tradewind lab up` uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabOptions {
    /// Seed of all randomness; `None`: the topology's.
    pub seed: Option<u64>,
    /// How hosts are attached.
    pub backend: Backend,
    /// How packets pass.
    pub passage: Passage,
    /// How far apart the segments of one delivery may be due; `None`: the emulator's default.
    pub coalesce: Option<Duration>,
    /// Receive buffer with which connections start (the middle value of `tcp_rmem`), where a
    /// program sets none; `None`: the kernel's, 128 KiB.
    ///
    /// From 128 KiB the kernel enlarges the buffer by how fast the program reads, and where more
    /// hosts than CPUs share a machine it often gives up at 84 KB of window for good. With a wide
    /// buffer the topology's windows are the only ones. An experiment on first windows wants the
    /// kernel's.
    pub first_receive_buffer: Option<Bytes>,
}

/// Holds a window of some 6 MB with the kernel's overhead. Chosen: twice the windows that papers
/// saw [CP VII].
const WIDE_RECEIVE_BUFFER: Bytes = Bytes::new(8 << 20);

impl Default for LabOptions {
    fn default() -> Self {
        Self {
            seed: None,
            backend: Backend::default(),
            passage: Passage::default(),
            coalesce: None,
            first_receive_buffer: Some(WIDE_RECEIVE_BUFFER),
        }
    }
}
