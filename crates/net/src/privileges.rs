//! The rights that a daemon started as root keeps: it continues as another user, with exactly the
//! capabilities that its configuration needs.
//!
//! Programs that it starts, such as its successor after an upgrade, inherit them (they are
//! *ambient*), and can get no more: the bounding set is cut to them. Threads that read untrusted
//! bytes also drop those that their sockets do not need.

use std::ffi::CString;
use std::{fmt, io};

use nix::unistd::{Gid, Uid, User, geteuid, initgroups, setresgid, setresuid};
use socket2::{Domain, Socket, Type};

use crate::NetError;
use crate::error::Result;

/// A capability that a daemon may need all its life (capabilities(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// To listen on ports below 1024.
    NetBindService = 10,
    /// To set rules, routes, devices, and options that the kernel reserves for network
    /// administrators.
    NetAdmin = 12,
    /// To send from foreign addresses, and to mark packets.
    NetRaw = 13,
    /// To load programs into the kernel.
    Bpf = 39,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetBindService => "CAP_NET_BIND_SERVICE",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::Bpf => "CAP_BPF",
        })
    }
}

impl Capability {
    const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// Bits of the capabilities to become another group and another user.
const CAP_SETGID: u64 = 1 << 6;
const CAP_SETUID: u64 = 1 << 7;

/// The user that a daemon started by root continues as, unless another is named.
pub const DEFAULT_USER: &str = "tradewind";

/// A user of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    name: String,
    user: Uid,
    group: Gid,
}

impl Account {
    /// Returns the user called `name`, if there is one.
    ///
    /// # Errors
    /// When the host's list of users cannot be read.
    pub fn find(name: &str) -> Result<Option<Self>> {
        let refused = |error: nix::Error| NetError::system(format!("user {name}"), error);
        let found = User::from_name(name).map_err(refused)?;
        Ok(found.map(|found| Self { name: found.name, user: found.uid, group: found.gid }))
    }

    /// Returns whether this is root.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.user.is_root()
    }

    /// Returns its number.
    #[must_use]
    pub const fn user_id(&self) -> u32 {
        self.user.as_raw()
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the reason why this process may not become this user, if any: in a user namespace it
    /// must be mapped, and in a container root may lack the capabilities.
    #[must_use]
    pub fn out_of_reach(&self) -> Option<&'static str> {
        let covers = |file: &str, number: u32| {
            let map = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
            is_covered(&map, number)
        };
        let is_mapped =
            covers("uid_map", self.user.as_raw()) && covers("gid_map", self.group.as_raw());
        let needed = CAP_SETUID | CAP_SETGID;
        if !is_mapped {
            Some("it is not mapped into this user namespace")
        } else if permitted().is_ok_and(|held| held & needed != needed) {
            Some("this process lacks CAP_SETUID and CAP_SETGID")
        } else {
            None
        }
    }
}

/// Returns whether a map of a user namespace (user_namespaces(7)) has `number` inside.
fn is_covered(map: &str, number: u32) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_whitespace().filter_map(|field| field.parse::<u64>().ok());
        let (first, _outside, count) = (fields.next(), fields.next(), fields.next());
        matches!((first, count), (Some(first), Some(count))
            if (first..first + count).contains(&u64::from(number)))
    })
}

/// Returns whether this process has root's user id.
#[must_use]
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Makes this process, which runs as root, run as `account`, and keeps those of the capabilities
/// `keep` that it has. Must be called before any thread is started, as a thread keeps its
/// capabilities.
///
/// # Errors
/// When the kernel refuses a step. Earlier steps are not undone: end the process then.
pub fn become_user(account: &Account, keep: &[Capability]) -> Result<()> {
    check_alone("give root's rights up")?;
    let refused = |step: &str| {
        let step = format!("become user {}: {step}", account.name);
        move |error: nix::Error| NetError::system(step, error)
    };
    cut_bounding_set(keep)?;
    prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
    let name = CString::new(account.name.as_str()).unwrap_or_default();
    initgroups(&name, account.group).map_err(refused("its groups"))?;
    let group = account.group;
    setresgid(group, group, group).map_err(refused("its group"))?;
    let user = account.user;
    setresuid(user, user, user).map_err(refused("its number"))?;
    keep_only(keep).map(drop)
}

/// Drops all capabilities of this process but `keep`, which programs that it starts inherit and
/// never exceed, root's programs included. Returns those of `keep` that it does not have. To be
/// called before any thread is started.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_only(keep: &[Capability]) -> Result<Vec<Capability>> {
    check_alone("give capabilities up")?;
    let held = permitted()?;
    let (remaining, lacking): (Vec<Capability>, _) =
        keep.iter().copied().partition(|capability| held & capability.bit() != 0);
    let wanted = bits_of(&remaining);
    cut_bounding_set(keep)?;
    let ambient = |order: i32, capability: Option<&Capability>| {
        let number = capability.map_or(0, |capability| *capability as u64);
        prctl(libc::PR_CAP_AMBIENT, u64::from(order.unsigned_abs()), number)
    };
    let is_ambient = |capability| ambient(libc::PR_CAP_AMBIENT_IS_SET, Some(capability));
    if held != wanted
        || !remaining
            .iter()
            .all(|capability| is_ambient(capability).is_ok_and(|is_set| is_set == 1))
    {
        // Programs that this process starts would regain an ambient capability.
        ambient(libc::PR_CAP_AMBIENT_CLEAR_ALL, None)?;
        set_capabilities(wanted)?;
        for capability in &remaining {
            ambient(libc::PR_CAP_AMBIENT_RAISE, Some(capability))?;
        }
    }
    Ok(lacking)
}

/// Drops all capabilities of the calling thread, and of those that it will start, except those of
/// `keep` that it has.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_in_thread(keep: &[Capability]) -> Result<()> {
    set_capabilities(permitted()? & bits_of(keep))
}

/// Returns the capabilities that the sockets of a thread need on this host for `wanted`:
/// [`Capability::NetAdmin`] in place of [`Capability::NetRaw`] where this process lacks the latter
/// or the kernel does not accept it for marks (before Linux 5.17), and no [`Capability::Bpf`] where
/// the kernel lets every holder of a map write to it (since Linux 5.19).
#[must_use]
pub fn of_sockets(wanted: &[Capability]) -> Vec<Capability> {
    let mut needed = wanted.to_vec();
    if needed.contains(&Capability::NetRaw) && !works_with(&[Capability::NetRaw], may_spoof) {
        needed.retain(|capability| *capability != Capability::NetRaw);
        needed.push(Capability::NetAdmin);
    }
    if needed.contains(&Capability::Bpf) && works_with(&[], may_write_to_maps) {
        needed.retain(|capability| *capability != Capability::Bpf);
    }
    needed.sort_unstable();
    needed.dedup();
    needed
}

/// Returns whether `works` is true for a thread with the capabilities `keep`.
fn works_with(keep: &[Capability], works: fn() -> bool) -> bool {
    let attempt = || keep_in_thread(keep).is_ok() && works();
    std::thread::scope(|scope| scope.spawn(attempt).join()).unwrap_or(false)
}

/// Returns whether this thread's sockets may have foreign addresses, and marks.
fn may_spoof() -> bool {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None);
    socket.is_ok_and(|socket| {
        socket.set_ip_transparent_v4(true).is_ok() && socket.set_mark(1).is_ok()
    })
}

/// Returns whether this thread may write to a map of programs for the kernel that it has open.
fn may_write_to_maps() -> bool {
    /// `BPF_MAP_UPDATE_ELEM`.
    const UPDATE: libc::c_long = 2;
    // No map, no key, no value: with the right the call fails only at the map's invalid descriptor.
    let attributes = [u64::from(u32::MAX), 0, 0, 0];
    let size = size_of_val(&attributes);
    // SAFETY: the attributes live through the call, have this size, and name nothing to write to.
    let done = unsafe { libc::syscall(libc::SYS_bpf, UPDATE, attributes.as_ptr(), size) };
    done == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
}

fn bits_of(capabilities: &[Capability]) -> u64 {
    capabilities.iter().fold(0, |bits, capability| bits | capability.bit())
}

fn check_alone(purpose: &str) -> Result<()> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads == 1 {
        return Ok(());
    }
    let cause = io::Error::other(format!("{threads} threads run already: a bug"));
    Err(NetError::system(purpose.to_owned(), cause))
}

/// Prevents programs that this process starts from getting other capabilities than `keep`.
fn cut_bounding_set(keep: &[Capability]) -> Result<()> {
    /// One more than any kernel has.
    const MAX: u64 = 64;
    let bits = bits_of(keep);
    for number in (0..MAX).filter(|number| bits & (1 << number) == 0) {
        match prctl(libc::PR_CAPBSET_DROP, number, 0) {
            Err(NetError::System { source, .. }) => match source.raw_os_error() {
                // The kernel has no more.
                Some(libc::EINVAL) => break,
                // Not permitted without root, nor for root of some containers. In the sandbox
                // started programs gain no privileges in any case.
                Some(libc::EPERM) => break,
                _ => return Err(NetError::system("bounding set".to_owned(), source)),
            },
            dropped => drop(dropped?),
        }
    }
    Ok(())
}

/// The header and data of capset(2), version 3.
#[repr(C)]
struct Header {
    version: u32,
    process: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: 64 capabilities in two halves.
const VERSION: u32 = 0x2008_0522;

/// Returns the capabilities that this thread may use, as bits.
fn permitted() -> Result<u64> {
    let mut data = [Data::default(); 2];
    let header = Header { version: VERSION, process: 0 };
    // SAFETY: both live through the call, and have the layout of this version.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) };
    if got != 0 {
        return Err(last_error("capabilities"));
    }
    Ok(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32)
}

/// Sets all three capability sets of this thread to `bits`.
fn set_capabilities(bits: u64) -> Result<()> {
    let half = |bits: u64| {
        let bits = (bits & u64::from(u32::MAX)) as u32;
        Data { effective: bits, permitted: bits, inheritable: bits }
    };
    let data = [half(bits), half(bits >> 32)];
    let header = Header { version: VERSION, process: 0 };
    // SAFETY: both live through the call, and have the layout of this version.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if set == 0 { Ok(()) } else { Err(last_error("capabilities")) }
}

pub(crate) fn prctl(option: i32, first: u64, second: u64) -> Result<i32> {
    // SAFETY: none of the options used here takes an address; what is not used is zero.
    match unsafe { libc::prctl(option, first, second, 0_u64, 0_u64) } {
        value @ 0.. => Ok(value),
        _ => Err(last_error(&format!("prctl {option}"))),
    }
}

fn last_error(what: &str) -> NetError {
    NetError::system(what.to_owned(), io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_recognised() {
        assert!(Account::find("root").unwrap().unwrap().is_root());
        assert_eq!(Account::find("tradewind-no-such-user").unwrap(), None);
        assert!(Account::find("nobody").unwrap().is_none_or(|nobody| !nobody.is_root()));
    }

    #[test]
    fn unmapped_user_is_distinguished() {
        let whole = "         0          0 4294967295\n";
        assert!(is_covered(whole, 0) && is_covered(whole, 998));
        let root_alone = "0 1000 1\n";
        assert!(is_covered(root_alone, 0) && !is_covered(root_alone, 998));
        assert!(!is_covered("", 0));
    }

    #[test]
    fn capabilities_are_dropped_per_thread() {
        let before = permitted().unwrap();
        std::thread::spawn(|| {
            keep_in_thread(&[Capability::NetRaw]).unwrap();
            assert_eq!(permitted().unwrap() & !Capability::NetRaw.bit(), 0);
            let further = std::thread::spawn(|| permitted().unwrap()).join().unwrap();
            assert_eq!(further, permitted().unwrap(), "what it starts has no more");
        })
        .join()
        .unwrap();
        assert_eq!(permitted().unwrap(), before);
    }

    #[test]
    fn sockets_need_the_fewest_capabilities() {
        use Capability::{Bpf, NetAdmin, NetBindService, NetRaw};
        assert_eq!(of_sockets(&[]), []);
        assert_eq!(of_sockets(&[NetAdmin, NetBindService]), [NetBindService, NetAdmin]);
        // One of the two, by this process's capabilities and its kernel's requirement.
        let spoofs = of_sockets(&[NetRaw]);
        assert!(spoofs == [NetRaw] || spoofs == [NetAdmin], "{spoofs:?}");
        let least = works_with(&spoofs, may_spoof);
        assert_eq!(least, permitted().unwrap() & bits_of(&spoofs) != 0);
        assert!(of_sockets(&[Bpf]).iter().all(|capability| *capability == Bpf));
    }

    #[test]
    fn capabilities_are_not_dropped_beside_other_threads() {
        let nobody = Account { name: "nobody".to_owned(), user: 65534.into(), group: 65534.into() };
        // The harness has threads of its own.
        let error = become_user(&nobody, &[]).unwrap_err().to_string();
        assert!(error.contains("threads run already"), "{error}");
    }
}
