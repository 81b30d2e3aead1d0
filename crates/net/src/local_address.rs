//! The host's own addresses, as the kernel's route look-up shows them.
//!
//! Traffic that stays on the host passes none of the firewall rules for external traffic. An
//! address may be added to the host at any time. The kernel queues a message for each change of
//! addresses, routes and rules before the system call of the change returns; so looked-up results
//! are used again as long as that queue is empty, and are never out of date.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::error::{NetError, Result};
use crate::netlink::{NLM_F_REQUEST, Netlink, listen};
use crate::route::kernel::{address, family_of, is_unreachable};

/// Groups of changes that may make an address local, or stop it (`linux/rtnetlink.h`): links,
/// addresses, routes and rules of both families.
const CHANGES: [u32; 7] = [1, 5, 7, 8, 9, 11, 19];
/// Most addresses that are stored. Chosen: some 50 KB, above the destinations of most relays.
const MAX_KNOWN: usize = 1024;

/// A look-up of local addresses in the network namespace where it was opened. It needs no
/// privileges.
#[derive(Debug)]
pub struct LocalAddresses(Mutex<Known>);

#[derive(Debug)]
struct Known {
    netlink: Netlink,
    changes: Socket,
    /// The addresses looked up since the last change, and whether they are local.
    addresses: BTreeMap<IpAddr, bool>,
    generation: u64,
}

impl LocalAddresses {
    /// Opens the netlink sockets.
    ///
    /// # Errors
    /// When the system has no descriptor to give.
    pub fn open() -> Result<Self> {
        let netlink = Netlink::open(NETLINK_ROUTE)?;
        let changes = listen(&CHANGES)
            .map_err(|source| NetError::system("listen to changes of addresses", source))?;
        Ok(Self(Mutex::new(Known { netlink, changes, addresses: BTreeMap::new(), generation: 0 })))
    }

    /// Returns whether packets to `ip` would be delivered to this host itself: as unicast, or as
    /// anycast, broadcast or multicast.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub fn contains(&self, ip: IpAddr) -> Result<bool> {
        let ip = ip.to_canonical();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.follow();
        if known.addresses.len() >= MAX_KNOWN {
            known.addresses.clear();
        }
        if let Some(is_local) = known.addresses.get(&ip) {
            return Ok(*is_local);
        }
        let is_local = look_up(&mut known.netlink, ip)?;
        known.addresses.insert(ip, is_local);
        Ok(is_local)
    }

    /// Returns a number that stays as long as no address can have become local, or stopped being
    /// so.
    ///
    /// # Cost
    /// One system call that finds nothing, as long as it stays.
    #[must_use]
    pub fn generation(&self) -> u64 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.follow();
        known.generation
    }
}

impl Known {
    /// Drops the looked-up results if there were changes since.
    fn follow(&mut self) {
        if self.has_changed() {
            self.addresses.clear();
            self.generation += 1;
        }
    }

    /// Takes all reported changes from the queue, and returns whether there were any; also when
    /// more were reported than it holds.
    fn has_changed(&self) -> bool {
        let mut has_changed = false;
        loop {
            let mut buffer = [0_u8; 64];
            match self.changes.recv(&mut &mut buffer[..], libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return has_changed,
                // A message is truncated to its head: its arrival suffices.
                Ok(_) => has_changed = true,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => has_changed = true,
                Err(_) => return true,
            }
        }
    }
}

/// Asks the kernel for the route to `ip`.
fn look_up(netlink: &mut Netlink, ip: IpAddr) -> Result<bool> {
    let mut question = RouteMessage::default();
    let (family, bits) = family_of(ip);
    question.header.address_family = family;
    question.header.destination_prefix_length = bits;
    question.attributes.push(RouteAttribute::Destination(address(ip)));
    let mut packet = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(question));
    packet.header.flags = NLM_F_REQUEST;
    packet.finalize();
    let mut request = vec![0; packet.buffer_len()];
    packet.serialize(&mut request);
    let mut kind = None;
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
    fn added_address_becomes_local() {
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
        // The kernel puts an IPv6 address in force a moment after it has accepted it.
        let (start, timeout) = (Instant::now(), Duration::from_secs(60));
        while let Some(ip) = all.iter().find(|ip| !holds(ip)) {
            assert!(start.elapsed() < timeout, "{ip}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!holds("203.0.113.8") && !holds("2001:db8::8"));
        set(&["addr del 203.0.113.7/24 dev left"]);
        assert!(!holds("203.0.113.7"));
        // A route, and a rule that leads to another table, make addresses local as well.
        set(&[
            "route add local 198.51.100.0/24 dev lo",
            "route add local 192.0.2.9 dev lo table 77",
        ]);
        assert!(holds("198.51.100.1") && !holds("192.0.2.9"));
        set(&["rule add to 192.0.2.9 lookup 77"]);
        assert!(holds("192.0.2.9"));
    }

    #[test]
    fn lookups_are_cached_until_a_change() {
        let host = match Namespace::create() {
            Ok(host) => host,
            Err(error) => return crate::skipped(&format!("addresses of a host: {error}")),
        };
        let addresses = host.run(LocalAddresses::open).unwrap().unwrap();
        let known = || addresses.0.lock().unwrap().addresses.len();
        for last in 0..5 {
            addresses.contains(IpAddr::from([192, 0, 2, last])).unwrap();
        }
        assert_eq!(known(), 5);
        batch(&host, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
        addresses.contains(IpAddr::from([192, 0, 2, 1])).unwrap();
        assert_eq!(known(), 1);
        for number in 0..2 * MAX_KNOWN as u32 {
            addresses.contains(IpAddr::from(number.to_be_bytes())).unwrap();
        }
        assert!(known() <= MAX_KNOWN);
    }

    #[test]
    fn generation_changes_with_each_change() {
        let host = match Namespace::create() {
            Ok(host) => host,
            Err(error) => return crate::skipped(&format!("addresses of a host: {error}")),
        };
        let set = |line: &str| batch(&host, Tool::Ip, &[line.to_owned()]).unwrap();
        let addresses = host.run(LocalAddresses::open).unwrap().unwrap();
        let first = addresses.generation();
        assert!(!addresses.contains([192, 0, 2, 1].into()).unwrap());
        assert_eq!(addresses.generation(), first);
        set("addr add 192.0.2.1/32 dev lo");
        let second = addresses.generation();
        assert_ne!(second, first);
        set("addr del 192.0.2.1/32 dev lo");
        assert!(!addresses.contains([192, 0, 2, 1].into()).unwrap());
        assert!(![first, second].contains(&addresses.generation()));
    }
}
