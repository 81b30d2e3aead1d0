//! UDP of SOCKS5 clients: the gateway's part, over plain sockets in place of the packet plane.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use tradewind_desired::Route;
use tradewind_gateway::{DatagramFlow, Datagrams, Gateway};

use super::access_log::{Folder, access_log_in};
use crate::support::{Running, TEST_TIMEOUT, connect, gateway_config, loopback, wait_for};

/// Flows that are sockets of this host, and their number.
#[derive(Default)]
struct Sockets(Arc<AtomicUsize>);

struct Socket(UdpSocket, Arc<AtomicUsize>);

impl Datagrams for Sockets {
    fn open(&self, _: SocketAddr, to: SocketAddr) -> Result<Box<dyn DatagramFlow>, String> {
        let socket = UdpSocket::bind(loopback()).unwrap();
        socket.connect(to).unwrap();
        socket.set_nonblocking(true).unwrap();
        self.0.fetch_add(1, SeqCst);
        Ok(Box::new(Socket(socket, Arc::clone(&self.0))))
    }
}

impl DatagramFlow for Socket {
    fn is_open(&self) -> Result<bool, String> {
        Ok(true)
    }

    fn send(&self, datagram: &[u8]) -> Result<(), String> {
        self.0.send(datagram).map(drop).map_err(|error| error.to_string())
    }

    fn receive(&self) -> Result<Option<Vec<u8>>, String> {
        let mut buffer = vec![0; 2048];
        match self.0.recv(&mut buffer) {
            Ok(length) => Ok(Some(buffer[..length].to_vec())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.1.fetch_sub(1, SeqCst);
    }
}

/// Starts an application that echoes every datagram, as long as the test runs.
fn echo() -> SocketAddr {
    let socket = UdpSocket::bind(loopback()).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _gone = socket.send_to(&buffer[..length], from);
        }
    });
    address
}

/// Starts a gateway that carries datagrams, if `open` is given.
fn gateway(open: Option<Sockets>) -> Running {
    let mut config = gateway_config(Route::Direct);
    config.socks5 = vec![loopback()];
    let gateway = Gateway::bind(&config).unwrap();
    open.into_iter().for_each(|sockets| gateway.carry_datagrams(Arc::new(sockets)));
    Running::gateway_of(gateway)
}

/// Requests an association; returns its connection and its reply.
fn associate(gateway: &Running) -> (TcpStream, [u8; 10]) {
    let mut stream = connect(gateway.address());
    stream.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut answers = [0; 12];
    stream.read_exact(&mut answers).unwrap();
    (stream, answers[2..].try_into().unwrap())
}

/// Returns a client's socket, which sends to its association.
fn client(reply: [u8; 10]) -> UdpSocket {
    assert_eq!(reply[..4], [5, 0, 0, 1]);
    let port = u16::from_be_bytes([reply[8], reply[9]]);
    let socket = UdpSocket::bind(loopback()).unwrap();
    let ip = [reply[4], reply[5], reply[6], reply[7]];
    socket.connect(SocketAddr::from((ip, port))).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    socket
}

fn wrapped(fragment: u8, to: SocketAddr, data: &[u8]) -> Vec<u8> {
    let SocketAddr::V4(to) = to else { panic!() };
    [&[0, 0, fragment, 1][..], &to.ip().octets(), &to.port().to_be_bytes(), data].concat()
}

fn received(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 2048];
    let length = client.recv(&mut buffer).unwrap();
    buffer[..length].to_vec()
}

#[test]
fn socks5_udp_to_several_destinations() {
    let gateway = gateway(Some(Sockets::default()));
    let (_stream, reply) = associate(&gateway);
    let (client, to) = (client(reply), [echo(), echo()]);
    for (number, to) in [to[0], to[1], to[0]].into_iter().enumerate() {
        let datagram = wrapped(0, to, &[number as u8; 1000]);
        client.send(&datagram).unwrap();
        assert_eq!(received(&client), datagram);
    }
}

#[test]
fn fragments_and_datagrams_of_others_go_nowhere() {
    let gateway = gateway(Some(Sockets::default()));
    let (_stream, reply) = associate(&gateway);
    let (client, other, to) = (client(reply), client(reply), echo());
    let whole = wrapped(0, to, b"whole");
    client.send(&wrapped(1, to, b"part")).unwrap();
    client.send(&whole).unwrap();
    assert_eq!(received(&client), whole, "the fragment came to nothing");
    other.send(&wrapped(0, to, b"other")).unwrap();
    client.send(&whole).unwrap();
    assert_eq!(received(&client), whole);
    other.set_nonblocking(true).unwrap();
    assert_eq!(other.recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn association_ends_with_its_connection() {
    let sockets = Sockets::default();
    let open = Arc::clone(&sockets.0);
    let gateway = gateway(Some(sockets));
    let (stream, reply) = associate(&gateway);
    let (client, to) = (client(reply), echo());
    client.send(&wrapped(0, to, b"hello")).unwrap();
    received(&client);
    assert_eq!(open.load(SeqCst), 1);
    drop(stream);
    wait_for("the end of the flow", || open.load(SeqCst) == 0);
    wait_for("the end of the port", || {
        let _refused_before = client.send(&wrapped(0, to, b"late"));
        client.set_nonblocking(true).unwrap();
        matches!(client.recv(&mut [0; 64]), Err(e) if e.kind() == ErrorKind::ConnectionRefused)
    });
    wait_for("the outcome", || gateway.handle.snapshot().outcome("ended") == 1);
}

#[test]
fn association_has_a_bounded_number_of_destinations() {
    const MAX: usize = 64;
    let sockets = Sockets::default();
    let open = Arc::clone(&sockets.0);
    let gateway = gateway(Some(sockets));
    let (_stream, reply) = associate(&gateway);
    let client = client(reply);
    let evicted_after = |to: SocketAddr| {
        let datagram = wrapped(0, to, b"hello");
        client.send(&datagram).unwrap();
        assert_eq!(received(&client), datagram);
        gateway.handle.snapshot().udp_flows_evicted
    };
    let to: Vec<SocketAddr> = (0..MAX + 20).map(|_| echo()).collect();
    to[..MAX].iter().for_each(|to| assert_eq!(evicted_after(*to), 0));
    assert_eq!(evicted_after(to[0]), 0);
    to[MAX..].iter().zip(1..).for_each(|(to, count)| assert_eq!(evicted_after(*to), count));
    wait_for("the oldest to go", || open.load(SeqCst) == MAX);
    // Those that were idle longest have gone, and not the first, which was used again.
    assert_eq!([to[0], to[MAX], to[1]].map(evicted_after), [20, 20, 21]);
}

#[test]
fn associate_without_packet_plane_is_refused() {
    let gateway = gateway(None);
    let (mut stream, reply) = associate(&gateway);
    assert_eq!(reply[..2], [5, 7]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

/// Flows that do not open before the flag is set.
struct Slow(Arc<AtomicBool>, Arc<AtomicUsize>, Sockets);

/// One of them, which counts bytes that are sent.
struct SlowSocket(Arc<AtomicBool>, Arc<AtomicUsize>, Box<dyn DatagramFlow>);

impl Datagrams for Slow {
    fn open(&self, client: SocketAddr, to: SocketAddr) -> Result<Box<dyn DatagramFlow>, String> {
        let (is_open, sent) = (Arc::clone(&self.0), Arc::clone(&self.1));
        Ok(Box::new(SlowSocket(is_open, sent, self.2.open(client, to)?)))
    }
}

impl DatagramFlow for SlowSocket {
    fn is_open(&self) -> Result<bool, String> {
        Ok(self.0.load(SeqCst))
    }

    fn send(&self, datagram: &[u8]) -> Result<(), String> {
        self.1.fetch_add(datagram.len(), SeqCst);
        self.2.send(datagram)
    }

    fn receive(&self) -> Result<Option<Vec<u8>>, String> {
        self.2.receive()
    }
}

impl AsFd for SlowSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.2.as_fd()
    }
}

#[test]
fn queued_association_bytes_are_bounded() {
    const DATAGRAM: usize = 50_000;
    const MAX_BYTES: usize = 1 << 20;
    let (is_open, sent) = (Arc::<AtomicBool>::default(), 2 * MAX_BYTES / DATAGRAM);
    let passed = Arc::<AtomicUsize>::default();
    let mut config = gateway_config(Route::Direct);
    config.socks5 = vec![loopback()];
    let gateway = Gateway::bind(&config).unwrap();
    gateway.carry_datagrams(Arc::new(Slow(
        Arc::clone(&is_open),
        Arc::clone(&passed),
        Sockets::default(),
    )));
    let gateway = Running::gateway_of(gateway);
    let (_stream, reply) = associate(&gateway);
    let client = client(reply);
    let remote = UdpSocket::bind(loopback()).unwrap();
    let to = remote.local_addr().unwrap();
    for number in 1..=sent {
        client.send(&wrapped(0, to, &vec![7; DATAGRAM])).unwrap();
        // One after the other, so that none is lost on its way here.
        wait_for("a datagram", || gateway.handle.snapshot().bytes_up >= (number * DATAGRAM) as u64);
    }
    is_open.store(true, SeqCst);
    // Datagrams sent once it is open follow all that waited, some of which the remote end may lose.
    remote.set_nonblocking(true).unwrap();
    wait_for("the last one", || {
        client.send(&wrapped(0, to, b"last")).unwrap();
        let mut buffer = vec![0; DATAGRAM];
        std::iter::from_fn(|| remote.recv(&mut buffer).ok()).any(|length| length == 4)
    });
    let passed = passed.load(SeqCst) / DATAGRAM;
    assert!((1..=MAX_BYTES / DATAGRAM).contains(&passed), "{passed} of {sent}");
}

#[test]
fn association_is_logged_at_its_end() {
    let folder = Folder::new("association");
    let mut config = gateway_config(Route::Direct);
    config.socks5 = vec![loopback()];
    config.access_log = access_log_in(&folder, "gateway");
    let gateway = Gateway::bind(&config).unwrap();
    gateway.carry_datagrams(Arc::new(Sockets::default()));
    let gateway = Running::gateway_of(gateway);
    let (stream, reply) = associate(&gateway);
    let (client, to) = (client(reply), [echo(), echo()]);
    for to in [to[0], to[1], to[0]] {
        client.send(&wrapped(0, to, b"hello")).unwrap();
        received(&client);
    }
    drop(stream);
    let line = &folder.lines("gateway", 1)[0];
    assert_eq!(line["destination"], to[0].to_string());
    let counts = ["destinations", "bytes_up", "bytes_down"].map(|key| line[key].as_u64());
    assert_eq!(counts, [Some(2), Some(15), Some(15)], "{line}");
    assert_eq!((&line["path"], &line["outcome"]), (&"packets".into(), &"ended".into()));
}
