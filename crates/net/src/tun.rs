//! TUN devices: IP packets of one network namespace, read and written by a process.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::error::{NetError, Result};

/// Offloads of a device: work that the kernel leaves to this process, so that packets pass in bulk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offloads {
    /// Checksums, and segmentation of TCP and UDP.
    TcpAndUdp,
    /// Checksums, and segmentation of TCP (Linux before 6.2).
    Tcp,
    /// None: every packet passes alone, as on a wire.
    None,
}

impl Offloads {
    fn flags(self) -> libc::c_uint {
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        match self {
            Self::TcpAndUdp => tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6,
            Self::Tcp => tcp,
            Self::None => 0,
        }
    }
}

/// A TUN device with a virtio header before each packet; it is removed when this and all other
/// holders are dropped.
#[derive(Debug)]
pub struct Tun {
    file: File,
    offloads: Offloads,
}

const DEVICE: &str = "/dev/net/tun";

impl Tun {
    /// Creates the device `name` in the calling thread's network namespace. Requests the `wanted`
    /// offloads and uses the most of them that this kernel grants (see [`Tun::offloads`]).
    ///
    /// # Errors
    /// Without the device node or the right to use it, or when `name` is in use.
    pub fn create(name: &str, wanted: Offloads) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(DEVICE)
            .map_err(open_error)?;
        let mut request = interface_request(name)?;
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq, which lives through the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } != 0 {
            let error = io::Error::last_os_error();
            let hint = match error.raw_os_error() {
                Some(libc::EBUSY) => " (somebody holds one of this name)",
                _ => "",
            };
            return Err(NetError::system(format!("make the TUN device {name}{hint}"), error));
        }
        let offloads = grant_offloads(&file, wanted)?;
        Ok(Self { file, offloads })
    }

    /// Takes over the device `name` from the previous process.
    ///
    /// # Errors
    /// When it is no TUN device of this name.
    pub fn adopt(device: OwnedFd, name: &str, wanted: Offloads) -> Result<Self> {
        let file = File::from(device);
        let (wanted_name, mut request) =
            (interface_request(name)?.ifr_name, interface_request(name)?);
        let action = || format!("take the TUN device {name} over");
        // SAFETY: TUNGETIFF writes one ifreq, which lives through the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNGETIFF, &raw mut request) } != 0 {
            return Err(NetError::last_os(action()));
        }
        if request.ifr_name != wanted_name {
            return Err(NetError::system(action(), io::Error::other("it has another name")));
        }
        let offloads = grant_offloads(&file, wanted)?;
        Ok(Self { file, offloads })
    }

    /// Returns another handle of the device, for the next process: it exists as long as there is
    /// one.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn hold(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Returns the offloads that the kernel granted.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Reads one packet that the namespace sends, virtio header first, into `buffer`; `None` when
    /// there is none. The kernel truncates a packet that is too long for the buffer.
    ///
    /// # Errors
    /// Those of read(2) except that nothing is there.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends one packet to the namespace (virtio header first), given in parts.
    ///
    /// # Errors
    /// When the kernel refuses the packet or the device is down.
    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        (&self.file).write_vectored(parts).map(|_| ())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn grant_offloads(file: &File, wanted: Offloads) -> Result<Offloads> {
    let ladder = match wanted {
        Offloads::TcpAndUdp => &[Offloads::TcpAndUdp, Offloads::Tcp, Offloads::None][..],
        Offloads::Tcp => &[Offloads::Tcp, Offloads::None],
        Offloads::None => &[Offloads::None],
    };
    for offloads in ladder {
        let flags = libc::c_ulong::from(offloads.flags());
        // SAFETY: TUNSETOFFLOAD takes its flags by value.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, flags) } == 0 {
            return Ok(*offloads);
        }
    }
    Err(NetError::last_os("set a TUN device's offloads"))
}

fn open_error(source: io::Error) -> NetError {
    match source.kind() {
        io::ErrorKind::NotFound => NetError::Unsupported {
            kernel_feature: "/dev/net/tun",
            needs: "load the module `tun`, or give the container that device",
        },
        io::ErrorKind::PermissionDenied => NetError::NotPermitted {
            action: "open /dev/net/tun",
            needs: "run as root, or make the device readable and writable",
        },
        _ => NetError::system(format!("open {DEVICE}"), source),
    }
}

/// Returns a request about the device `name`, with all other fields zero.
pub(crate) fn interface_request(name: &str) -> Result<libc::ifreq> {
    // SAFETY: ifreq is plain data of C, for which all zeroes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        let source = io::Error::from(io::ErrorKind::InvalidInput);
        return Err(NetError::system(format!("name a device `{name}` (1 to 15 bytes)"), source));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}
