//! Two hosts in namespaces of their own, for tests with real connections.
#![allow(dead_code, reason = "no test file uses all of it")]

pub(crate) mod jumps;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};

use socket2::{Domain, Socket, Type};
use tradewind_net::NetError;
use tradewind_net::iproute::{self, Tool};
use tradewind_net::netns::Namespace;
use tradewind_net::tcp::{self, SocketOptions};
use tradewind_net::tcp_info::TcpInfo;

/// The kernel's default initial window [RFC 6928].
pub(crate) const USUAL: u32 = 10;

/// Reports that a test was skipped, past the capture of passing tests' output.
pub(crate) fn skipped(why: &dyn std::fmt::Display) {
    let _written = std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes());
}

pub(crate) fn dial(address: SocketAddr, options: &SocketOptions) -> TcpStream {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    options.apply(&socket).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}

pub(crate) fn window(stream: &TcpStream) -> u32 {
    TcpInfo::of(stream).unwrap().congestion_window.unwrap().as_u32()
}

pub(crate) const HERE: &str = "10.82.0.1";
pub(crate) const THERE: &str = "10.82.0.2";
pub(crate) const THERE_IPV6: &str = "fd82::2";

/// Two hosts and a cable between them.
pub(crate) struct Hosts {
    pub(crate) here: Namespace,
    pub(crate) there: Namespace,
}

impl Hosts {
    pub(crate) fn new() -> Option<Self> {
        let make = || Ok((Namespace::create()?, Namespace::create()?));
        let (here, there) = match make() {
            Ok(namespaces) => namespaces,
            Err::<_, NetError>(error) => {
                skipped(&error);
                return None;
            }
        };
        let cable = format!(
            "link add name near0 type veth peer name remote0 netns {}",
            descriptor_path(&there)
        );
        iproute::batch(&here, Tool::Ip, &[cable]).unwrap();
        for (host, device, address, ipv6) in
            [(&here, "near0", HERE, "fd82::1"), (&there, "remote0", THERE, THERE_IPV6)]
        {
            let lines = [
                format!("addr add {address}/24 dev {device}"),
                format!("addr add {ipv6}/64 dev {device} nodad"),
                format!("link set {device} up"),
                "link set lo up".to_owned(),
            ];
            iproute::batch(host, Tool::Ip, &lines).unwrap();
        }
        Some(Self { here, there })
    }
}

/// Returns the path by which `ip` finds a namespace of this process.
fn descriptor_path(namespace: &Namespace) -> String {
    use std::os::fd::AsRawFd as _;
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

impl Hosts {
    pub(crate) fn listen(&self, options: &SocketOptions) -> TcpListener {
        self.listen_at(THERE, options)
    }

    pub(crate) fn listen_at(&self, address: &str, options: &SocketOptions) -> TcpListener {
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        let listener =
            self.there.run(|| tcp::listen(address, 1, 16, options).unwrap().remove(0)).unwrap();
        listener.set_nonblocking(false).unwrap();
        listener
    }

    pub(crate) fn dial(&self, listener: &TcpListener, options: &SocketOptions) -> TcpStream {
        let address = listener.local_addr().unwrap();
        self.here.run(|| dial(address, options)).unwrap()
    }
}
