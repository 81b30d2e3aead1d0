//! Routes that carry a first window, as in the paper `[RT Fig. 8]`, and leave everything else as it is.
//!
//! The kernel takes the first window from the route of a connection. So a destination gets a route of its
//! own: a copy of the one that leads there now (all next hops, source, metrics) with `initcwnd` added,
//! under a protocol number of our own by which we know ours again. What a copy could break:
//!
//! - *It outlives its original*, and traffic follows yesterday's next hop. [`Routes::follow`] hears of
//!   route and link changes and takes the copies that they touch anew. As IPv4 routes go with their link or next hop
//!   without a word, it compares all routes with what they were when a link or next hop changes.
//! - *It outlives the rule that led to its original*, and traffic goes round a VPN that has come up.
//!   When rules of policy routing change, all copies are taken anew. Where a rule passes over short
//!   prefixes (`suppress_prefixlength`), and so over the original but not over a copy, there is none.
//! - *It outlives us.* IPv4 routes have no expiry, so [`Routes::sweep`] removes all of ours, at start and stop.
//! - *It hides a route of somebody else's.* A copy is made only where a shorter prefix leads; its metric is
//!   greater than any usual one, so that a route of the same prefix that comes later wins at once.
//! - *It lowers what the administrator set.* Where the route's own first window is as large, there is no copy; a larger
//!   first receive window of its own stays.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteMessage, RouteProtocol};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use tradewind_units::Segments;

use crate::error::{NetError, Result};
use crate::netlink::{messages, u16_at};
use crate::sysctl;

pub(crate) mod kernel;
mod rules;
mod snapshot;
pub(crate) mod told;
use kernel::{Kernel, Mark, OwnWindows, prefix_of};
use rules::Suppressions;
use snapshot::Snapshot;

/// The protocol number of our routes. Chosen: free in iproute2's list, and in no routing daemon's range.
pub const PROTOCOL: u8 = 82;
/// Metric of our routes. Chosen: above every default, so that a foreign route of the same prefix wins.
const METRIC: u32 = 8_200_000;
/// Payload of a segment on Ethernet. Where segments are smaller there is room: at most about half a buffer is window.
const SEGMENT_BYTES: u64 = 1448;
/// Most segments of a first receive window. Chosen: of the largest segments there are, so many still count in 32 bits, in
/// which the kernel counts them.
const MOST_RECEIVE_SEGMENTS: u16 = u16::MAX;
/// Groups of messages about links, IPv4 routes and rules, IPv6 routes and rules, and next hops
/// (`linux/rtnetlink.h`).
const GROUPS: [u32; 6] = [1, 7, 8, 11, 19, 32];
/// Messages of a rule that is new or gone (`RTM_NEWRULE`, `RTM_DELRULE`).
const OF_RULES: [u16; 2] = [32, 33];

/// What became of a request for a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// It is there.
    Set,
    /// The route that leads there has a first window as large by itself.
    Unneeded,
    /// Somebody else has a route of this prefix or inside it, which is left alone, or a rule that
    /// passes over the route
    /// that leads there and would not pass over a copy of it.
    Foreign,
    /// No route leads there, or it leads to this host itself or to nowhere.
    NoRoute,
}

/// A route of ours.
#[derive(Debug, Clone)]
struct Copy {
    route: RouteMessage,
    /// What the route has that it was copied from.
    original: OwnWindows,
    /// What was asked for.
    windows: Windows,
}

/// What a route tells its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// First congestion window.
    pub congestion: Segments,
    /// Least first receive window, where one is to be set: it is never below what connections had without.
    pub receive: Option<Segments>,
}

/// Our routes in the network namespace that this was opened in.
#[derive(Debug)]
pub struct Routes {
    kernel: Kernel,
    changes: Socket,
    links: Links,
    /// What the largest receive buffer here holds.
    buffers: Option<Segments>,
    ours: BTreeMap<IpNet, Copy>,
    /// Others' routes as they were when they were last compared; none before the first copy.
    known: Option<Snapshot>,
    /// Rules as they were when they were last read; none before the first copy, and after a change.
    suppressions: Option<Suppressions>,
    /// An operator asked for the windows: they hold as they are, also where others were learned.
    is_asked: bool,
}

impl Routes {
    /// Opens the kernel's routes of the calling thread's network namespace; changes nothing.
    ///
    /// # Errors
    /// When this kernel has no netlink.
    pub fn open() -> Result<Self> {
        Self::open_as(Mark { protocol: PROTOCOL, metric: METRIC }, false)
    }

    /// Opens them for routes with `mark`; `is_asked` where an operator states their windows.
    pub(crate) fn open_as(mark: Mark, is_asked: bool) -> Result<Self> {
        let kernel = Kernel::open(mark)?;
        let listen = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.set_non_blocking(true)?;
            for group in GROUPS {
                // An old kernel lacks the group of next hops and tells of their routes instead.
                let _ = socket.add_membership(group);
            }
            Ok::<_, std::io::Error>(socket)
        };
        let changes = listen().map_err(|e| NetError::system("listen to route changes", e))?;
        Ok(Self {
            kernel,
            changes,
            links: Links::default(),
            buffers: largest_buffer(),
            ours: BTreeMap::new(),
            known: None,
            suppressions: None,
            is_asked,
        })
    }

    /// Removes all routes with our protocol number, whoever left them; returns how many there were.
    ///
    /// # Errors
    /// Without the right to change routes.
    pub fn sweep(&mut self) -> Result<usize> {
        self.ours.clear();
        let left = self.kernel.marked()?;
        for route in &left {
            self.kernel.delete(route)?;
        }
        Ok(left.len())
    }

    /// Removes routes with our mark to `prefixes`, whoever left them: a copy would be made of them.
    pub(crate) fn clear(&mut self, prefixes: &BTreeSet<IpNet>) -> Result<()> {
        let left = self.kernel.marked()?;
        let of_these = |route: &&RouteMessage| {
            prefix_of(route).is_some_and(|prefix| prefixes.contains(&prefix))
        };
        left.iter().filter(of_these).try_for_each(|route| self.kernel.delete(route))
    }

    /// Gives connections to `prefix` their first windows, none smaller than the route has that leads there without us.
    ///
    /// # Errors
    /// Without the right to change routes, and where the kernel does not take a copy of the route that leads there.
    ///
    /// # Cost
    /// The first time, reads all routes.
    pub fn set(&mut self, prefix: IpNet, windows: Windows) -> Result<Placed> {
        if self.known.is_none() {
            self.known = Some(self.kernel.snapshot()?);
        }
        let (base, original) = match self.ours.get(&prefix) {
            Some(copy) => (copy.route.clone(), copy.original),
            None => match self.base_of(prefix)? {
                Ok(base) => {
                    let original = OwnWindows::of(&base);
                    (base, original)
                }
                Err(placed) => return Ok(placed),
            },
        };
        if !self.is_asked && original.congestion >= Some(windows.congestion) {
            self.remove(prefix)?;
            return Ok(Placed::Unneeded);
        }
        // Since Linux 4.20 `initrwnd` only holds a first receive window below its buffer.
        let without = original.receive.or(self.buffers).filter(|_| !self.is_asked);
        let receive = windows.receive.and_then(|least| without.max(Some(least)));
        let given = Windows { receive, ..windows };
        let route = self.kernel.copy(base, prefix, given)?;
        self.ours.insert(prefix, Copy { route, original, windows });
        Ok(Placed::Set)
    }

    /// Takes our route to `prefix` away, if there is one; what could not be taken away is still known as ours.
    ///
    /// # Errors
    /// Without the right to change routes.
    pub fn remove(&mut self, prefix: IpNet) -> Result<()> {
        let Some(copy) = self.ours.get(&prefix) else { return Ok(()) };
        self.kernel.delete(&copy.route)?;
        self.ours.remove(&prefix);
        Ok(())
    }

    /// Our routes as far as we know, with their windows.
    pub fn ours(&self) -> impl Iterator<Item = (IpNet, Windows)> {
        self.ours.iter().map(|(prefix, copy)| (*prefix, copy.windows))
    }

    /// Copies anew what route and link changes since the last call have touched, and everything
    /// after a change of rules;
    /// returns which prefixes, and of each what became of it: one that the kernel refuses keeps no
    /// other from being
    /// followed. Does not wait for changes.
    ///
    /// # Cost
    /// Reads all routes where a link or next hop has changed.
    pub fn follow(&mut self) -> Vec<(IpNet, Result<Placed>)> {
        let Heard { mut prefixes, silently, rules, untold } = self.heard();
        let compared = if silently || untold { self.changed_silently() } else { Some(Vec::new()) };
        if rules || untold {
            self.suppressions = None;
        }
        let touched = match compared.filter(|_| !untold && !rules) {
            Some(more) => {
                prefixes.extend(more);
                self.touched_by(&prefixes)
            }
            None => self.ours.keys().copied().collect(),
        };
        touched.into_iter().map(|prefix| (prefix, self.take_anew(prefix))).collect()
    }

    /// The prefixes whose routes are not as they were at the last comparison; `None` where that cannot be told.
    fn changed_silently(&mut self) -> Option<Vec<IpNet>> {
        if self.ours.is_empty() {
            return Some(Vec::new());
        }
        let now = self.kernel.settle().and_then(|()| self.kernel.snapshot()).ok()?;
        let changed = self.known.as_ref().map(|before| now.changed_since(before));
        self.known = Some(now);
        changed
    }

    /// Copies what leads to `prefix` now. Where that is refused, no copy is left.
    fn take_anew(&mut self, prefix: IpNet) -> Result<Placed> {
        let Some(windows) = self.ours.get(&prefix).map(|copy| copy.windows) else {
            return Ok(Placed::NoRoute);
        };
        self.remove(prefix)?;
        self.set(prefix, windows)
    }

    fn touched_by(&self, changed: &[IpNet]) -> Vec<IpNet> {
        let touches =
            |ours: &IpNet| changed.iter().any(|net| net.contains(ours) || ours.contains(net));
        self.ours.keys().copied().filter(touches).collect()
    }

    /// Reads what the kernel tells of changes that are not ours.
    fn heard(&mut self) -> Heard {
        let mut heard = Heard::default();
        let mut room = Vec::with_capacity(64 * 1024);
        loop {
            room.clear();
            match self.changes.recv(&mut room, 0) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // The kernel had more to tell than there was room for (ENOBUFS).
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    (heard.untold, self.links) = (true, Links::default());
                }
                Err(_) => break,
            }
            for message in messages(&room) {
                if OF_RULES.contains(&u16_at(message, 4)) {
                    heard.rules = true;
                    continue;
                }
                match NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).map(|m| m.payload)
                {
                    Ok(NetlinkPayload::InnerMessage(
                        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
                    )) => {
                        if route.header.protocol != self.kernel.protocol() {
                            heard.prefixes.extend(prefix_of(&route));
                        }
                    }
                    // IPv4 routes vanish with their link or next hop without a word.
                    Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link))) => {
                        heard.silently |= self.links.has_turned(&link);
                    }
                    Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link))) => {
                        self.links.0.remove(&link.header.index);
                        heard.silently = true;
                    }
                    _ => heard.silently = true,
                }
            }
        }
        heard
    }

    /// The route that leads to all of `prefix` now, or why there is none to copy.
    fn base_of(&mut self, prefix: IpNet) -> Result<Result<RouteMessage, Placed>> {
        let Some(base) = self.kernel.leading_to(prefix)? else { return Ok(Err(Placed::NoRoute)) };
        // A learned one is a copy itself.
        let is_learned = base.header.protocol == RouteProtocol::Other(PROTOCOL);
        let is_copy = self.is_asked && is_learned && prefix_of(&base) == Some(prefix);
        if base.header.destination_prefix_length >= prefix.prefix_len() && !is_copy {
            return Ok(Err(Placed::Foreign));
        }
        if self.suppressions.is_none() {
            self.suppressions = Some(self.kernel.suppressions()?);
        }
        if self.suppressions.as_ref().is_some_and(|rules| rules.spare_copy(&base, prefix)) {
            return Ok(Err(Placed::Foreign));
        }
        Ok(Ok(base))
    }
}

impl AsFd for Routes {
    /// Has input when there is something to [`Routes::follow`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// The segments that the largest receive buffer holds which a socket here may have: what the kernel grows one to, or a
/// program may ask for, of which the kernel makes twice as much.
fn largest_buffer() -> Option<Segments> {
    let grown = sysctl::get("net.ipv4.tcp_rmem").unwrap_or_default();
    let asked = sysctl::get("net.core.rmem_max").unwrap_or_default();
    let bytes = |text: &str| text.parse::<u64>().ok();
    let grown = grown.split_whitespace().filter_map(bytes).max();
    let most = grown.max(bytes(&asked).map(|bytes| bytes.saturating_mul(2)))?;
    let segments = most.div_ceil(SEGMENT_BYTES).clamp(1, MOST_RECEIVE_SEGMENTS.into());
    Segments::new(u32::try_from(segments).ok()?).ok()
}

/// Whether each link is up, as it was told last.
#[derive(Debug, Default)]
struct Links(BTreeMap<u32, LinkFlags>);

impl Links {
    /// Whether `link` went up or down, or is told of for the first time: the kernel tells of much else that moves no route.
    fn has_turned(&mut self, link: &LinkMessage) -> bool {
        let up = LinkFlags::Up | LinkFlags::Running | LinkFlags::LowerUp;
        let now = link.header.flags & up;
        self.0.insert(link.header.index, now) != Some(now)
    }
}

/// What the kernel has told of changes.
#[derive(Debug, Default)]
struct Heard {
    /// Of routes with these prefixes.
    prefixes: Vec<IpNet>,
    /// Of something with which routes come and go without a word.
    silently: bool,
    /// Of rules, by which another route may lead anywhere.
    rules: bool,
    /// And of more than it had room for.
    untold: bool,
}

#[cfg(test)]
mod tests;
