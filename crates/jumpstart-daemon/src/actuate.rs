//! Actuators, which carry out decisions.

use ipnet::IpNet;
use tradewind_jumpstart::{Change, Setting};
use tradewind_net::NetError;
use tradewind_net::clock::monotonic;
use tradewind_net::jumpstart::{JumpStarts, Options, OwnSockets, ProgramEvent, Values};
use tradewind_net::route::{Placed, Routes, Windows};
use tradewind_units::Segments;

/// Outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// In force.
    Done,
    /// The destination starts as large by itself.
    Unneeded,
    /// Another program's setting is there and was left alone.
    Foreign,
    /// The destination cannot be reached from here, or is this host.
    Unreachable,
    /// Nothing was changed: dry run.
    Shown,
}

impl Outcome {
    /// Returns its word in metrics and logs.
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

/// Applies initial congestion windows. [`Actuator::sweep`] removes everything that the
/// implementation, or an earlier process of its kind, has left.
pub trait Actuator {
    /// Returns its name, as in the configuration.
    fn name(&self) -> &'static str;

    /// Removes everything of ours; returns how much there was. Called at start and stop.
    ///
    /// # Errors
    /// When something of ours cannot be removed.
    fn sweep(&mut self) -> Result<usize, NetError>;

    /// Applies a change.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn apply(&mut self, change: &Change) -> Result<Outcome, NetError>;

    /// Follows changes that others have made; returns the destinations that this affected.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn follow(&mut self) -> Result<Vec<(IpNet, Outcome)>, NetError> {
        Ok(Vec::new())
    }

    /// Returns a descriptor that is readable when there is something to follow.
    fn news(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// Returns whether it sees each connection, and reports how it began.
    fn tells(&self) -> bool {
        false
    }

    /// Returns the part of a destination's rate that is lent to starting connections, where it sees
    /// them.
    fn lent_mbps(&self, _: &IpNet) -> Option<f64> {
        None
    }

    /// Returns the number of events lost so far.
    fn lost_events(&self) -> u64 {
        0
    }

    /// Returns how many of this process's own sockets were announced to it and could not be
    /// recorded so far.
    fn unremembered(&self) -> u64 {
        0
    }

    /// Returns the handle for announcing this process's own sockets, where settings apply to them
    /// alone.
    fn own_sockets(&self) -> Option<OwnSockets> {
        None
    }

    /// Passes its pending events to `each`.
    fn read_events(&mut self, _each: &mut dyn FnMut(ProgramEvent)) {}
}

/// An actuator that changes nothing: dry run.
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

/// A program in the kernel that sees each connection: it paces, shares, and is detached with its
/// owner.
#[derive(Debug)]
pub struct BySockops {
    starts: JumpStarts,
}

impl BySockops {
    /// Attaches the program with `options`.
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

    fn lost_events(&self) -> u64 {
        self.starts.lost_events()
    }

    fn unremembered(&self) -> u64 {
        self.starts.unremembered()
    }

    fn own_sockets(&self) -> Option<OwnSockets> {
        Some(self.starts.own_sockets())
    }

    fn read_events(&mut self, each: &mut dyn FnMut(ProgramEvent)) {
        self.starts.read_events(each);
    }
}

/// Routes with `initcwnd`, as in the paper `[RT Fig. 8]`.
#[derive(Debug)]
pub struct ByRoute {
    routes: Routes,
    receive: Option<Segments>,
}

impl ByRoute {
    /// Opens the routes of the calling thread's network namespace; `receive` is the least initial
    /// receive window that is set with each route.
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

/// Returns the outcome of copying a route again; a copy that the kernel refuses is gone.
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
    fn refused_route_copy_is_not_in_force() {
        let prefix: IpNet = "10.0.0.1/32".parse().unwrap();
        let refused = NetError::system("set a route", std::io::Error::other("out of reach"));
        assert_eq!(followed((prefix, Err(refused))), (prefix, Outcome::Unreachable));
        assert_eq!(followed((prefix, Ok(Placed::Set))), (prefix, Outcome::Done));
    }
}
