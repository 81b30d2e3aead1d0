//! The first windows of all connections to one address, by a route to it.
//!
//! Where no program may be loaded (see [`crate::first_window`]), a route can carry the first
//! congestion window and the first receive window. It speaks for every process of the network
//! namespace, so one is made for a single address only: a copy of the route that is taken anyway
//! ([`crate::route`] makes its own in the same way, for what was learned).

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use nix::net::if_::if_nametoindex;
use tradewind_units::Segments;

use crate::error::{NetError, Result};
use crate::route::kernel::{Kernel, Mark, prefix_of};
use crate::route::{self, Windows};

/// Marks these routes among others': a number that is free in iproute2's and FRR's lists and not that of
/// [`crate::route`], whose owner sweeps all routes of its own. What an operator asked for goes before what was
/// learned, so the metric is the lower one.
const MARK: Mark = Mark { protocol: 83, metric: 8_100_000 };

/// A route with first windows; taken away when dropped. After a kill it stays until the next
/// process that wants one for the same address replaces it.
#[derive(Debug)]
pub struct WindowRoute {
    kernel: Kernel,
    route: RouteMessage,
}

impl WindowRoute {
    /// Makes a route to `address` like the one that is taken now, with first windows of `window`.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, without a route, for addresses of this host, and where somebody else has a
    /// route to this very address.
    pub fn set(address: IpAddr, window: Segments) -> Result<Self> {
        let mut kernel = Kernel::open(MARK)?;
        let prefix = IpNet::from(address);
        // One that another process has, or had, would be copied in place of what it was copied from.
        let same = |route: &RouteMessage| prefix_of(route) == Some(prefix);
        kernel.marked()?.iter().filter(|route| same(route)).try_for_each(|r| kernel.delete(r))?;
        let base = kernel.leading_to(prefix)?.ok_or(NetError::Unsupported {
            ability: "route with windows to an address of this host, or to where none leads",
            needs: "only what leaves the host takes a route that can be set",
        })?;
        // A learned one is a copy itself.
        let is_learned = base.header.protocol == RouteProtocol::Other(route::PROTOCOL);
        if base.header.destination_prefix_length == prefix.prefix_len() && !is_learned {
            return Err(NetError::system(
                format!("set a route with windows to {address}"),
                io::Error::other("there is one to this very address, which is left alone"),
            ));
        }
        Self::copy(kernel, base, prefix, window)
    }

    /// Makes such a route to an address of documentation [RFC 5737] and takes it away.
    ///
    /// # Errors
    /// As [`WindowRoute::set`].
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
        let window = Segments::new(10).expect("above zero");
        Self::copy(Kernel::open(MARK)?, base, prefix, window).map(drop)
    }

    fn copy(
        mut kernel: Kernel,
        base: RouteMessage,
        prefix: IpNet,
        window: Segments,
    ) -> Result<Self> {
        let windows = Windows { congestion: window, receive: Some(window) };
        let route = kernel.copy(base, prefix, windows)?;
        Ok(Self { kernel, route })
    }
}

impl Drop for WindowRoute {
    fn drop(&mut self) {
        // Whoever has removed it already did what is wanted here.
        let _removed = self.kernel.delete(&self.route);
    }
}
