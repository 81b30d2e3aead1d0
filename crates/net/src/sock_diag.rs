//! All TCP connections of a network namespace with their figures: `sock_diag`, the source of `ss
//! -tin`.
//!
//! The kernel answers with `struct inet_diag_msg` and attributes (`linux/inet_diag.h`); the
//! attribute `INET_DIAG_INFO` is `struct tcp_info` in the running kernel's length, which
//! [`TcpInfo::parse`] reads.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;

use crate::cgroup;
use crate::error::{NetError, Result};
use crate::netlink::{NLM_F_DUMP, NLM_F_REQUEST, Netlink, u16_at, u32_at};
use crate::tcp_info::TcpInfo;

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// Lengths of a message's header, and of the request after it.
const HEADER: usize = 16;
const QUESTION: usize = 56;
/// Length of `struct inet_diag_msg`.
const ANSWER: usize = 72;
/// The attribute that holds `struct tcp_info`.
const INET_DIAG_INFO: u16 = 2;
/// The attribute that holds the id of the socket's control group of version 2 (Linux 5.9); it is
/// sent unrequested.
const INET_DIAG_CGROUP_ID: u16 = 21;
/// States that have sent data or can: established, both kinds of half-closed, closing; one bit
/// each.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// One connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// The kernel's id of it (cookie), unique as long as this machine runs.
    pub cookie: u64,
    /// The local address.
    pub local: SocketAddr,
    /// The remote address.
    pub remote: SocketAddr,
    /// Its figures.
    pub info: TcpInfo,
}

/// A selection of connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Ports, at either end; all when empty.
    pub ports: Vec<u16>,
    /// Prefixes of the remote address; all when empty.
    pub within: Vec<IpNet>,
    /// Excluded prefixes of the remote address.
    pub except: Vec<IpNet>,
    /// The directory of the control group (version 2) whose sockets are selected, with those of the
    /// groups below it; all when absent. A socket belongs to the group in which its process created
    /// it.
    pub cgroup: Option<PathBuf>,
    /// True to select only sockets of this process, including those that others hold as well.
    pub own: bool,
}

impl Filter {
    fn wants(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let port = |end: SocketAddr| self.ports.contains(&end.port());
        let inside = |prefixes: &[IpNet]| prefixes.iter().any(|net| net.contains(&remote.ip()));
        (self.ports.is_empty() || port(local) || port(remote))
            && (self.within.is_empty() || inside(&self.within))
            && !inside(&self.except)
    }
}

/// A reader of the connections of the namespace where it was opened.
#[derive(Debug)]
pub struct SockDiag {
    netlink: Netlink,
}

impl SockDiag {
    /// Opens it in the calling thread's network namespace. Needs no privilege.
    ///
    /// # Errors
    /// When this kernel has no netlink.
    pub fn open() -> Result<Self> {
        Ok(Self { netlink: Netlink::open(netlink_sys::protocols::NETLINK_SOCK_DIAG)? })
    }

    /// Calls `each` with each selected connection, IPv4 and IPv6. Addresses are plain IPv4 where an
    /// IPv6 socket carries it.
    ///
    /// # Errors
    /// When this kernel has no `sock_diag` for TCP, the filter's control group cannot be read or is
    /// not reported, or this process's descriptors cannot be read.
    ///
    /// # Cost
    /// Some 2 us per connection of the namespace; with `own` also a system call for each descriptor
    /// up to the highest that was open.
    pub fn each(&mut self, filter: &Filter, mut each: impl FnMut(&Connection)) -> Result<()> {
        // Groups come and go, so they are looked up each time.
        let groups = filter.cgroup.as_deref().map(cgroup::numbers_below).transpose()?;
        let own = filter.own.then(own_inodes).transpose()?;
        let mut lacks_group = false;
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut question = question(family as u8);
            let answered = self.netlink.ask(&mut question, |message| {
                let answer = &message[HEADER..];
                let Some(connection) = parse(answer, filter) else { return };
                if own.as_ref().is_some_and(|own| !own.contains(&inode_of(answer))) {
                    return;
                }
                match (&groups, group_of(answer)) {
                    (None, _) => each(&connection),
                    (Some(wanted), Some(group)) if wanted.contains(&group) => each(&connection),
                    (Some(_), Some(_)) => {}
                    (Some(_), None) => lacks_group = true,
                }
            });
            match answered {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    return Err(NetError::Unsupported {
                        kernel_feature: "list of TCP connections (sock_diag)",
                        needs: "the kernel module tcp_diag (CONFIG_INET_TCP_DIAG)",
                    });
                }
                other => other.map_err(|e| NetError::system("list TCP connections", e))?,
            }
        }
        if lacks_group {
            return Err(NetError::Unsupported {
                kernel_feature: "control groups in its list of TCP connections",
                needs: "Linux 5.9; without it, filter by ports or prefixes",
            });
        }
        Ok(())
    }
}

/// Returns a request for a dump of one address family: `struct inet_diag_req_v2`.
fn question(family: u8) -> [u8; HEADER + QUESTION] {
    let mut question = [0; HEADER + QUESTION];
    question[..4].copy_from_slice(&((HEADER + QUESTION) as u32).to_ne_bytes());
    question[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    question[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    question[HEADER] = family;
    question[HEADER + 1] = libc::IPPROTO_TCP as u8;
    question[HEADER + 2] = 1 << (INET_DIAG_INFO - 1);
    question[HEADER + 4..HEADER + 8].copy_from_slice(&STATES.to_ne_bytes());
    question
}

/// Parses an answer; `None` when it is not selected, truncated, or has no figures.
fn parse(answer: &[u8], filter: &Filter) -> Option<Connection> {
    let attributes = answer.get(ANSWER..)?;
    let family = i32::from(answer[0]);
    let port = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
    let local = SocketAddr::new(address(family, &answer[8..24])?, port(4));
    let remote = SocketAddr::new(address(family, &answer[24..40])?, port(6));
    if !filter.wants(local, remote) {
        return None;
    }
    let cookie = u64::from(u32_at(answer, 44)) | u64::from(u32_at(answer, 48)) << 32;
    let info = TcpInfo::parse(attribute(attributes, INET_DIAG_INFO)?)?;
    Some(Connection { cookie, local, remote, info })
}

/// Returns the inode of the socket; 0 where no process has one, as before it is accepted.
fn inode_of(answer: &[u8]) -> u64 {
    u32_at(answer, 68).into()
}

/// Returns the inodes of this process's sockets.
fn own_inodes() -> Result<HashSet<u64>> {
    let refused = |source| NetError::system("read /proc/self/status", source);
    let status = std::fs::read_to_string("/proc/self/status").map_err(refused)?;
    let most = status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    let most: i32 = most.ok_or_else(|| refused(std::io::Error::other("no `FDSize`")))?;
    Ok((0..most).filter_map(socket_inode).collect())
}

/// Returns the inode of `descriptor`, if it is an open socket. Other threads may close it
/// meanwhile, and open another file.
fn socket_inode(descriptor: i32) -> Option<u64> {
    // SAFETY: all zero is a valid `stat`.
    let mut file: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `file` has space for the answer; what is no open descriptor is refused.
    let answer = unsafe { libc::fstat(descriptor, &raw mut file) };
    (answer == 0 && file.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(file.st_ino)
}

/// Returns the id of the control group, if it is reported.
fn group_of(answer: &[u8]) -> Option<u64> {
    let number = attribute(answer.get(ANSWER..)?, INET_DIAG_CGROUP_ID)?;
    Some(u64::from_ne_bytes(number.try_into().ok()?))
}

fn address(family: i32, bytes: &[u8]) -> Option<IpAddr> {
    if family == libc::AF_INET {
        let four: [u8; 4] = bytes[..4].try_into().ok()?;
        return Some(Ipv4Addr::from(four).into());
    }
    let sixteen: [u8; 16] = bytes.try_into().ok()?;
    Some(IpAddr::from(Ipv6Addr::from(sixteen)).to_canonical())
}

/// Returns the content of the first attribute of `kind`.
fn attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    while rest.len() >= 4 {
        let length = usize::from(u16_at(rest, 0));
        let content = rest.get(4..length)?;
        if u16_at(rest, 2) == kind {
            return Some(content);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// Returns the ends of all selected connections, with the bytes acknowledged on each.
    fn seen(filter: &Filter) -> Vec<(SocketAddr, SocketAddr, u64)> {
        let mut all = Vec::new();
        let figures = |c: &Connection| c.info.bytes_acked.map_or(0, |bytes| bytes.as_u64());
        let mut diag = SockDiag::open().unwrap();
        diag.each(filter, |c| all.push((c.local, c.remote, figures(c)))).unwrap();
        all
    }

    #[test]
    fn connections_are_found_by_port_with_their_figures() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut remote = listener.accept().unwrap().0;
        near.write_all(&[7; 5000]).unwrap();
        remote.read_exact(&mut [0; 5000]).unwrap();
        let near_end = (near.local_addr().unwrap(), near.peer_addr().unwrap());
        let filter = Filter { ports: vec![port], ..Filter::default() };
        let all = seen(&filter);
        assert_eq!(all.len(), 2, "{all:?}");
        let of_near = all.iter().find(|(local, ..)| *local == near_end.0).unwrap();
        // The acknowledgement of the SYN counts as a byte.
        assert!(of_near.1 == near_end.1 && of_near.2 >= 5000, "{of_near:?}");
        let except = vec!["127.0.0.0/8".parse().unwrap()];
        assert!(seen(&Filter { except, ..filter.clone() }).is_empty());
        let within = vec!["10.0.0.0/8".parse().unwrap()];
        assert!(seen(&Filter { within, ..filter }).is_empty());
    }

    #[test]
    fn only_sockets_of_this_process_are_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let own = || seen(&Filter { ports: vec![address.port()], own: true, ..Filter::default() });
        let near = TcpStream::connect(address).unwrap();
        // The other end has no inode before it is accepted.
        assert_eq!(own().len(), 1);
        let remote = listener.accept().unwrap().0;
        assert_eq!(own().len(), 2);
        drop(near);
        let left = own();
        assert!(left.len() == 1 && left[0].0 == address, "{left:?}");
        drop(remote);
    }

    #[test]
    fn truncated_answer_is_no_connection() {
        let filter = Filter::default();
        let mut answer = vec![0; ANSWER + 4 + 104];
        answer[0] = libc::AF_INET as u8;
        answer[ANSWER..ANSWER + 2].copy_from_slice(&108u16.to_ne_bytes());
        answer[ANSWER + 2..ANSWER + 4].copy_from_slice(&INET_DIAG_INFO.to_ne_bytes());
        assert!(parse(&answer, &filter).is_some());
        for length in 0..answer.len() {
            assert_eq!(parse(&answer[..length], &filter), None, "{length}");
        }
        answer[ANSWER] = 0;
        answer[ANSWER + 1] = 0;
        assert_eq!(parse(&answer, &filter), None, "an attribute without a length");
    }

    #[test]
    fn control_group_is_parsed_if_reported() {
        let mut answer = vec![0; ANSWER];
        assert_eq!(group_of(&answer), None);
        answer.extend([12_u16.to_ne_bytes(), INET_DIAG_CGROUP_ID.to_ne_bytes()].concat());
        answer.extend(4711_u64.to_ne_bytes());
        assert_eq!(group_of(&answer), Some(4711));
        assert_eq!(group_of(&answer[..ANSWER + 8]), None, "cut short");
    }
}
