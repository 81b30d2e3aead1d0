//! Jump-start on a host: observes its connections, lets `tradewind-jumpstart` decide, and acts.
//!
//! ```text
//! each interval:      observe (sock_diag) -> decide (jumpstart) -> act (sockops, routes, none)
//! in between:         route changes are followed, requests on the control socket are answered
//! at start and stop:  everything that our actuators have left is removed
//! ```
//!
//! Either for the whole host, as a daemon, or for one process inside it ([`Embedded`]). One thread
//! does all of it, so that a change is never half done when a request arrives. Telemetry has its
//! own thread.
//!
//! | module | holds |
//! |---|---|
//! | [`observe`] | the source of samples |
//! | [`actuate`] | how decisions are carried out: [`actuate::Actuator`] |
//! | `choose` | the actuator that works here |
//! | `receive` | limits of this host on the receiving side |
//! | [`daemon`] | the loop |
//! | [`embedded`] | the loop inside another process |
//! | `hints` | standing hints by file |
//! | [`control`] | requests and commands from the command line |
//! | [`switch`] | the kill switch |
//! | [`kernel`] | the configuration as the kernel takes it |
//! | `metrics` | counters and gauges |
//! | `count_log` | rate-limited logging of a count |

pub mod actuate;
mod choose;
pub mod control;
mod count_log;
pub mod daemon;
pub mod embedded;
pub mod error;
mod hints;
pub mod kernel;
mod metrics;
pub mod observe;
mod receive;
pub mod switch;

pub use control::{Request, SharedWindow, ask};
pub use daemon::Daemon;
pub use embedded::Embedded;
pub use error::DaemonError;
pub use switch::Switch;
