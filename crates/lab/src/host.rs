//! One host: an anonymous network namespace with its device, addresses, routes and kernel settings.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use tradewind_net::counters::DeviceTable;
use tradewind_net::iproute::{self, Tool};
use tradewind_net::netns::Namespace;
use tradewind_net::packet_socket::PacketSocket;
use tradewind_net::tun::{Offloads, Tun};
use tradewind_net::{NetError, capability, processes, sysctl};
use tradewind_units::{Bytes, HostId};
use tradewind_wan::topology::{CapFlavour, HostRoute};
use tradewind_wan::{Host, HostIndex, Topology};

use crate::address;
use crate::error::LabError;
use crate::options::LabOptions;
use crate::port::Port;

/// The device by which every host reaches the others.
pub(crate) const DEVICE: &str = "wan0";
/// Packets (or super-packets) that queue for the emulator at a host's device before it drops any.
const QUEUE_PACKETS: u32 = 10_000;
/// The ratio of a buffer to the window: a buffer must hold a window of payload with the kernel's
/// overhead, and a second one that the program has not read yet. Chosen.
const BUFFER_PER_WINDOW: u64 = 4;
/// The limit of the sender's own queue before a back-pressure cap. The kernel admits some
/// milliseconds of data per connection (TSQ), so the limit is never reached in practice.
const SHAPER_QUEUE_BYTES: u64 = 64 << 20;

/// A host that is up.
#[derive(Debug)]
pub(crate) struct HostHandle {
    pub(crate) id: HostId,
    pub(crate) index: HostIndex,
    pub(crate) namespace: Arc<Namespace>,
}

impl HostHandle {
    /// Kills what still runs on the host and shortens the time-outs of its dying connections: until
    /// they end, they hold memory that all TCP of the machine shares.
    pub(crate) fn retire(&self) {
        processes::kill_all_in(&self.namespace);
        // Settings that cannot be changed any more belong to a host that is already being removed.
        let _ = self.namespace.run(|| {
            sysctl::set("net.ipv4.tcp_orphan_retries", "1")?;
            sysctl::set("net.ipv4.tcp_fin_timeout", "1")
        });
    }
}

/// The emulator's access to a host.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) port: Port,
    pub(crate) devices: DeviceTable,
    /// Frames that the port's socket has lost so far.
    pub(crate) port_drops: u64,
    /// Reads from the port that have failed so far.
    pub(crate) read_errors: u32,
}

/// The attachment of all hosts of this lab, decided once.
#[derive(Debug)]
pub(crate) enum Wiring {
    /// TUN devices with at most these offloads.
    Tun(Offloads),
    /// veth pairs whose outer ends are in this namespace.
    Packet { outer: Namespace },
}

/// Creates the host `index` of `topology`.
pub(crate) fn set_up(
    topology: &Topology,
    index: HostIndex,
    wiring: &Wiring,
    options: &LabOptions,
) -> Result<(HostHandle, Attachment), LabError> {
    let host = &topology.hosts[usize::from(index.0)];
    let namespace = Arc::new(Namespace::create()?);
    let at_host = |source: NetError| LabError::Host { host: host.id.clone(), source };
    let plan = Plan { topology, host, index, first_receive_buffer: options.first_receive_buffer };
    let attachment = plan.attach(&namespace, wiring).map_err(at_host)?;
    let lines = plan.ip_lines(wiring);
    iproute::batch(&namespace, Tool::Ip, &lines).map_err(|e| plan.explain(e))?;
    let shaper = plan.shaper_lines(&attachment.port);
    iproute::batch(&namespace, Tool::Tc, &shaper).map_err(at_host)?;
    Ok((HostHandle { id: host.id.clone(), index, namespace }, attachment))
}

/// Returns whether the host's cap is enforced on the host itself.
pub(crate) fn needs_shaper(host: &Host) -> bool {
    host.egress.is_some() && host.cap == CapFlavour::BackPressure
}

/// Returns the name of the outer end of a host's veth.
fn outer_device(index: HostIndex) -> String {
    format!("host{}", index.0)
}

struct Plan<'a> {
    topology: &'a Topology,
    host: &'a Host,
    index: HostIndex,
    first_receive_buffer: Option<Bytes>,
}

impl Plan<'_> {
    fn attach(&self, namespace: &Namespace, wiring: &Wiring) -> Result<Attachment, NetError> {
        match wiring {
            Wiring::Tun(offloads) => namespace.run(|| {
                let port = Port::Tun(Tun::create(DEVICE, *offloads)?);
                self.set_sysctls()?;
                Ok(Attachment {
                    port,
                    devices: DeviceTable::open()?,
                    port_drops: 0,
                    read_errors: 0,
                })
            })?,
            Wiring::Packet { outer } => {
                self.make_veth(namespace, outer)?;
                let socket = outer.run(|| PacketSocket::bind(&outer_device(self.index)))??;
                let hardware = address::hardware(self.index);
                namespace.run(|| {
                    self.set_sysctls()?;
                    let port = Port::Packet { socket, hardware };
                    Ok(Attachment {
                        port,
                        devices: DeviceTable::open()?,
                        port_drops: 0,
                        read_errors: 0,
                    })
                })?
            }
        }
    }

    fn make_veth(&self, namespace: &Namespace, outer: &Namespace) -> Result<(), NetError> {
        let outer_end = outer_device(self.index);
        let (process, descriptor) = (std::process::id(), namespace.as_raw_fd());
        let inside = format!("/proc/{process}/fd/{descriptor}");
        let mtu = self.host.mtu.as_u64();
        let lines = [
            format!("link add name {outer_end} type veth peer name {DEVICE} netns {inside}"),
            format!("link set {outer_end} mtu {mtu} txqueuelen {QUEUE_PACKETS} arp off up"),
        ];
        iproute::batch(outer, Tool::Ip, &lines)
    }

    fn set_sysctls(&self) -> Result<(), NetError> {
        let set_if_there = |name: &str, value: &str| match sysctl::get(name) {
            Ok(_) => sysctl::set(name, value),
            Err(_) => Ok(()),
        };
        sysctl::set("net.ipv4.tcp_no_metrics_save", "1")?;
        sysctl::set("net.ipv4.ip_local_port_range", "10000 65535")?;
        sysctl::set("net.ipv4.conf.all.rp_filter", "0")?;
        sysctl::set("net.ipv4.conf.default.rp_filter", "0")?;
        set_if_there("net.ipv6.conf.all.disable_ipv6", "0")?;
        set_if_there("net/ipv6/conf/wan0/disable_ipv6", "0")?;
        set_if_there("net/ipv6/conf/wan0/accept_ra", "0")?;
        set_if_there("net/ipv6/conf/wan0/router_solicitations", "0")?;
        set_if_there("net/ipv6/conf/wan0/addr_gen_mode", "1")?;
        let windows = self.peers().filter_map(|peer| self.route(peer).window);
        let needed = windows.max().map_or(0, |window| window.as_u64() * BUFFER_PER_WINDOW);
        let first = self.first_receive_buffer;
        set_buffer("net.ipv4.tcp_rmem", first, self.host.receive_buffer, needed)?;
        set_buffer("net.ipv4.tcp_wmem", None, self.host.send_buffer, needed)
    }

    fn ip_lines(&self, wiring: &Wiring) -> Vec<String> {
        let (v4, v6) = (address::v4(self.index), address::v6(self.index));
        let mtu = self.host.mtu.as_u64();
        let has_ipv6 = capability::has_ipv6();
        let mut lines = vec![
            "link set lo up".to_owned(),
            format!("link set {DEVICE} mtu {mtu} txqueuelen {QUEUE_PACKETS}"),
        ];
        if matches!(wiring, Wiring::Packet { .. }) {
            let hex = address::hardware(self.index).map(|byte| format!("{byte:02x}")).join(":");
            lines.push(format!("link set {DEVICE} address {hex} arp off"));
        }
        lines.push(format!("addr add {v4}/32 dev {DEVICE}"));
        if has_ipv6 {
            lines.push(format!("addr add {v6}/128 dev {DEVICE} nodad"));
        }
        lines.push(format!("link set {DEVICE} up"));
        for peer in self.peers() {
            let route = self.route(peer);
            let metrics = metrics(&route);
            let (to4, to6) = (address::v4(peer), address::v6(peer));
            lines.push(format!("route add {to4}/32 dev {DEVICE} src {v4}{metrics}"));
            if has_ipv6 {
                lines.push(format!("route add {to6}/128 dev {DEVICE} src {v6}{metrics}"));
            }
        }
        lines
    }

    fn shaper_lines(&self, port: &Port) -> Vec<String> {
        let asked = self.host.egress.filter(|_| needs_shaper(self.host));
        let Some(rate) = asked.into_iter().chain(port.bearable_rate()).min() else {
            return Vec::new();
        };
        // The shaper also counts the link header where there is one; rates are of IP bytes.
        let (mtu, link) = (self.host.mtu.as_u64(), port.link_bytes() as u64);
        let shaped = u128::from(rate.as_bps()) * u128::from(mtu + link) / u128::from(mtu);
        let burst = self.host.burst.as_u64().max(2 * (mtu + link));
        vec![format!(
            "qdisc replace dev {DEVICE} root tbf rate {shaped}bit burst {burst}b \
             limit {SHAPER_QUEUE_BYTES}b"
        )]
    }

    fn peers(&self) -> impl Iterator<Item = HostIndex> {
        let index = self.index;
        (0..self.topology.hosts.len() as u16).map(HostIndex).filter(move |peer| *peer != index)
    }

    fn route(&self, peer: HostIndex) -> HostRoute {
        self.topology.route(self.index, peer)
    }

    /// Converts a refused route into a clear error when its congestion control is the cause.
    fn explain(&self, source: NetError) -> LabError {
        let host = self.host.id.clone();
        if let NetError::Tool { input, .. } = &source {
            let wanted = input.split(" congctl ").nth(1).and_then(|rest| rest.split(' ').next());
            let available = capability::congestion_controls();
            if let Some(wanted) = wanted.filter(|name| !available.iter().any(|a| a == name)) {
                let (wanted, available) = (wanted.to_owned(), available.join(", "));
                return LabError::CongestionControl { host, wanted, available };
            }
        }
        LabError::Host { host, source }
    }
}

/// Returns the kernel's settings for connections over `route`, in the words of `ip route`.
fn metrics(route: &HostRoute) -> String {
    let mut words = format!(" congctl {}", route.congestion_control);
    if let Some(segments) = route.initcwnd {
        words.push_str(&format!(" initcwnd {}", segments.as_u32()));
    }
    if let Some(segments) = route.initrwnd {
        words.push_str(&format!(" initrwnd {}", segments.as_u32()));
    }
    words
}

/// Sets the default and the maximum of a buffer triple (minimum, default, maximum). Without
/// `largest` the maximum is the kernel's, raised to at least `needed`; no value exceeds the
/// maximum.
fn set_buffer(
    name: &str,
    first: Option<Bytes>,
    largest: Option<Bytes>,
    needed: u64,
) -> Result<(), NetError> {
    let current = sysctl::get(name)?;
    let mut sizes: Vec<u64> = current.split_whitespace().filter_map(|s| s.parse().ok()).collect();
    if let [_, middle, last] = &mut sizes[..] {
        *last = largest.map_or((*last).max(needed), Bytes::as_u64).min(i32::MAX as u64);
        *middle = first.map_or(*middle, Bytes::as_u64);
    }
    let most = sizes.last().copied().unwrap_or_default();
    let text: Vec<String> = sizes.iter().map(|size| (*size).min(most).to_string()).collect();
    sysctl::set(name, &text.join(" "))
}
