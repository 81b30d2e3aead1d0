//! What is chosen per run of a lab, beside its topology.

use tradewind_units::Duration;

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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabOptions {
    /// Seed of all randomness; `None`: the topology's.
    pub seed: Option<u64>,
    /// How hosts are attached.
    pub backend: Backend,
    /// How packets pass.
    pub passage: Passage,
    /// How far apart the segments of one delivery may be due; `None`: the emulator's default.
    pub coalesce: Option<Duration>,
}
