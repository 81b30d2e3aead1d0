//! The host's own addresses, looked up in the kernel each time.
//!
//! Traffic that stays on the host passes none of the firewall rules for external traffic. An
//! address may be added to the host at any time, so nothing is cached: the kernel's route look-up
//! shows what it would do with a packet now.

use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::error::{NetError, Result};
use crate::netlink::{NLM_F_REQUEST, Netlink};
use crate::route::kernel::{address, family_of, is_unreachable};

/// A look-up of local addresses in the network namespace where it was opened. It needs no
/// privileges.
#[derive(Debug)]
pub struct LocalAddresses(Mutex<Netlink>);

impl LocalAddresses {
    /// Opens the netlink socket.
    ///
    /// # Errors
    /// When the system has no descriptor to give.
    pub fn open() -> Result<Self> {
        Ok(Self(Mutex::new(Netlink::open(NETLINK_ROUTE)?)))
    }

    /// Returns whether packets to `ip` would be delivered to this host itself: as unicast, or as
    /// anycast, broadcast or multicast.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub fn contains(&self, ip: IpAddr) -> Result<bool> {
        let mut question = RouteMessage::default();
        let (family, bits) = family_of(ip.to_canonical());
        question.header.address_family = family;
        question.header.destination_prefix_length = bits;
        question.attributes.push(RouteAttribute::Destination(address(ip.to_canonical())));
        let mut packet = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(question));
        packet.header.flags = NLM_F_REQUEST;
        packet.finalize();
        let mut request = vec![0; packet.buffer_len()];
        packet.serialize(&mut request);
        let mut kind = None;
        let mut netlink = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = netlink.ask(&mut request, |answer| kind = kind_of(answer).or(kind));
        match asked {
            Ok(()) => {}
            Err(error) if is_unreachable(&error) => return Ok(false),
            Err(error) => return Err(NetError::system(format!("look up {ip}"), error)),
        }
        let silent = || {
            let source = io::Error::from(io::ErrorKind::InvalidData);
            NetError::system(format!("look up {ip}"), source)
        };
        let kind = kind.ok_or_else(silent)?;
        Ok(matches!(
            kind,
            RouteType::Local | RouteType::Anycast | RouteType::Broadcast | RouteType::Multicast
        ))
    }
}

fn kind_of(answer: &[u8]) -> Option<RouteType> {
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer).ok()?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
            Some(route.header.kind)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::iproute::{Tool, batch};
    use crate::netns::Namespace;

    #[test]
    fn loopback_is_local_and_documentation_is_not() {
        let addresses = LocalAddresses::open().unwrap();
        for ip in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(addresses.contains(ip.parse().unwrap()).unwrap(), "{ip}");
        }
        for ip in ["192.0.2.77", "2001:db8::77"] {
            assert!(!addresses.contains(ip.parse().unwrap()).unwrap(), "{ip}");
        }
    }

    #[test]
    fn an_address_that_appears_later_is_local_from_then_on() {
        let host = match Namespace::create() {
            Ok(host) => host,
            Err(error) => return crate::skipped(&format!("addresses of a host: {error}")),
        };
        let set = |lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
            batch(&host, Tool::Ip, &lines).unwrap();
        };
        set(&["link set lo up", "link add left type veth peer name right", "link set left up"]);
        let addresses = host.run(LocalAddresses::open).unwrap().unwrap();
        let holds = |ip: &str| addresses.contains(ip.parse().unwrap()).unwrap();
        let all = ["203.0.113.7", "203.0.113.255", "2001:db8::7"];
        assert!(all.iter().all(|ip| !holds(ip)), "nobody has them yet");
        set(&["addr add 203.0.113.7/24 brd + dev left", "addr add 2001:db8::7/64 dev left nodad"]);
        // The kernel puts an address of IPv6 in force a moment after it has taken it.
        let (start, patience) = (Instant::now(), Duration::from_secs(60));
        while let Some(ip) = all.iter().find(|ip| !holds(ip)) {
            assert!(start.elapsed() < patience, "{ip}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!holds("203.0.113.8") && !holds("2001:db8::8"));
        set(&["addr del 203.0.113.7/24 dev left"]);
        assert!(!holds("203.0.113.7"));
    }
}
