//! Hosts in network namespaces joined by the emulated WAN.
//!
//! A [`Lab`] is a [`Topology`](tradewind_wan::Topology) come to life: each of its hosts is a network
//! namespace of this machine with real kernel TCP, and all that they send each other passes through
//! one thread of this process, where [`tradewind_wan`] decides when and whether each segment
//! arrives. Nothing of the product is in here: any program runs on a host.
//!
//! Namespaces have no names and no files; when the process ends, by whatever end, they are gone,
//! and so are the programs started in them.
//!
//! | module | holds |
//! |---|---|
//! | [`lab`] | [`Lab`]: start, addresses, commands, changes |
//! | [`options`] | [`LabOptions`]: what is chosen per run |
//! | [`validity`] | [`ValidityRecord`]: whether a run's figures mean anything |
//! | [`address`] | the address plan |
//! | [`privilege`] | becoming root, or root inside a user namespace |
//! | [`supervisor`] | a lab that outlives the command that started it |
//! | `host`, `port` | a namespace's set-up; TUN device or packet socket |
//! | `driver` | the thread between the ports and the emulated network |
//! | `packet`, `rebuild`, `checksum`, `icmp` | packets read, cut and answered |
//! | `window` | bounds on bytes in flight |
//!
//! What is emulated and what is not: `docs/lab.md`.

pub mod address;
pub mod error;
pub mod lab;
pub mod options;
pub mod privilege;
pub mod supervisor;
pub mod validity;

mod checksum;
mod driver;
mod host;
mod icmp;
mod packet;
mod port;
mod rebuild;
mod window;

pub use error::LabError;
pub use lab::Lab;
pub use options::{Backend, LabOptions, Passage};
pub use validity::ValidityRecord;
