//! The stream plane: relays that split TCP sessions, and gateways beside applications.
//!
//! A gateway accepts an application's connection, asks its route table for the path and sends a
//! hop header to the first relay. Each relay checks the header, dials the next one, and the last
//! dials the destination [CP IV-A, CDD 3]. From then on each moves bytes both ways until
//! both directions have ended.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | what a relay and a gateway are told, in TOML |
//! | [`relay`] | a relay: opens headers, dials on |
//! | [`gateway`] | a gateway: port forwards, SOCKS5, HTTP CONNECT, routes |
//! | [`forward`] | forwarding without splitting, by the kernel |
//! | [`shutdown`], `signals` | how either is told to end, to upgrade or to reload |
//! | [`reload`], `live` | what either takes over of a changed configuration while it runs |
//! | `live_limits`, `timeouts` | of these, limits and timeouts |
//! | `authorization` | what open sessions were let in by |
//! | [`buffers`] | whether this host allows the buffers that legs need |
//! | [`local_ports`] | whether this host has a local port for each connection |
//! | [`resolver`] | what names mean |
//! | [`revocations`] | the file of what operators have revoked |
//! | [`handle`] | what can be seen of either while it runs |
//! | `server`, `worker` | a thread for each core with listeners of its own, where a session stays |
//! | `capacity` | how many sessions memory and descriptors allow |
//! | `admission` | which connections have a place, and which are evicted for others |
//! | `connection` | a leg's connection, encrypted or not |
//! | `head`, `dial`, `opening` | the parts of a session until its path is open |
//! | `own_identities` | who this process is, during a rotation by two names |
//! | `probe_leg` | probes of a path, from one relay to the next |
//! | `session`, `pump`, `side`, `buffer_pool` | a session from then on: the moving of bytes, between what, and with what |
//! | `stripe` | a session of which a leg runs over several connections |
//! | `pool`, `pool_metrics` | connections to next relays that are kept ready |
//! | `profile` | what leg profiles make of sockets |
//! | `pacing_ramp` | how pacing caps of known rates are lifted |
//! | `quota`, `memory` | what each gateway, grant and source and all together may take |
//! | `upgrade`, `process_resources` | how the next process takes over |
//! | `access_log` | a line for each session, at its end and when rules let it in |
//! | `rights` | what is needed of the host beyond what every user has |
//! | `counts` | what is counted, and its metrics |
//! | `failure` | why a flow was not carried |

pub mod access_log;
mod admission;
mod authorization;
mod buffer_pool;
pub mod buffers;
mod capacity;
pub mod config;
mod connection;
mod counts;
mod dial;
mod error;
mod failure;
pub mod forward;
pub mod gateway;
pub mod handle;
mod head;
mod live;
mod live_limits;
pub mod local_ports;
mod memory;
mod opening;
mod own_host;
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

pub use config::{GatewayConfig, RelayConfig};
pub use error::RelayError;
pub use forward::{ForwardRule, Forwarder};
pub use gateway::{DatagramFlow, Datagrams, Gateway, GatewayReloader, PathsReport, survey};
pub use handle::{Handle, Snapshot};
pub use relay::{Relay, RelayReloader};
pub use reload::{Prepared, Reload, Reloads};
pub use resolver::Resolver;
pub use rights::{HeldKeys, check_readers};
pub use server::Additions;
pub use shutdown::Shutdown;
pub use upgrade::Handover;
