//! The emulator's port to a host: its TUN device, or a packet socket at the outer end of its veth.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use tradewind_net::packet_socket::{ETHERNET_BYTES, PacketSocket};
use tradewind_net::tun::Tun;
use tradewind_net::virtio::{HEADER_BYTES, VirtioHeader};

use tradewind_units::{Bandwidth, Bytes, Duration};

use crate::packet::Version;

/// One host's attachment.
#[derive(Debug)]
pub(crate) enum Port {
    /// A TUN device inside the host's namespace.
    Tun(Tun),
    /// A packet socket on the outer end of a veth whose inner end has this hardware address.
    Packet { socket: PacketSocket, hardware: [u8; 6] },
}

/// The longest time for which the emulator may leave a host's packets waiting. Chosen: four times
/// the lateness that a valid run allows.
const ABSENCE: Duration = Duration::from_millis(2);
/// The rate from which a host's sending rate is not limited: no machine for which this is built
/// emulates more.
const UNLIMITED_BPS: u64 = 10_000_000_000;

/// Hardware address of all outer ends: hosts see one neighbour.
const NETWORK_HARDWARE: [u8; 6] = [0x02, 0x74, 0x77, 0xff, 0xff, 0xff];

impl Port {
    /// Returns the number of bytes before the IP packet in a frame.
    pub(crate) fn prefix_bytes(&self) -> usize {
        HEADER_BYTES + self.link_bytes()
    }

    /// Returns the length of the link header.
    pub(crate) fn link_bytes(&self) -> usize {
        match self {
            Self::Tun(_) => 0,
            Self::Packet { .. } => ETHERNET_BYTES,
        }
    }

    /// Splits a frame into the virtio header, adjusted as if there were no link header, and the IP
    /// packet. Returns `None` when the frame is too short or its header is malformed.
    pub(crate) fn open_frame<'a>(&self, frame: &'a [u8]) -> Option<(VirtioHeader, &'a [u8])> {
        let mut virtio = VirtioHeader::parse(frame)?;
        let link = self.link_bytes();
        virtio.header_bytes = virtio.header_bytes.saturating_sub(link as u16);
        if virtio.needs_checksum {
            virtio.checksum_start = virtio.checksum_start.checked_sub(link as u16)?;
        }
        frame.get(HEADER_BYTES + link..).map(|packet| (virtio, packet))
    }

    /// Sends a packet to the host: its headers and its payload, or all of it as payload.
    pub(crate) fn send(
        &self,
        virtio: &VirtioHeader,
        version: Version,
        headers: &[u8],
        payload: &[u8],
    ) -> io::Result<()> {
        match self {
            Self::Tun(tun) => tun.send(&[
                IoSlice::new(&virtio.encode()),
                IoSlice::new(headers),
                IoSlice::new(payload),
            ]),
            Self::Packet { socket, hardware } => {
                let mut virtio = *virtio;
                if virtio.needs_checksum || virtio.segmentation.is_some() {
                    virtio.header_bytes += ETHERNET_BYTES as u16;
                    virtio.checksum_start += ETHERNET_BYTES as u16;
                }
                socket.send(&[
                    IoSlice::new(&virtio.encode()),
                    IoSlice::new(&link_header(hardware, version)),
                    IoSlice::new(headers),
                    IoSlice::new(payload),
                ])
            }
        }
    }

    /// Returns the rate at which a host loses no packet while the emulator is away for [`ABSENCE`],
    /// if that is below [`UNLIMITED_BPS`]: without the privilege to enlarge it, a packet socket's
    /// buffer is small.
    pub(crate) fn bearable_rate(&self) -> Option<Bandwidth> {
        let Self::Packet { socket, .. } = self else { return None };
        let buffer = Bytes::new(socket.receive_buffer() as u64);
        Bandwidth::from_transfer(buffer, ABSENCE).filter(|rate| rate.as_bps() < UNLIMITED_BPS)
    }

    /// Returns the number of packets from the host that were lost since the last call because their
    /// buffer was full. Packets that the host's device counts are not included.
    pub(crate) fn take_drops(&self) -> u64 {
        match self {
            Self::Tun(_) => 0,
            Self::Packet { socket, .. } => socket.take_drops(),
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tun(tun) => tun.as_fd(),
            Self::Packet { socket, .. } => socket.as_fd(),
        }
    }
}

fn link_header(destination: &[u8; 6], version: Version) -> [u8; ETHERNET_BYTES] {
    let mut header = [0; ETHERNET_BYTES];
    header[..6].copy_from_slice(destination);
    header[6..12].copy_from_slice(&NETWORK_HARDWARE);
    header[12..].copy_from_slice(match version {
        Version::V4 => &[0x08, 0x00],
        Version::V6 => &[0x86, 0xdd],
    });
    header
}
