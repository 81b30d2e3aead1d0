//! What decisions act through.

use ipnet::IpNet;
use tradewind_jumpstart::{Change, Setting};
use tradewind_net::NetError;
use tradewind_net::clock::monotonic;
use tradewind_net::jump_start::{JumpStarts, Options, OwnSockets, Told, Values};
use tradewind_net::route::{Placed, Routes, Windows};
use tradewind_units::Segments;

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// In force.
    Done,
    /// The destination starts as large by itself.
    Unneeded,
    /// Somebody else's setting is there and was left alone.
    Foreign,
    /// The destination cannot be reached from here, or is this host.
    Unreachable,
    /// Nothing acts: only shown.
    Shown,
}

impl Outcome {
    /// A word for metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Unneeded => "unneeded",
            Self::Foreign => "foreign",
            Self::Unreachable => "unreachable",
            Self::Shown => "shown",
        }
    }
}

/// Makes first windows come true. An implementation removes in [`Actuator::sweep`] all that it, or an
/// earlier process of its kind, has left.
pub trait Actuator {
    /// Its name, as in the configuration.
    fn name(&self) -> &'static str;

    /// Removes whatever is ours; returns how much there was. Called at start and stop.
    ///
    /// # Errors
    /// When something of ours cannot be removed.
    fn sweep(&mut self) -> Result<usize, NetError>;

    /// Carries a change out.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn apply(&mut self, change: &Change) -> Result<Outcome, NetError>;

    /// Catches up with what others have changed; returns the destinations that this touched.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn follow(&mut self) -> Result<Vec<(IpNet, Outcome)>, NetError> {
        Ok(Vec::new())
    }

    /// A descriptor that has input when there is something to follow.
    fn news(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// Whether it sees each connection, and tells how it began.
    fn tells(&self) -> bool {
        false
    }

    /// What of a destination's rate is lent out to starting connections, where it sees them.
    fn lent_mbps(&self, _: &IpNet) -> Option<f64> {
        None
    }

    /// How much it could not tell so far.
    fn untold(&self) -> u64 {
        0
    }

    /// How many of this process's own sockets it was told of and could not remember so far.
    fn unremembered(&self) -> u64 {
        0
    }

    /// What is to be told of this process's own sockets, where only they start so.
    fn own_sockets(&self) -> Option<OwnSockets> {
        None
    }

    /// Hands what it has to tell to `each`.
    fn hear(&mut self, _each: &mut dyn FnMut(Told)) {}
}

/// Dry run.
#[derive(Debug)]
pub struct Nothing;

impl Actuator for Nothing {
    fn name(&self) -> &'static str {
        "none"
    }

    fn sweep(&mut self) -> Result<usize, NetError> {
        Ok(0)
    }

    fn apply(&mut self, _: &Change) -> Result<Outcome, NetError> {
        Ok(Outcome::Shown)
    }
}

/// A program in the kernel that sees each connection: paces, shares, and ends with its owner.
#[derive(Debug)]
pub struct BySockops {
    starts: JumpStarts,
}

impl BySockops {
    /// Acts on connections as `options` say.
    ///
    /// # Errors
    /// As [`JumpStarts::attach`].
    pub fn attach(options: &Options) -> Result<Self, NetError> {
        Ok(Self { starts: JumpStarts::attach(options)? })
    }
}

impl Actuator for BySockops {
    fn name(&self) -> &'static str {
        "sockops"
    }

    fn sweep(&mut self) -> Result<usize, NetError> {
        self.starts.clear()
    }

    fn apply(&mut self, change: &Change) -> Result<Outcome, NetError> {
        match change {
            Change::Set(Setting { prefix, window, pacing, rtt, expires, .. }) => {
                let (window, rate, rtt, expires) = (*window, *pacing, *rtt, *expires);
                self.starts.set(*prefix, Values { window, rate, rtt, expires })?;
            }
            Change::Renew { prefix, expires } => {
                self.starts.renew(prefix, monotonic(), *expires)?;
            }
            Change::Remove { prefix, .. } => self.starts.remove(prefix)?,
        }
        Ok(Outcome::Done)
    }

    fn tells(&self) -> bool {
        true
    }

    fn lent_mbps(&self, prefix: &IpNet) -> Option<f64> {
        self.starts.lent(prefix, monotonic()).map(|bytes_per_s| bytes_per_s as f64 * 8.0 / 1e6)
    }

    fn untold(&self) -> u64 {
        self.starts.untold()
    }

    fn unremembered(&self) -> u64 {
        self.starts.unremembered()
    }

    fn own_sockets(&self) -> Option<OwnSockets> {
        Some(self.starts.own_sockets())
    }

    fn hear(&mut self, each: &mut dyn FnMut(Told)) {
        self.starts.hear(each);
    }
}

/// Routes with `initcwnd`, as in the paper `[RT Fig. 8]`.
#[derive(Debug)]
pub struct ByRoute {
    routes: Routes,
    receive: Option<Segments>,
}

impl ByRoute {
    /// Acts on the calling thread's network namespace; `receive` is the least first receive window that
    /// goes with each route.
    ///
    /// # Errors
    /// When this kernel has no netlink.
    pub fn open(receive: Option<Segments>) -> Result<Self, NetError> {
        Ok(Self { routes: Routes::open()?, receive })
    }
}

impl Actuator for ByRoute {
    fn name(&self) -> &'static str {
        "routes"
    }

    fn sweep(&mut self) -> Result<usize, NetError> {
        self.routes.sweep()
    }

    fn apply(&mut self, change: &Change) -> Result<Outcome, NetError> {
        match change {
            Change::Set(Setting { prefix, window, .. }) => {
                let windows = Windows { congestion: *window, receive: self.receive };
                self.routes.set(*prefix, windows).map(outcome)
            }
            // Routes have no expiry to renew.
            Change::Renew { .. } => Ok(Outcome::Done),
            Change::Remove { prefix, .. } => self.routes.remove(*prefix).map(|()| Outcome::Done),
        }
    }

    fn follow(&mut self) -> Result<Vec<(IpNet, Outcome)>, NetError> {
        Ok(self.routes.follow().into_iter().map(followed).collect())
    }

    fn news(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        Some(std::os::fd::AsFd::as_fd(&self.routes))
    }
}

const fn outcome(placed: Placed) -> Outcome {
    match placed {
        Placed::Set => Outcome::Done,
        Placed::Unneeded => Outcome::Unneeded,
        Placed::Foreign => Outcome::Foreign,
        Placed::NoRoute => Outcome::Unreachable,
    }
}

/// What became of a copy that was to be taken anew; one that the kernel refuses is gone.
fn followed((prefix, placed): (IpNet, Result<Placed, NetError>)) -> (IpNet, Outcome) {
    let outcome = placed.map(outcome).unwrap_or_else(|error| {
        tracing::warn!(%prefix, %error, "a route is not copied anew");
        Outcome::Unreachable
    });
    (prefix, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_refused_is_not_in_force() {
        let prefix: IpNet = "10.0.0.1/32".parse().unwrap();
        let refused = NetError::system("set a route", std::io::Error::other("out of reach"));
        assert_eq!(followed((prefix, Err(refused))), (prefix, Outcome::Unreachable));
        assert_eq!(followed((prefix, Ok(Placed::Set))), (prefix, Outcome::Done));
    }
}
