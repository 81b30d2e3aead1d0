//! An emulated part of the Internet: forwards datagrams in both directions, and loses those that
//! the test names.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Least length of a sealed datagram with an application's packet in it; control messages are
/// shorter.
const LONG: usize = 900;

/// The losses and delays of a wire.
#[derive(Debug, Default)]
pub struct Weather {
    /// The sender whose long datagrams are affected.
    pub from: Option<SocketAddr>,
    /// Set to lose all of its datagrams.
    pub is_cut: bool,
    /// One of so many of them is lost; 0: none.
    pub lose_each: usize,
    /// The number that have come.
    pub seen: usize,
    /// The number that were lost.
    pub lost: usize,
    /// One of so many of them is delayed by the span below; 0: none.
    late_each: usize,
    late_by: Duration,
    /// Datagrams that went back to others than `from`.
    pub back: Vec<(SocketAddr, Vec<u8>)>,
    /// The other address from which the node behind it sends, and at which it receives as well, if
    /// there is one.
    elsewhere: Option<Arc<Elsewhere>>,
    /// The sockets towards the node, by sender.
    ups: BTreeMap<SocketAddr, Arc<UdpSocket>>,
}

/// Another address of the node behind a wire.
#[derive(Debug)]
pub struct Elsewhere {
    socket: UdpSocket,
    weather: Arc<Mutex<Weather>>,
    received: AtomicUsize,
}

impl Elsewhere {
    /// Returns how many datagrams have come there.
    pub fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    /// Removes it: the node is no longer at this address.
    pub fn end(&self) {
        self.weather.lock().unwrap().elsewhere = None;
    }
}

/// The wire in front of one node. Its threads end with the test's process.
pub struct Wire {
    pub address: SocketAddr,
    pub weather: Arc<Mutex<Weather>>,
    socket: UdpSocket,
}

impl Wire {
    pub fn to(node: SocketAddr) -> Self {
        Self::slow(node, Duration::ZERO, Vec::new())
    }

    /// Returns a wire that delays all datagrams by `delay`, except from the senders `fast`.
    pub fn slow(node: SocketAddr, delay: Duration, fast: Vec<SocketAddr>) -> Self {
        let socket = UdpSocket::bind(super::loopback()).unwrap();
        let address = socket.local_addr().unwrap();
        let weather = Arc::new(Mutex::new(Weather::default()));
        let wire =
            Self { address, weather: Arc::clone(&weather), socket: socket.try_clone().unwrap() };
        std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if weather.lock().unwrap().loses(from, length) {
                    continue;
                }
                let known = weather.lock().unwrap().ups.get(&from).cloned();
                let up = known.unwrap_or_else(|| {
                    let up = Arc::new(UdpSocket::bind(super::loopback()).unwrap());
                    up.connect(node).unwrap();
                    carry_back(
                        up.try_clone().unwrap(),
                        socket.try_clone().unwrap(),
                        from,
                        &weather,
                    );
                    weather.lock().unwrap().ups.insert(from, Arc::clone(&up));
                    up
                });
                let late = weather.lock().unwrap().lateness(from, length);
                let delay = if fast.contains(&from) { late } else { delay + late };
                if delay.is_zero() {
                    let _ = up.send(&buffer[..length]);
                    continue;
                }
                let (up, held) = (up.try_clone().unwrap(), buffer[..length].to_vec());
                std::thread::spawn(move || {
                    std::thread::sleep(delay);
                    let _ = up.send(&held);
                });
            }
        });
        wire
    }

    /// Has the node behind the wire send from another address from now on, and receive there, too.
    pub fn send_from_elsewhere(&self) -> Arc<Elsewhere> {
        let socket = UdpSocket::bind(super::loopback()).unwrap();
        let (weather, received) = (Arc::clone(&self.weather), AtomicUsize::new(0));
        let elsewhere = Arc::new(Elsewhere { socket, weather, received });
        let mut weather = self.weather.lock().unwrap();
        weather.elsewhere = Some(Arc::clone(&elsewhere));
        let (there, ups) = (Arc::clone(&elsewhere), weather.ups.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok((length, from)) = there.socket.recv_from(&mut buffer) {
                let is_here = there.weather.lock().unwrap().elsewhere.is_some();
                if let Some(up) = ups.get(&from).filter(|_| is_here) {
                    there.received.fetch_add(1, Ordering::Relaxed);
                    let _ = up.send(&buffer[..length]);
                }
            }
        });
        elsewhere
    }

    /// Sends a datagram to a node before the wire, as if it came from the node behind it.
    pub fn inject(&self, to: SocketAddr, datagram: &[u8]) {
        self.socket.send_to(datagram, to).unwrap();
    }

    /// Loses one of `each` long datagrams of `from` from now on.
    pub fn lose_each(&self, from: SocketAddr, each: usize) {
        let mut weather = self.weather.lock().unwrap();
        (weather.from, weather.lose_each, weather.seen) = (Some(from), each, 0);
    }

    /// Delays one of `each` long datagrams of `from` from now on.
    pub fn delay_each(&self, from: SocketAddr, each: usize, by: Duration) {
        let mut weather = self.weather.lock().unwrap();
        (weather.from, weather.late_each, weather.late_by) = (Some(from), each, by);
        weather.seen = 0;
    }

    /// Loses all datagrams of `from` from now on, or none.
    pub fn cut(&self, from: SocketAddr, is_cut: bool) {
        let mut weather = self.weather.lock().unwrap();
        (weather.from, weather.is_cut) = (Some(from), is_cut);
    }

    pub fn lost(&self) -> usize {
        self.weather.lock().unwrap().lost
    }
}

impl Weather {
    fn loses(&mut self, from: SocketAddr, length: usize) -> bool {
        if self.from == Some(from) && self.is_cut {
            return true;
        }
        if self.from != Some(from) || length < LONG || self.lose_each == 0 {
            return false;
        }
        self.seen += 1;
        let is_lost = self.seen.is_multiple_of(self.lose_each);
        self.lost += usize::from(is_lost);
        is_lost
    }
}

impl Weather {
    fn lateness(&mut self, from: SocketAddr, length: usize) -> Duration {
        if self.from != Some(from) || length < LONG || self.late_each == 0 {
            return Duration::ZERO;
        }
        self.seen += 1;
        if self.seen.is_multiple_of(self.late_each) { self.late_by } else { Duration::ZERO }
    }
}

fn carry_back(up: UdpSocket, down: UdpSocket, to: SocketAddr, weather: &Arc<Mutex<Weather>>) {
    let weather = Arc::clone(weather);
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        loop {
            // A datagram that a node that is gone refuses comes back as an error, once.
            let Ok(length) = up.recv(&mut buffer) else { continue };
            let mut weather = weather.lock().unwrap();
            if weather.from != Some(to) && weather.back.len() < 10_000 {
                weather.back.push((to, buffer[..length].to_vec()));
            }
            let elsewhere = weather.elsewhere.clone();
            drop(weather);
            let down = elsewhere.as_ref().map_or(&down, |elsewhere| &elsewhere.socket);
            let _ = down.send_to(&buffer[..length], to);
        }
    });
}
