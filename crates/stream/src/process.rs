//! A process of the stream plane: its threads, its beginning and end, and changes while it runs.
//!
//! | module | holds |
//! |---|---|
//! | [`server`], [`worker`] | a thread for each core, with listeners and sessions of its own |
//! | [`shutdown`], `signals` | shutdown, upgrade and reload |
//! | [`reload`], [`live`] | the reload of a changed configuration, and settings that it replaces |
//! | [`upgrade`] | the takeover by the next process |
//! | [`in_force`] | the configuration that it runs by, in its metrics |
//! | [`handle`] | a view while it runs |
//! | `metrics` | the metrics of its counters |
//! | `additions` | the additions of the program that runs it |
//! | `resources` | what a process holds beside its sessions |
//! | `rights` | the rights that it needs beyond those of every user |

pub(crate) mod additions;
pub mod handle;
pub mod in_force;
pub mod live;
pub(crate) mod metrics;
pub mod reload;
mod resources;
pub(crate) mod rights;
pub mod server;
pub mod shutdown;
mod signals;
pub mod upgrade;
pub mod worker;
