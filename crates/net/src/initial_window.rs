//! The initial congestion window of single connections, set by a kernel program.
//!
//! There is no socket option for it. The kernel lets a `sockops` program set it (`TCP_BPF_IW`) when
//! a connection opens; the program is `bpf/initial_window.c`. It finds the setting of a socket in a
//! map of socket storage (`BPF_MAP_TYPE_SK_STORAGE`): unlike a mark it selects no route, unlike an
//! address it belongs to one connection, and it is freed with the socket. Connections that a
//! listener accepts inherit the listener's setting.
//!
//! The program is attached to this process's control group and detached when the last clone of
//! [`InitialWindows`] is dropped, or the process dies.

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
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/initial_window.o"));
/// The names of the program and the map in the C file.
const PROGRAM: &str = "initial_window";
const MAP: &str = "initial_windows";

/// The setting of a socket, in the layout of the C file.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Wanted {
    segments: u32,
    reserved: u32,
    bytes_per_s: u64,
}

// SAFETY: three integers without padding: every bit pattern is one, and none is a pointer.
unsafe impl Pod for Wanted {}

/// An initial window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitialWindow {
    /// The window; its maximum if there is a rate.
    pub segments: Segments,
    /// Rate to keep from the first round trip on: the window is then the volume that this rate
    /// sends in the handshake's round-trip time and a quarter more, at least 10 segments.
    pub rate: Option<Bandwidth>,
}

/// The attached program; clones share it.
#[derive(Debug, Clone)]
pub struct InitialWindows(Arc<Attached>);

#[derive(Debug)]
struct Attached {
    map: Mutex<SkStorage<MapData, Wanted>>,
    /// Holds the program and its link to the control group.
    _program: Ebpf,
}

impl InitialWindows {
    /// Loads the program and attaches it.
    ///
    /// # Errors
    /// Without CAP_BPF and CAP_NET_ADMIN in the first user namespace, without a control group of
    /// version 2, and on kernels before 5.8; the error names the step that was refused.
    pub fn attach() -> Result<Self> {
        let group = cgroup::open_own()?;
        let mut program = Ebpf::load(OBJECT).map_err(|error| refused("load", &error))?;
        let map = program.take_map(MAP).expect("the object file has this map");
        let map = SkStorage::try_from(map).map_err(|error| refused("read the map of", &error))?;
        sockops::attach(&mut program, PROGRAM, group)?;
        Ok(Self(Arc::new(Attached { map: Mutex::new(map), _program: program })))
    }

    /// Sets the first `window` of `socket`, which is not connected yet, or which is a listener, for
    /// the connections that it accepts from now on.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn set(&self, socket: &impl AsFd, window: InitialWindow) -> io::Result<()> {
        let bytes_per_s = window.rate.map_or(0, |rate| rate.as_bps() / 8);
        let wanted = Wanted { segments: window.segments.as_u32(), reserved: 0, bytes_per_s };
        let mut map = self.0.map.lock().unwrap_or_else(PoisonError::into_inner);
        map.insert(&socket.as_fd().as_raw_fd(), wanted, 0).map_err(|error| root_cause(&error))
    }
}
