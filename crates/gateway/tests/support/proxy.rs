//! A proxy between two relays, whose connections a test can kill or stall one by one.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown as Half, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Pause after each read: a connection carries so little that a stream needs all of them.
const PAUSE: Duration = Duration::from_millis(2);

/// Interval at which the test's requests are checked.
const LOOK: Duration = Duration::from_millis(5);

/// One connection through the proxy.
#[derive(Default)]
pub struct Wire {
    killed: AtomicBool,
    stalled: AtomicBool,
    moved: AtomicU64,
}

impl Wire {
    /// Resets both sides.
    pub fn kill(&self) {
        self.killed.store(true, SeqCst);
    }

    /// Stops reading and writing, without closing.
    pub fn stall(&self) {
        self.stalled.store(true, SeqCst);
    }

    /// Returns the bytes that it has carried in both directions together.
    pub fn moved(&self) -> u64 {
        self.moved.load(SeqCst)
    }
}

/// A proxy to one address, for as long as the test runs.
pub struct Proxy {
    pub address: SocketAddr,
    wires: Arc<Mutex<Vec<Arc<Wire>>>>,
}

impl Proxy {
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(super::relay_loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let wires = Arc::<Mutex<Vec<Arc<Wire>>>>::default();
        let list = Arc::clone(&wires);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Ok(remote) = TcpStream::connect(target) else { continue };
                let wire = Arc::<Wire>::default();
                list.lock().unwrap().push(Arc::clone(&wire));
                for stream in [&near, &remote] {
                    tradewind_net::tcp::reset_on_close(stream).unwrap();
                    stream.set_read_timeout(Some(LOOK)).unwrap();
                    stream.set_write_timeout(Some(LOOK)).unwrap();
                    stream.set_nodelay(true).unwrap();
                }
                let (near, remote) = (Arc::new(near), Arc::new(remote));
                for (from, to) in [(&near, &remote), (&remote, &near)] {
                    let (from, to) = (Arc::clone(from), Arc::clone(to));
                    let wire = Arc::clone(&wire);
                    std::thread::spawn(move || copy(&from, &to, &wire));
                }
            }
        });
        Self { address, wires }
    }

    /// Returns the connections so far, in the order in which they were accepted.
    pub fn wires(&self) -> Vec<Arc<Wire>> {
        self.wires.lock().unwrap().clone()
    }
}

/// Copies one direction until its end; any other end resets both sides.
fn copy(mut from: &TcpStream, mut to: &TcpStream, wire: &Wire) {
    let mut buffer = vec![0; 1 << 16];
    let waits = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
    while !wire.killed.load(SeqCst) {
        if wire.stalled.load(SeqCst) {
            std::thread::sleep(LOOK);
            continue;
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => {
                let _gone = to.shutdown(Half::Write);
                return;
            }
            Ok(count) => count,
            Err(error) if waits(error.kind()) => continue,
            Err(_) => return wire.kill(),
        };
        let mut rest = &buffer[..count];
        while !rest.is_empty() && !wire.killed.load(SeqCst) {
            match to.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if waits(error.kind()) => {}
                Err(_) => return wire.kill(),
            }
        }
        wire.moved.fetch_add(count as u64, SeqCst);
        std::thread::sleep(PAUSE);
    }
}
