//! Jump-start on a host: looks at its connections, lets `tradewind-jumpstart` decide, and acts.
//!
//! ```text
//! each update interval:  observe (sock_diag) -> decide (jumpstart) -> act (sockops, routes, or nothing)
//! in between:            route changes are followed, questions on the control socket are answered
//! at start and stop:     whatever an actuator of ours has left is swept
//! ```
//!
//! Either for the whole host, as a daemon, or for one process inside it ([`Embedded`]). One thread does all of it, so that a change is never half done when a question comes. Telemetry has a
//! thread of its own.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | the configuration file, each default with its reason |
//! | [`observe`] | where samples come from |
//! | [`actuate`] | what decisions act through: [`actuate::Actuator`] |
//! | `choose` | which of them works here |
//! | `receive` | what limits the receiving side here |
//! | [`tuner`] | the loop |
//! | [`embedded`] | the loop inside another process |
//! | `hints` | standing hints by file |
//! | [`control`] | questions and orders from the command line |
//! | [`switch`] | the kill switch |
//! | [`notify`] | telling systemd that it is ready and alive |
//! | `metrics` | what is counted |
//! | `seldom` | a count in the log, seldom |

pub mod actuate;
mod choose;
pub mod config;
pub mod control;
pub mod embedded;
pub mod error;
mod hints;
mod metrics;
pub mod notify;
pub mod observe;
mod receive;
mod seldom;
pub mod switch;
pub mod tuner;

pub use config::TunerConfig;
pub use control::{Request, ask};
pub use embedded::Embedded;
pub use error::TunerError;
pub use switch::Switch;
pub use tuner::Tuner;
