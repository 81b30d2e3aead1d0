//! The same for packets of any protocol: those to chosen ranges are routed into a device of the process that takes them.
//!
//! The routes are in a table of our own, which all look into first but who has the mark [`OWN_MARK`]: what the process itself sends goes its
//! usual way, be it to the same ranges. A TUN device that its process's end takes away takes the routes along, and what is left of the
//! table is empty, so that packets go their old way at once.

use std::net::IpAddr;

use super::{OWN_MARK, Routing};
use crate::error::Result;

/// Routes in force; they are removed when this is dropped.
#[derive(Debug)]
pub struct Detour {
    _routing: Routing,
}

impl Detour {
    /// Has packets to `ranges`, addresses that share the first bits, leave through `device`, in this thread's network namespace.
    ///
    /// # Errors
    /// When `ip` is missing or may not, or there is no such device.
    pub fn set(device: &str, ranges: &[(IpAddr, u8)]) -> Result<Self> {
        let (routing, mark) = (Routing::claim()?, format!("{OWN_MARK:#x}"));
        for (family, is_ipv6) in [("-4", false), ("-6", true)] {
            let mut ranges = ranges.iter().filter(|range| range.0.is_ipv6() == is_ipv6).peekable();
            if ranges.peek().is_none() {
                continue;
            }
            for (base, bits) in ranges {
                routing.route(family, &[&format!("{base}/{bits}"), "dev", device])?;
            }
            routing.rule(family, &["not", "fwmark", &mark])?;
        }
        Ok(Self { _routing: routing })
    }
}
