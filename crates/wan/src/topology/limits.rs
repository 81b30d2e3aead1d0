//! Limits of values in a topology file, and derived defaults.

use tradewind_units::{Bandwidth, Bytes, Duration, UnitError, time::parse_duration};

/// Longest round trip. Chosen: a hundred times what a satellite needs.
pub(crate) const MAX_RTT: Duration = Duration::from_secs(60);
/// Longest extra delay. Chosen: a path beyond it is out rather than slow.
pub(crate) const MAX_JITTER: Duration = Duration::from_secs(10);
/// Smallest and largest IP packet of a path: the size that every IPv4 host must accept, and the
/// largest value of the header's length field (RFC 791).
const MTU: std::ops::RangeInclusive<u64> = 576..=65_535;
/// Smallest capacity of a default queue. Chosen: a hundred full packets.
const MIN_QUEUE: Bytes = Bytes::new(150_000);

/// Largest window, socket buffer and burst. Source: the largest window that TCP can announce (RFC
/// 7323).
const MAX_BUFFER: Bytes = Bytes::new(1 << 30);
/// Smallest buffer of a host's sockets. Source: the first value of `tcp_rmem` and `tcp_wmem`, a
/// page, which is too small for a full packet.
const MIN_SOCKET_BUFFER: Bytes = Bytes::new(4096);
/// Largest queue of a link. Chosen: a second of 8 Tbit/s, more than any machine could hold.
const MAX_QUEUE: Bytes = Bytes::new(1 << 40);

/// The expected form of a rate.
pub(super) const RATE_EXPECTED: &str = "`none` or a rate such as `500 Mbit/s`, at least 1 kbit/s";

/// Returns the lowest rate. Chosen: a full packet takes 12 s, and the kernel's shapers support
/// little less.
pub(super) fn slowest_rate() -> Bandwidth {
    Bandwidth::from_bps(1000).expect("above zero")
}

/// Most sites and hosts. Chosen: far more than one machine can run.
pub(crate) const MAX_SITES: usize = 256;
pub(crate) const MAX_HOSTS: usize = 1024;
/// Most named links that a pair may pass. Chosen: more than any real path's bottlenecks.
pub(crate) const MAX_LINKS_ON_A_PAIR: usize = 16;

/// Parses a span of at most `longest`.
pub(crate) fn span(text: &str, longest: Duration) -> Result<Duration, String> {
    let span = parse_duration(text).map_err(|error: UnitError| error.to_string())?;
    check_span(span, longest).map(|()| span)
}

/// Refuses spans above `longest`.
pub(crate) fn check_span(span: Duration, longest: Duration) -> Result<(), String> {
    if span > longest {
        let unit = if longest.as_secs().is_multiple_of(60) {
            format!("{} min", longest.as_secs() / 60)
        } else {
            format!("{} s", longest.as_secs())
        };
        return Err(format!("a span of at most {unit}, not `{} s`", span.as_secs_f64()));
    }
    Ok(())
}

/// Refuses packet sizes outside those of IP.
pub(crate) fn mtu(mtu: Bytes) -> Result<(), String> {
    if !MTU.contains(&mtu.as_u64()) {
        return Err(format!("a packet size from 576 to 65535 bytes, not `{mtu}`"));
    }
    Ok(())
}

/// Refuses windows, socket buffers and bursts above any kernel's.
pub(crate) fn buffer(size: Bytes) -> Result<(), String> {
    if size > MAX_BUFFER {
        return Err(format!("a size of at most 1 GiB, not `{size}`"));
    }
    Ok(())
}

/// Refuses socket buffers that are too small for a session or above any kernel's.
pub(crate) fn socket_buffer(size: Bytes) -> Result<(), String> {
    if size < MIN_SOCKET_BUFFER {
        return Err(format!("a size of at least 4 KiB, not `{size}`"));
    }
    buffer(size)
}

/// Refuses queues that no machine could hold.
pub(crate) fn queue(room: Bytes) -> Result<(), String> {
    if room > MAX_QUEUE {
        return Err(format!("a size of at most 1 TiB, not `{room}`"));
    }
    Ok(())
}

/// Returns the queue of a link that states none: the bandwidth-delay product, but at least
/// [`MIN_QUEUE`].
pub(crate) fn default_queue(rate: Bandwidth, rtt: Duration) -> Bytes {
    rate.volume_in(rtt).max(MIN_QUEUE)
}
