//! The initial windows of all connections to one address, set by a route to it.
//!
//! If no program may be loaded (see [`crate::initial_window`]), a route can carry the first
//! congestion window and the first receive window. It applies to every process of the network
//! namespace, so one is made for a single address only: a copy of the current route
//! ([`crate::route`] makes its own in the same way, for learned windows). A thread follows changes
//! of routes and rules, so that no copy deviates from its original.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType,
};
use nix::net::if_::if_nametoindex;
use tradewind_units::Segments;

use crate::epoll::{Epoll, Waker};
use crate::error::{NetError, Result};
use crate::route::kernel::{Kernel, Mark};
use crate::route::{Placed, Routes, Windows};

/// The mark of these routes: a number that is free in iproute2's and FRR's lists and differs from
/// that of [`crate::route`], whose owner sweeps all routes of its own. An operator's setting takes
/// precedence over learned values, so the metric is the lower one.
const MARK: Mark = Mark { protocol: 83, metric: 8_100_000 };
const CHANGES: u64 = 0;
const STOP: u64 = 1;

/// Routes with initial windows; removed when dropped. After a kill they stay until the next process
/// that wants one for the same address replaces it.
#[derive(Debug)]
pub struct WindowRoutes {
    stop: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl WindowRoutes {
    /// Sets a route to each address like the current one, with initial windows of its own. `refuse`
    /// is called with the reason where that fails, once for each reason: without CAP_NET_ADMIN,
    /// without a route, for addresses of this host, and where a foreign route to this very address
    /// exists.
    ///
    /// # Errors
    /// Without netlink, and without a thread to follow changes.
    pub fn keep(
        wanted: impl IntoIterator<Item = (IpAddr, Segments)>,
        refuse: impl FnMut(IpAddr, NetError) + Send + 'static,
    ) -> Result<Self> {
        let wanted = wanted.into_iter().map(|(address, window)| (IpNet::from(address), window));
        let mut keeper = Keeper {
            routes: Routes::open_as(MARK, true)?,
            wanted: wanted.collect(),
            refused: BTreeMap::new(),
            refuse: Box::new(refuse),
        };
        keeper.place_first();
        let (mut events, stop) = (Epoll::new()?, Arc::new(Waker::new()?));
        events.watch(&keeper.routes, CHANGES)?;
        events.watch(&stop, STOP)?;
        let follow = move || {
            let is_over = |events: &mut Epoll| match events.wait(None) {
                Ok(mut tokens) => tokens.any(|token| token == STOP),
                Err(_) => true,
            };
            while !is_over(&mut events) {
                keeper.follow();
            }
            keeper.remove();
        };
        let thread = Builder::new().name("window-routes".to_owned()).spawn(follow);
        let thread = thread.map_err(|source| NetError::system("start a thread", source))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Sets such a route to an address for documentation [RFC 5737] and removes it.
    ///
    /// # Errors
    /// As [`WindowRoutes::keep`] reports.
    pub fn try_out() -> Result<()> {
        let loopback = if_nametoindex("lo")
            .map_err(|errno| NetError::system("look up the device lo", errno))?;
        let mut base = RouteMessage::default();
        base.header = RouteHeader {
            address_family: AddressFamily::Inet,
            table: RouteHeader::RT_TABLE_MAIN,
            scope: RouteScope::Link,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        base.attributes.push(RouteAttribute::Oif(loopback));
        let prefix = IpNet::from(IpAddr::from([192, 0, 2, 82]));
        let mut kernel = Kernel::open(MARK)?;
        let route = kernel.copy(base, prefix, both(Segments::new(10).expect("above zero")))?;
        kernel.delete(&route)
    }
}

impl Drop for WindowRoutes {
    fn drop(&mut self) {
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Keeper {
    routes: Routes,
    wanted: BTreeMap<IpNet, Segments>,
    /// The last reported reason, for each address without a route.
    refused: BTreeMap<IpNet, String>,
    refuse: Box<dyn FnMut(IpAddr, NetError) + Send>,
}

impl Keeper {
    fn place_first(&mut self) {
        // A route of another process, live or killed, would be copied instead of its original. A
        // process that may not remove them may not set any either, which is reported for each.
        let _ = self.routes.clear(&self.wanted.keys().copied().collect());
        self.place_missing();
    }

    fn follow(&mut self) {
        // A failure is reported by the next attempt.
        let _ = self.routes.follow();
        self.place_missing();
    }

    fn place_missing(&mut self) {
        for (&prefix, &window) in &self.wanted {
            if self.routes.ours().any(|(ours, _)| ours == prefix) {
                continue;
            }
            let placed = self.routes.set(prefix, both(window));
            let Err(error) = placed.and_then(|placed| allowed(prefix, placed)) else {
                self.refused.remove(&prefix);
                continue;
            };
            let reason = error.to_string();
            if self.refused.get(&prefix) != Some(&reason) {
                self.refused.insert(prefix, reason);
                (self.refuse)(prefix.addr(), error);
            }
        }
    }

    fn remove(&mut self) {
        for prefix in self.wanted.keys() {
            // A route that was already removed needs no removal.
            let _ = self.routes.remove(*prefix);
        }
    }
}

/// Returns the same window for both directions.
const fn both(window: Segments) -> Windows {
    Windows { congestion: window, receive: Some(window) }
}

fn allowed(prefix: IpNet, placed: Placed) -> Result<()> {
    match placed {
        Placed::Set | Placed::Unneeded => Ok(()),
        Placed::NoRoute => Err(NetError::Unsupported {
            kernel_feature: "route with windows to an address of this host, or to where none leads",
            needs: "only what leaves the host takes a route that can be set",
        }),
        Placed::Foreign => Err(NetError::system(
            format!("set a route with windows to {}", prefix.addr()),
            io::Error::other(
                "there is one to this very address, or a rule with suppress_prefixlength, \
                 which is left alone",
            ),
        )),
    }
}
