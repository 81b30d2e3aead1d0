//! The configuration files of every process, parsed and checked.
//!
//! A file is parsed once, from its text, into one type; reading files is the caller's part. A
//! mistake is one line: the key, its line in the file, and what would be right.
//!
//! | module | holds |
//! |---|---|
//! | [`relay`], [`gateway`] | the files of a relay and of a gateway |
//! | [`forward`] | port forwards of a gateway |
//! | [`jumpstart`] | jump-start's file, and its section of the others |
//! | [`compiled`] | the settings of compiled relays and gateways in such files |
//! | `kind` | which process a file configures |
//! | [`hosts`] | the hosts that agents are put on |
//! | [`keys`] | secret identities |
//! | [`legs`] | profiles of legs |
//! | [`limits`] | limits and timeouts |
//! | [`logs`] | access log and audit log |
//! | [`machines`] | the machines that are made in clouds |
//! | [`traces`] | traces of sessions |
//! | [`packet`] | the packet plane of relays and gateways |
//! | [`users`] | users of a gateway's proxies |
//! | [`listeners`] | listeners that cannot exist beside each other |
//! | `checks` | checks that several files share |
//! | [`schema()`] | JSON schemas of the files |
//! | [`document`] | parsing, and the lines of keys |

mod checks;
pub mod compiled;
pub mod document;
mod error;
pub mod forward;
pub mod gateway;
pub mod hosts;
pub mod jumpstart;
pub mod keys;
mod kind;
pub mod legs;
pub mod limits;
pub mod listeners;
pub mod logs;
pub mod machines;
pub mod packet;
pub mod relay;
mod schema;
#[cfg(test)]
mod tests;
pub mod traces;
pub mod users;

pub use checks::{check_exposed, check_twice};
pub use error::ConfigError;
pub use forward::{Forward, ProxyVersion};
pub use gateway::{GatewayConfig, Tproxy};
pub use hosts::{HostConfig, HostRole, HostsConfig, OwnService};
pub use jumpstart::JumpstartConfig;
pub use keys::{KeySource, Keys};
pub use kind::Kind;
pub use legs::{LegAt, LegProfiles};
pub use limits::{Limits, Share, Timeouts};
pub use logs::{AccessLogConfig, AuditLogConfig, LogTarget};
pub use machines::{AlarmConfig, AzureConfig, GcpConfig, MachineConfig, MachinesConfig};
pub use relay::{PolicyConfig, RelayConfig};
pub use schema::{hosts_schema, machines_schema, schema};
pub use traces::{TracesConfig, TracesEndpoint};
