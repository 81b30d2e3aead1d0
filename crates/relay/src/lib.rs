//! The stream plane: relays that split TCP sessions, and gateways beside applications.
//!
//! A gateway accepts an application's connection, asks its route table for the path and sends a
//! hop header to the first relay. Each relay checks the header, dials the next one, and the last
//! dials the destination [CP IV-A, CDD 3]. From then on each moves bytes both ways until
//! both directions have ended.
//!
//! | module | holds |
//! |---|---|
//! | [`relay`] | a relay: opens headers, dials the next hop |
//! | [`gateway`] | a gateway: port forwards, SOCKS5, HTTP CONNECT, routes |
//! | [`forward`] | forwarding without splitting, by the kernel |
//! | [`shutdown`], `signals` | shutdown, upgrade and reload of either |
//! | [`reload`], `live` | the reload of a changed configuration while either runs |
//! | `live_limits`, `timeouts` | the limits and timeouts that a reload changes |
//! | `authorization` | the rules by which open sessions were authorized |
//! | [`buffers`] | the check of this host's limits of socket buffers |
//! | [`local_ports`] | the number of local ports, and their exhaustion |
//! | [`resolver`] | the resolution of names |
//! | [`revocations`] | the file of operators' revocations |
//! | [`handle`] | a view of either while it runs |
//! | `server`, `worker` | a thread for each core, with listeners and sessions of its own |
//! | `capacity` | the number of sessions that memory and descriptors allow |
//! | `admission` | admission of connections within limits, and eviction |
//! | `connection` | a leg's connection, encrypted or not |
//! | [`keys`] | the keys and the grant that a configuration points to |
//! | `head`, `dial`, `opening` | the parts of a session until its path is open |
//! | `local_host` | this host's own addresses, which are refused as destinations |
//! | `own_identities` | the identities of this process: two during a rotation |
//! | `probe_leg` | probes of a path, from one relay to the next |
//! | `session`, `pump`, `side`, `buffer_pool` | an open session, and its bytes |
//! | `stripe` | legs over several connections |
//! | `pool`, `pool_metrics` | connections to next relays that are kept ready |
//! | `profile` | leg profiles applied to sockets |
//! | `pacing_ramp` | the lifting of pacing caps of known rates |
//! | `quota`, `memory` | quotas of each gateway, grant and source, and of all together |
//! | `upgrade` | the takeover by the next process |
//! | `process_resources` | what a process holds beside its sessions |
//! | `access_log` | a line for each session, at its end and at its admission |
//! | `rights` | the rights that a process needs beyond those of every user |
//! | `counts` | the counters, and their metrics |
//! | `failure` | the failures of flows |

pub mod access_log;
mod admission;
mod authorization;
mod buffer_pool;
pub mod buffers;
mod capacity;
mod connection;
mod counts;
mod dial;
mod error;
mod failure;
pub mod forward;
pub mod gateway;
pub mod handle;
mod head;
pub mod keys;
mod live;
mod live_limits;
mod local_host;
pub mod local_ports;
mod memory;
mod opening;
mod own_identities;
mod pacing_ramp;
mod pool;
mod pool_metrics;
mod probe_leg;
mod process_resources;
mod profile;
mod pump;
mod quota;
pub mod relay;
pub mod reload;
pub mod resolver;
pub mod revocations;
mod rights;
mod server;
mod session;
pub mod shutdown;
mod side;
mod signals;
mod stripe;
mod timeouts;
mod upgrade;
mod worker;

pub use error::RelayError;
pub use forward::{ForwardRule, Forwarder};
pub use gateway::{DatagramFlow, Datagrams, Gateway, GatewayReloader, PathsReport, survey};
pub use handle::{Handle, Snapshot};
pub use keys::HeldKeys;
pub use relay::{Relay, RelayReloader};
pub use reload::{Prepared, Reload, Reloads};
pub use resolver::Resolver;
pub use rights::{Rights, check_readers};
pub use server::Additions;
pub use shutdown::Shutdown;
pub use upgrade::Handover;
