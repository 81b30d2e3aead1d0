//! An emulated wide-area path in virtual time: rates, queues, delay and loss, segment by segment.
//!
//! A [`Topology`] (TOML, see `docs/reference/topology.md`) names sites, hosts, ordered pairs of
//! sites and links that several pairs share. A [`Wan`] carries [`Bundle`]s between its hosts: the
//! packets of one bundle enter together, as offloaded super-packets do, but each of its segments is
//! queued, marked, lost and delayed on its own. The core has no clock: the caller passes the time.
//!
//! | module | holds |
//! |---|---|
//! | [`topology`] | the file format and its model |
//! | [`traffic`] | [`Bundle`], [`Delivery`], [`Admission`] |
//! | [`change`] | [`PairChange`]: changes while traffic flows |
//! | [`counters`] | segments entered, delivered and lost, by link and cause |
//! | [`emulator`] | [`Wan`]: `push`, `pop_due`, `next_deadline` |

mod agenda;
mod bundles;
mod chance;
pub mod change;
pub mod counters;
pub mod emulator;
mod jitter;
mod link;
mod outage;
mod queue;
mod routes;
mod segment;
pub mod topology;
pub mod traffic;

pub use change::{ChangeError, PairChange};
pub use counters::{Counters, DropCause, LinkCounters, LinkName, Tally};
pub use emulator::Wan;
pub use topology::{Host, HostIndex, Site, SiteIndex, Topology, TopologyError};
pub use traffic::{Admission, Bundle, Delivery, Ecn};
