//! Hosts in network namespaces joined by the emulated WAN.
//!
//! A [`Lab`] is a running [`Topology`](tradewind_wan::Topology): each of its hosts is a network
//! namespace of this machine with real kernel TCP, and all their traffic passes through one thread
//! of this process, where [`tradewind_wan`] decides whether and when each segment arrives. The lab
//! contains nothing of the product: any program can run on a host.
//!
//! Namespaces have no names and no files: when the process ends, for whatever reason, they are
//! gone, and so are the programs started in them.
//!
//! | module | holds |
//! |---|---|
//! | [`lab`] | [`Lab`]: start, addresses, commands, changes |
//! | [`options`] | [`LabOptions`]: the choices for one run |
//! | [`validity`] | [`ValidityRecord`]: the trustworthiness of a run's figures |
//! | [`lateness`] | [`ErrorBound`]: what late deliveries and busy CPUs may change in a figure |
//! | [`address`] | the address plan |
//! | [`privilege`] | becoming root, or root inside a user namespace |
//! | [`supervisor`] | a lab that outlives the command that started it |
//! | `host`, `port` | a namespace's set-up; TUN device or packet socket |
//! | `driver` | the thread between the ports and the emulated network |
//! | `packet`, `rebuild`, `checksum`, `icmp` | parsing, splitting and answering packets |
//! | `programs` | the programs' waits for a CPU |
//! | `delays` | lateness that is added on purpose |
//! | `window` | bounds on bytes in flight |
//!
//! `docs/explanation/lab.md` lists what is emulated and what is not.

pub mod address;
pub mod error;
pub mod lab;
pub mod lateness;
pub mod options;
pub mod privilege;
pub mod supervisor;
pub mod validity;

mod checksum;
mod delays;
mod driver;
mod host;
mod icmp;
mod packet;
mod port;
mod programs;
mod rebuild;
mod window;

pub use error::LabError;
pub use lab::Lab;
pub use lateness::ErrorBound;
pub use options::{AddedLateness, Backend, LabOptions, Passage};
pub use validity::ValidityRecord;
