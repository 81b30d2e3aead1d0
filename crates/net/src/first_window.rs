//! The first congestion window of single connections, by a program in the kernel.
//!
//! A socket option for it does not exist. The kernel lets a `sockops` program set it
//! (`TCP_BPF_IW`) in the moment a connection opens; the program is `bpf/first_window.c`. It finds
//! what a socket wants in a map that belongs to sockets (`BPF_MAP_TYPE_SK_STORAGE`): unlike a mark
//! that chooses no route, unlike an address it is one connection's own, and it goes with the socket.
//! Connections that a listener accepts inherit what the listener wants.
//!
//! The program is attached to this process's control group and taken off when the last clone of
//! [`FirstWindows`] is dropped, or the process dies.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};

use aya::maps::{MapData, SkStorage};
use aya::{Ebpf, Pod};
use tradewind_units::{Bandwidth, Segments};

use crate::cgroup;
use crate::error::Result;
use crate::sockops::{self, refused, root_cause};

/// The object file, aligned as its parser needs it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/first_window.o"));
/// The program and the map, as the C file names them.
const PROGRAM: &str = "first_window";
const MAP: &str = "first_windows";

/// What a socket wants, laid out as the C file has it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Wanted {
    segments: u32,
    reserved: u32,
    bytes_per_s: u64,
}

// SAFETY: three integers without padding: every bit pattern is one, and none is a pointer.
unsafe impl Pod for Wanted {}

/// A first window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstWindow {
    /// The window; the most of it when there is a rate.
    pub segments: Segments,
    /// The rate that is to be kept from the first round trip on: the window is then what leaves at
    /// it in the handshake's round-trip time and a quarter more, from 10 segments up.
    pub rate: Option<Bandwidth>,
}

/// The program, attached; clones are the same one.
#[derive(Debug, Clone)]
pub struct FirstWindows(Arc<Attached>);

#[derive(Debug)]
struct Attached {
    map: Mutex<SkStorage<MapData, Wanted>>,
    /// Holds the program and its link to the control group.
    _program: Ebpf,
}

impl FirstWindows {
    /// Loads the program and attaches it.
    ///
    /// # Errors
    /// Without CAP_BPF and CAP_NET_ADMIN in the first user namespace, without a control group of
    /// version 2, and on kernels before 5.8; the error tells which step was refused.
    pub fn attach() -> Result<Self> {
        let group = cgroup::open_own()?;
        let mut program = Ebpf::load(OBJECT).map_err(|error| refused("load", &error))?;
        let map = program.take_map(MAP).expect("the object file has this map");
        let map = SkStorage::try_from(map).map_err(|error| refused("read the map of", &error))?;
        sockops::attach(&mut program, PROGRAM, group)?;
        Ok(Self(Arc::new(Attached { map: Mutex::new(map), _program: program })))
    }

    /// Has `socket` start with `window`: one that is not connected yet, or a listener for what it
    /// accepts from now on.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn set(&self, socket: &impl AsFd, window: FirstWindow) -> io::Result<()> {
        let bytes_per_s = window.rate.map_or(0, |rate| rate.as_bps() / 8);
        let wanted = Wanted { segments: window.segments.as_u32(), reserved: 0, bytes_per_s };
        let mut map = self.0.map.lock().unwrap_or_else(PoisonError::into_inner);
        map.insert(&socket.as_fd().as_raw_fd(), wanted, 0).map_err(|error| root_cause(&error))
    }
}
