//! Initial windows by learned values of the destination: the kernel program `bpf/jumpstart.c`.
//!
//! The program looks up every connection's peer in a trie of prefixes that is filled here, and sets
//! the connection's initial window and, where there is a rate, a share of it for the first round
//! trips. It reads the clock itself, so a value expires in time even if it is not removed, and it
//! is detached when the process that holds [`JumpStarts`] drops it or dies: all connections then
//! start with the kernel's defaults. It reports its actions through a ring buffer
//! ([`ProgramEvent`]).
//!
//! It can be limited to the sockets of one program, which registers those that it dials and listens
//! with ([`OwnSockets`]); all others are unchanged.
//!
//! A connection is unchanged if its own initial window is as large, if its route asks for less than
//! usual, if its SYN was lost, or if its handshake took the time of another path; and an
//! application's own pacing limit stays.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap as KernelMap, MapData, RingBuf, SkStorage};
use aya::{Ebpf, EbpfLoader, Pod};
use ipnet::IpNet;
use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, Segments, Timestamp};

use crate::error::{NetError, Result};
use crate::sockops::{self, refused, root_cause};
use crate::{cgroup, netns};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/jumpstart.o"));
/// The names of the program and its maps in the C file.
const PROGRAM: &str = "jumpstart";
const SETTINGS: &str = "settings";
const BUDGETS: &str = "budgets";
const EVENTS: &str = "events";
const LOST_EVENTS: &str = "lost_events";
const OWN: &str = "own";
/// Offset of the loans in a budget, and the length of each: its end, bytes a second, borrowers.
const LOANS_AT: usize = 16;
const LOAN: usize = 24;
/// Length of a budget in the kernel, which is all zeroes initially.
const BUDGET: usize = LOANS_AT + 8 * LOAN;
/// Reads a budget atomically, not while the program changes it (BPF_F_LOCK).
const WHOLE: u64 = 4;
/// The end of a value in the kernel is moved when that gains at least this share of its lifetime.
/// Chosen: a destination that is seen every second then costs a tenth of the updates, and expires
/// at most a tenth early in the kernel.
const RENEWAL_SHARE: u32 = 10;

/// `struct rules` of the C file.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Rules {
    namespace: u64,
    control: u32,
    least_segments: u32,
    at_once: u32,
    receive_bytes: u32,
    own_alone: u32,
    reserved: u32,
}

/// `struct setting` of the C file.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Setting {
    id: u32,
    segments: u32,
    bytes_per_s: u64,
    expires_ns: u64,
    rtt_us: u32,
    reserved: u32,
}

/// `struct budget` of the C file; only the program writes to it.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
struct Budget([u8; BUDGET]);

// SAFETY: integers and bytes without padding: every bit pattern is one, and none is a pointer.
unsafe impl Pod for Rules {}
// SAFETY: as above.
unsafe impl Pod for Setting {}
// SAFETY: as above.
unsafe impl Pod for Budget {}

/// Settings for all connections; fixed once the program is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// True to handle only sockets registered by [`OwnSockets::add`] or accepted from one, and so
    /// no other program's.
    pub own_alone: bool,
    /// The control group whose sockets are handled; when absent the top of the hierarchy, which is
    /// all, or this process's group with `own_alone`.
    pub cgroup: Option<PathBuf>,
    /// True to handle connections of other network namespaces than the calling thread's, too.
    pub all_namespaces: bool,
    /// Share of connections that start by default, for comparison.
    pub control: Ratio,
    /// Segments that a share of a rate must exceed in a round-trip time to be worth a jump.
    pub least: Segments,
    /// Most connections that may borrow from a destination's rate at once; unlimited when absent.
    pub at_once: Option<u32>,
    /// Receive buffer of listeners, and of sockets that dial known destinations; autotuned by the
    /// kernel when absent. The kernel does not autotune a buffer that was set.
    pub receive_buffer: Option<Bytes>,
    /// Most destinations.
    pub most: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            own_alone: false,
            cgroup: None,
            all_namespaces: false,
            control: Ratio::ZERO,
            least: Segments::new(10).expect("above zero"),
            at_once: None,
            receive_buffer: None,
            most: 100_000,
        }
    }
}

/// The start values of connections to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Values {
    /// Initial window.
    pub window: Segments,
    /// Rate shared by all that start at once; unlimited when absent.
    pub rate: Option<Bandwidth>,
    /// Least learned round-trip time; a rate without one is not used.
    pub rtt: Option<Duration>,
    /// Time when the values expire, by [`crate::clock::monotonic`].
    pub expires: Timestamp,
}

/// A report of the program about a connection, which is identified by its `sock_diag` cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramEvent {
    /// It started with a window that was set here.
    Jumped {
        /// The connection.
        connection: u64,
        /// Its initial window.
        window: u32,
    },
    /// It started by default, for comparison.
    Control {
        /// The connection.
        connection: u64,
    },
    /// Part of its first flight was lost.
    FirstFlightLost {
        /// The connection.
        connection: u64,
        /// Its destination, unless that was removed.
        prefix: Option<IpNet>,
    },
}

/// Registers the caller's own sockets with the program: those that it dials with, and its
/// listeners, whose accepted connections inherit it. Clones share the program. Once that is
/// dropped, registering has no effect.
#[derive(Debug, Clone)]
pub struct OwnSockets(Arc<Own>);

#[derive(Debug)]
struct Own {
    sockets: Mutex<SkStorage<MapData, u32>>,
    /// Number of sockets that the kernel refused.
    refused: AtomicU64,
}

impl OwnSockets {
    /// Registers `socket`, which is not connected yet, to start by the values of its destination;
    /// or a listener, whose accepted connections start by the values of their peers.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn add(&self, socket: &impl AsFd) -> io::Result<()> {
        let mut own = self.0.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let added = own.insert(&socket.as_fd().as_raw_fd(), 1, 0);
        added.map_err(|error| root_cause(&error)).inspect_err(|_| {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn of(sockets: SkStorage<MapData, u32>) -> Self {
        Self(Arc::new(Own { sockets: Mutex::new(sockets), refused: AtomicU64::new(0) }))
    }
}

/// The attached program, with its maps.
pub struct JumpStarts {
    settings: LpmTrie<MapData, [u8; 16], Setting>,
    budgets: KernelMap<MapData, u32, Budget>,
    events: RingBuf<MapData>,
    lost_events: Array<MapData, u64>,
    own: OwnSockets,
    ours: BTreeMap<IpNet, Setting>,
    prefixes: BTreeMap<u32, IpNet>,
    next_id: u32,
    /// Holds the program and its link to the control group.
    _program: Ebpf,
}

impl std::fmt::Debug for JumpStarts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JumpStarts").field("ours", &self.ours).finish_non_exhaustive()
    }
}

impl JumpStarts {
    /// Loads the program and attaches it.
    ///
    /// # Errors
    /// Without CAP_BPF and CAP_NET_ADMIN in the first user namespace, without a control group of
    /// version 2, and on kernels before 5.15; the error names the step that was refused.
    pub fn attach(options: &Options) -> Result<Self> {
        let group = match &options.cgroup {
            Some(path) => cgroup::open(path)?,
            None if options.own_alone => cgroup::open_own()?,
            None => cgroup::open_top()?,
        };
        let rules = rules_of(options)?;
        let mut file = EbpfLoader::new()
            .override_global("rules", &rules, true)
            .map_max_entries(SETTINGS, options.most.max(1))
            .map_max_entries(BUDGETS, options.most.max(1))
            .load(OBJECT)
            .map_err(|error| refused("read", &error))?;
        let read = |error: &dyn std::error::Error| refused("read the maps of", error);
        let mut map = |name| file.take_map(name).expect("the object file has this map");
        let settings = LpmTrie::try_from(map(SETTINGS)).map_err(|error| read(&error))?;
        let budgets = KernelMap::try_from(map(BUDGETS)).map_err(|error| read(&error))?;
        let events = RingBuf::try_from(map(EVENTS)).map_err(|error| read(&error))?;
        let lost_events = Array::try_from(map(LOST_EVENTS)).map_err(|error| read(&error))?;
        let own = SkStorage::try_from(map(OWN)).map_err(|error| read(&error))?;
        sockops::attach(&mut file, PROGRAM, group)?;
        Ok(Self {
            settings,
            budgets,
            events,
            lost_events,
            own: OwnSockets::of(own),
            ours: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            next_id: 0,
            _program: file,
        })
    }

    /// Returns the handle that registers the caller's own sockets.
    #[must_use]
    pub fn own_sockets(&self) -> OwnSockets {
        self.own.clone()
    }

    /// Sets the start values of connections to `prefix`. Loans of its rate stay lent.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn set(&mut self, prefix: IpNet, values: Values) -> Result<()> {
        let known = self.ours.get(&prefix).map(|setting| setting.id);
        let id = known.unwrap_or(self.next_id);
        let refused = |error: aya::maps::MapError| {
            NetError::system(format!("set how {prefix} starts"), root_cause(&error))
        };
        if known.is_none() {
            self.budgets.insert(id, Budget([0; BUDGET]), 0).map_err(refused)?;
        }
        let setting = Setting {
            id,
            segments: values.window.as_u32(),
            bytes_per_s: values.rate.map_or(0, |rate| (rate.as_bps() / 8).max(1)),
            expires_ns: values.expires.as_nanos(),
            rtt_us: values.rtt.map_or(0, |rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX)),
            reserved: 0,
        };
        self.settings.insert(&key_of(&prefix), setting, 0).map_err(refused)?;
        if known.is_none() {
            self.next_id = self.next_id.wrapping_add(1);
            self.prefixes.insert(id, prefix);
        }
        self.ours.insert(prefix, setting);
        Ok(())
    }

    /// Moves the end of `prefix`'s values to `expires`, if that gains a tenth of their remaining
    /// lifetime at `now`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn renew(&mut self, prefix: &IpNet, now: Timestamp, expires: Timestamp) -> Result<()> {
        let Some(setting) = self.ours.get(prefix) else { return Ok(()) };
        let gained = expires.since(Timestamp::from_nanos(setting.expires_ns));
        if gained < expires.since(now) / RENEWAL_SHARE {
            return Ok(());
        }
        let renewed = Setting { expires_ns: expires.as_nanos(), ..*setting };
        self.settings.insert(&key_of(prefix), renewed, 0).map_err(|error| {
            NetError::system(format!("renew how {prefix} starts"), root_cause(&error))
        })?;
        self.ours.insert(*prefix, renewed);
        Ok(())
    }

    /// Removes the values of `prefix`: connections start by default.
    ///
    /// # Errors
    /// When the kernel refuses; it can then be tried again.
    pub fn remove(&mut self, prefix: &IpNet) -> Result<()> {
        let Some(id) = self.ours.get(prefix).map(|setting| setting.id) else { return Ok(()) };
        let removed = gone(self.settings.remove(&key_of(prefix)));
        removed
            .and_then(|()| gone(self.budgets.remove(&id)))
            .map_err(|error| NetError::system(format!("forget how {prefix} starts"), error))?;
        self.prefixes.remove(&id);
        self.ours.remove(prefix);
        Ok(())
    }

    /// Removes all values; returns the number of destinations that had some.
    ///
    /// # Errors
    /// When the kernel refuses; all others are forgotten.
    pub fn clear(&mut self) -> Result<usize> {
        let prefixes: Vec<IpNet> = self.ours.keys().copied().collect();
        let refused = prefixes.iter().filter_map(|prefix| self.remove(prefix).err()).last();
        refused.map_or(Ok(prefixes.len()), Err)
    }

    /// Returns the bytes a second of the rate of `prefix` that are lent at `now`; `None` without a
    /// rate.
    #[must_use]
    pub fn lent(&self, prefix: &IpNet, now: Timestamp) -> Option<u64> {
        let setting = self.ours.get(prefix).filter(|setting| setting.bytes_per_s > 0)?;
        let budget = self.budgets.get(&setting.id, WHOLE).ok()?;
        Some(lent_of(&budget, now))
    }

    /// Returns the number of reports lost since it was attached, as they were not read in time.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.lost_events.get(&0, 0).unwrap_or_default()
    }

    /// Returns the number of sockets of [`OwnSockets::add`] that the kernel had no memory for: they
    /// start by default.
    #[must_use]
    pub fn unremembered(&self) -> u64 {
        self.own.0.refused.load(Ordering::Relaxed)
    }

    /// Calls `each` with the reports since the last call. If it is not called for long, the latest
    /// are lost and counted.
    pub fn read_events(&mut self, mut each: impl FnMut(ProgramEvent)) {
        let Self { events, prefixes, .. } = self;
        while let Some(event) = events.next() {
            if let Some(parsed) = parse_event(&event, prefixes) {
                each(parsed);
            }
        }
    }
}

fn rules_of(options: &Options) -> Result<Rules> {
    let share = options.control.as_f64() * f64::from(u32::MAX);
    let namespace = if options.all_namespaces { 0 } else { netns::cookie_of_this_thread()? };
    Ok(Rules {
        namespace,
        control: share as u32,
        least_segments: options.least.as_u32(),
        at_once: options.at_once.unwrap_or(0),
        receive_bytes: options
            .receive_buffer
            .map_or(0, |bytes| i32::try_from(bytes.as_u64()).unwrap_or(i32::MAX).unsigned_abs()),
        own_alone: options.own_alone.into(),
        reserved: 0,
    })
}

/// Returns a prefix as a key in IPv6 form.
fn key_of(prefix: &IpNet) -> Key<[u8; 16]> {
    let (address, before) = match prefix.network() {
        IpAddr::V4(four) => (four.to_ipv6_mapped(), 96),
        IpAddr::V6(six) => (six, 0),
    };
    Key::new(before + u32::from(prefix.prefix_len()), address.octets())
}

/// Treats the removal of an absent entry as success.
fn gone(removed: std::result::Result<(), aya::maps::MapError>) -> std::io::Result<()> {
    match removed.map_err(|error| root_cause(&error)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn lent_of(budget: &Budget, now: Timestamp) -> u64 {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    let loans = budget.0[LOANS_AT..].chunks_exact(LOAN);
    let live = loans.filter(|loan| word(&loan[..8]) > now.as_nanos());
    live.map(|loan| word(&loan[8..16])).sum()
}

/// Parses `struct event` of the C file.
fn parse_event(event: &[u8], prefixes: &BTreeMap<u32, IpNet>) -> Option<ProgramEvent> {
    let connection = u64::from_ne_bytes(event.get(..8)?.try_into().ok()?);
    let number = |at: usize| Some(u32::from_ne_bytes(event.get(at..at + 4)?.try_into().ok()?));
    match number(8)? {
        1 => Some(ProgramEvent::Jumped { connection, window: number(16)? }),
        2 => Some(ProgramEvent::Control { connection }),
        3 => {
            let prefix = prefixes.get(&number(12)?).copied();
            Some(ProgramEvent::FirstFlightLost { connection, prefix })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_both_families_stand_in_one_trie() {
        let shown = |text: &str| {
            let key = key_of(&text.parse().unwrap());
            (key.prefix_len(), std::net::Ipv6Addr::from(key.data()).to_string())
        };
        assert_eq!(shown("10.1.2.3/30"), (126, "::ffff:10.1.2.0".to_owned()));
        assert_eq!(shown("2001:db8::/32"), (32, "2001:db8::".to_owned()));
    }

    #[test]
    fn ended_loans_do_not_count() {
        let mut budget = Budget([0; BUDGET]);
        for (number, (until, rate)) in
            [(9_u64, 1000_u64), (10, 200), (11, 30), (12, 4)].iter().enumerate()
        {
            let at = LOANS_AT + number * LOAN;
            budget.0[at..at + 8].copy_from_slice(&until.to_ne_bytes());
            budget.0[at + 8..at + 16].copy_from_slice(&rate.to_ne_bytes());
        }
        let lent = |now| lent_of(&budget, Timestamp::from_nanos(now));
        assert_eq!((lent(0), lent(10), lent(12)), (1234, 34, 0));
    }

    #[test]
    fn truncated_and_unknown_events_are_ignored() {
        let prefixes = BTreeMap::from([(7, "10.0.0.0/8".parse().unwrap())]);
        let event = |what: u32| {
            let words = [&9_u64.to_ne_bytes()[..], &what.to_ne_bytes(), &7_u32.to_ne_bytes()];
            [&words.concat()[..], &80_u32.to_ne_bytes()].concat()
        };
        let parse = |what| parse_event(&event(what), &prefixes);
        assert_eq!(parse(1), Some(ProgramEvent::Jumped { connection: 9, window: 80 }));
        assert_eq!(parse(2), Some(ProgramEvent::Control { connection: 9 }));
        let prefix = prefixes.get(&7).copied();
        assert_eq!(parse(3), Some(ProgramEvent::FirstFlightLost { connection: 9, prefix }));
        assert_eq!(parse(4), None);
        assert!((0..12).all(|length| parse_event(&event(3)[..length], &prefixes).is_none()));
    }
}
