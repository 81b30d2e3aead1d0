//! The features of this process and this kernel that Tradewind uses, each found by trying it once.
//!
//! [`crate::capability`] looks up what the system reports; here everything is tried. All trials
//! leave the system unchanged.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tradewind_units::{Bandwidth, Bytes, Segments};

use crate::clock::monotonic;
use crate::error::{NetError, Result};
use crate::initial_window::{InitialWindow, InitialWindows};
use crate::interception::{AddressRange, Capture, Interception, make_transparent};
use crate::jumpstart::{JumpStarts, Options, Values};
use crate::netns::Namespace;
use crate::nft::Forwarding;
use crate::sock_diag::{Filter, SockDiag};
use crate::splice::{PIPE_BYTES, Pipe};
use crate::tcp::{self, FastOpen, SocketOptions};
use crate::tcp_info::TcpInfo;
use crate::tun::{Offloads, Tun};
use crate::window_route::WindowRoutes;
use crate::{congestion, pacing, sysctl, userns};

/// A trial: returns its result in a few words, or the reason why the feature does not work here.
pub type Trial = fn() -> Result<String>;

/// A feature of the kernel that Tradewind uses.
#[derive(Debug, Clone, Copy)]
pub struct KernelFeature {
    /// Its name, for tables and programs.
    pub name: &'static str,
    /// Its use.
    pub used_for: &'static str,
    /// True if nothing works without it.
    pub needed: bool,
    /// The function that tries it.
    pub try_it: Trial,
}

/// All features in the order of their trials: the last ones may move this process into a user
/// namespace of its own, for good, so they work only while it has a single thread.
pub const KERNEL_FEATURES: [KernelFeature; 15] = [
    needed("tcp", "sessions", tcp_options),
    needed("splice", "moving bulk without copies", splice),
    optional("sockops", "initial windows, of each connection", sockops),
    optional("table of connections", "jump-start: what is learned from", connections),
    optional("learned windows", "jump-start: windows, rates, shares", learned_windows),
    optional("window routes", "initial windows without sockops", window_routes),
    optional("large buffers", "first flights above 64 KB", large_buffers),
    optional("pacing", "paced-start", pacing_cap),
    optional("bbr", "profile bbr", bbr),
    optional("fast open", "first bytes in the SYN", fast_open),
    optional("window after idle", "warm connections", window_after_idle),
    optional("tproxy", "a transparent gateway", tproxy),
    optional("nftables", "forwarding without splitting", nftables),
    optional("namespaces", "the lab", namespaces),
    optional("tun", "the lab", tun),
];

const fn needed(name: &'static str, used_for: &'static str, try_it: Trial) -> KernelFeature {
    KernelFeature { name, used_for, needed: true, try_it }
}

const fn optional(name: &'static str, used_for: &'static str, try_it: Trial) -> KernelFeature {
    KernelFeature { name, used_for, needed: false, try_it }
}

/// Longest wait of a trial for loopback.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);

fn refused(action: &'static str) -> impl Fn(io::Error) -> NetError {
    move |source| NetError::system(action, source)
}

/// Opens a listener on loopback.
fn listen(options: &SocketOptions) -> Result<TcpListener> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut listeners = tcp::listen(any, 1, 16, options)
        .map_err(|error| NetError::system(error.option, error.source))?;
    let listener = listeners.remove(0);
    listener.set_nonblocking(false).map_err(refused("listen"))?;
    Ok(listener)
}

fn dial(listener: &TcpListener, options: &SocketOptions) -> Result<TcpStream> {
    let dial = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        options.apply(&socket)?;
        socket.connect_timeout(&listener.local_addr()?.into(), TRIAL_TIMEOUT)?;
        Ok(TcpStream::from(socket))
    };
    dial().map_err(refused("connect over loopback"))
}

/// Creates a socket that is not connected.
fn socket() -> Result<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, None).map_err(refused("make a socket"))
}

fn tcp_options() -> Result<String> {
    let options = SocketOptions {
        notsent_lowat: Some(Bytes::new(1 << 20)),
        user_timeout: Some(Duration::from_secs(60)),
        keepalive: Some(Duration::from_secs(60)),
        nodelay: true,
        reset_on_close: true,
        ..SocketOptions::default()
    };
    dial(&listen(&options)?, &options)?;
    Ok("connects over loopback; all options taken".to_owned())
}

fn splice() -> Result<String> {
    let listener = listen(&SocketOptions::default())?;
    let mut sender = dial(&listener, &SocketOptions::default())?;
    let (receiver, _) = listener.accept().map_err(refused("accept"))?;
    let back = dial(&listener, &SocketOptions::default())?;
    let mut move_some = || {
        sender.write_all(&[7; 1000])?;
        receiver.peek(&mut [0])?;
        let mut pipe = Pipe::new()?;
        pipe.fill_from(&receiver, PIPE_BYTES)?;
        pipe.drain_to(&back)
    };
    let count = move_some().map_err(refused("splice from a socket to another"))?;
    Ok(format!("{count} bytes moved from one socket to another"))
}

fn sockops() -> Result<String> {
    /// Unlike any default of the kernel.
    const UNUSUAL: u32 = 77;
    let windows = InitialWindows::attach()?;
    let segments = Segments::new(UNUSUAL).expect("in range");
    let window = InitialWindow { segments, rate: None };
    let options = SocketOptions { initial_window: Some((windows, window)), ..Default::default() };
    let stream = dial(&listen(&SocketOptions::default())?, &options)?;
    let info = TcpInfo::of(&stream).map_err(refused("read TCP_INFO"))?;
    match info.congestion_window {
        Some(window) if window == segments => {
            Ok(format!("a connection began with {UNUSUAL} segments"))
        }
        _ => Err(NetError::Unsupported {
            kernel_feature: "sockops that acts: the program is attached and changes no window",
            needs: "a process whose control group is the one that it sees",
        }),
    }
}

fn connections() -> Result<String> {
    let listener = listen(&SocketOptions::default())?;
    let stream = dial(&listener, &SocketOptions::default())?;
    let end = stream.local_addr().map_err(refused("read an address"))?;
    let (mut count, mut found) = (0_u32, false);
    SockDiag::open()?.each(&Filter::default(), |connection| {
        count += 1;
        found |= connection.local == end && connection.info.congestion_window.is_some();
    })?;
    if found {
        return Ok(format!("sock_diag lists {count} with their windows"));
    }
    Err(NetError::Unsupported {
        kernel_feature: "windows in its list of TCP connections (sock_diag)",
        needs: "the kernel module tcp_diag (CONFIG_INET_TCP_DIAG)",
    })
}

fn learned_windows() -> Result<String> {
    const UNUSUAL: u32 = 78;
    // A loopback address that is rarely used, so that no other connection is affected.
    let any = SocketAddr::from(([127, 82, 82, 82], 0));
    let mut listeners = tcp::listen(any, 1, 16, &SocketOptions::default())
        .map_err(|error| NetError::system(error.option, error.source))?;
    let mut starts = JumpStarts::attach(&Options::default())?;
    let window = Segments::new(UNUSUAL).expect("in range");
    let expires = monotonic() + TRIAL_TIMEOUT;
    let prefix = "127.82.82.82/32".parse().expect("a prefix");
    starts.set(prefix, Values { window, rate: None, rtt: None, expires })?;
    let stream = dial(&listeners.remove(0), &SocketOptions::default())?;
    let info = TcpInfo::of(&stream).map_err(refused("read TCP_INFO"))?;
    if info.congestion_window == Some(window) {
        return Ok(format!("a connection began with the {UNUSUAL} segments of its destination"));
    }
    Err(NetError::Unsupported {
        kernel_feature: "sockops that acts: the program is attached and changes no window",
        needs: "the top of the cgroup2 hierarchy to be mounted where this process sees it",
    })
}

fn window_routes() -> Result<String> {
    WindowRoutes::try_out()?;
    Ok("a route with initcwnd was made and taken away".to_owned())
}

fn large_buffers() -> Result<String> {
    let wanted = Bytes::new(16_000_000);
    let options = SocketOptions { receive_buffer: Some(wanted), ..SocketOptions::default() };
    let socket = socket()?;
    options.apply(&socket).map_err(|error| NetError::system(error.option, error.source))?;
    let given = socket.recv_buffer_size().map_err(refused("read the buffer's size"))?;
    // The kernel reports twice the requested size, which includes its own overhead.
    if given as u64 / 2 < wanted.as_u64() {
        let action =
            format!("make a receive buffer of {wanted}: {} given", Bytes::new(given as u64 / 2));
        let cure = "raise net.core.rmem_max and wmem_max, or give CAP_NET_ADMIN";
        return Err(NetError::system(action, io::Error::other(cure)));
    }
    Ok(format!("{wanted} given"))
}

fn pacing_cap() -> Result<String> {
    let rate = Bandwidth::from_bps(100_000_000).expect("a rate");
    pacing::cap(&socket()?, rate).map_err(refused("set SO_MAX_PACING_RATE"))?;
    Ok("by TCP itself; no queueing discipline needed".to_owned())
}

fn bbr() -> Result<String> {
    congestion::set(&socket()?, "bbr").map_err(refused(
        "choose bbr (modprobe tcp_bbr; net.ipv4.tcp_allowed_congestion_control)",
    ))?;
    Ok("chosen for a socket".to_owned())
}

fn fast_open() -> Result<String> {
    let side = |fast_open| SocketOptions { fast_open: Some(fast_open), ..SocketOptions::default() };
    let listener = listen(&side(FastOpen::Listen(16)))?;
    // The first connection obtains the cookie, the second uses it.
    for _ in 0..2 {
        let mut stream = dial(&listener, &side(FastOpen::Dial))?;
        stream.write_all(b"early").map_err(refused("write"))?;
        let (accepted, _) = listener.accept().map_err(refused("accept"))?;
        accepted.set_read_timeout(Some(TRIAL_TIMEOUT)).map_err(refused("set a time limit"))?;
        accepted.peek(&mut [0]).map_err(refused("read"))?;
        if TcpInfo::of(&stream).is_ok_and(|info| info.syn_data) {
            return Ok("data arrived in a SYN".to_owned());
        }
    }
    let value = sysctl::get("net.ipv4.tcp_fastopen").unwrap_or_else(|_| "absent".to_owned());
    let action = format!("send data in a SYN: net.ipv4.tcp_fastopen is {value}");
    Err(NetError::system(action, io::Error::other("3 lets both sides")))
}

fn window_after_idle() -> Result<String> {
    let name = "net.ipv4.tcp_slow_start_after_idle";
    match sysctl::get(name)?.as_str() {
        "0" => Ok("connections that rest keep their window".to_owned()),
        value => {
            let action = format!("keep the window of a connection that rests: {name} is {value}");
            Err(NetError::system(action, io::Error::other("set it to 0, or use bbr")))
        }
    }
}

fn tproxy() -> Result<String> {
    let listener = listen(&SocketOptions::default())?;
    make_transparent(&listener)?;
    let here = listener.local_addr().map_err(refused("read an address"))?;
    // An address for documentation (RFC 5737), which no host has.
    let destinations =
        vec![AddressRange { base: [192, 0, 2, 3].into(), prefix_bits: 32, ports: 1..=1 }];
    Interception::set(&Capture { destinations, listeners: vec![here], local_output: false })?;
    Ok("rules that lead connections to a listener were set and removed".to_owned())
}

fn nftables() -> Result<String> {
    Forwarding::try_out()?;
    let forwards = match sysctl::get("net.ipv4.ip_forward")?.as_str() {
        "0" => "; `tradewind forward` takes net.ipv4.ip_forward = 1 besides",
        _ => "",
    };
    Ok(format!("NAT rules were set and went with their owner{forwards}"))
}

/// Creates namespaces as this user, or as root of a user namespace.
fn namespaces() -> Result<String> {
    let how = match Namespace::create() {
        Ok(_) => "with this process's own rights",
        Err(_) => {
            userns::become_root_inside()?;
            Namespace::create()?;
            "in a user namespace of its own"
        }
    };
    Ok(how.to_owned())
}

fn tun() -> Result<String> {
    let namespace = Namespace::create()?;
    namespace.run(|| Tun::create("doctor", Offloads::None))??;
    Ok("a device was made".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_features_work_and_all_answer() {
        // Namespaces would move the whole test process.
        for kernel_feature in KERNEL_FEATURES
            .iter()
            .filter(|kernel_feature| !matches!(kernel_feature.name, "namespaces" | "tun"))
        {
            match (kernel_feature.try_it)() {
                Ok(detail) => assert!(!detail.is_empty(), "{}", kernel_feature.name),
                Err(error) => {
                    assert!(!kernel_feature.needed, "{}: {error}", kernel_feature.name);
                    assert!(!error.to_string().contains('\n'), "{error}");
                }
            }
        }
    }
}
