//! A piece of the Internet: passes datagrams on both ways, and loses those that the test names.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A sealed datagram with an application's packet in it is longer than everything else that is
/// said.
const LONG: usize = 900;

/// What becomes of datagrams.
#[derive(Debug, Default)]
pub struct Weather {
    /// Whose long datagrams may get lost.
    pub from: Option<SocketAddr>,
    /// All of its datagrams are lost.
    pub is_cut: bool,
    /// Every so many of them is lost; 0: none.
    pub lose_each: usize,
    /// How many have come.
    pub seen: usize,
    /// How many were lost.
    pub lost: usize,
    /// Every so many of them comes so much later; 0: none.
    late_each: usize,
    late_by: Duration,
    /// What went back to others than `from`.
    pub back: Vec<(SocketAddr, Vec<u8>)>,
    /// Where the node behind it speaks from, and hears as well, if that is elsewhere.
    elsewhere: Option<Arc<Elsewhere>>,
    /// The sockets towards the node, by whose datagrams they carry.
    ups: BTreeMap<SocketAddr, Arc<UdpSocket>>,
}

/// Another address of the node behind a wire.
#[derive(Debug)]
pub struct Elsewhere {
    socket: UdpSocket,
    weather: Arc<Mutex<Weather>>,
    taken: AtomicUsize,
}

impl Elsewhere {
    /// How many datagrams have come there.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Nobody is there any more.
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

    /// A wire that holds what comes for `delay`, but for what these send.
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

    /// From now on the node behind the wire speaks from another address, and hears what comes
    /// there, too.
    pub fn speak_from_elsewhere(&self) -> Arc<Elsewhere> {
        let socket = UdpSocket::bind(super::loopback()).unwrap();
        let (weather, taken) = (Arc::clone(&self.weather), AtomicUsize::new(0));
        let elsewhere = Arc::new(Elsewhere { socket, weather, taken });
        let mut weather = self.weather.lock().unwrap();
        weather.elsewhere = Some(Arc::clone(&elsewhere));
        let (there, ups) = (Arc::clone(&elsewhere), weather.ups.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok((length, from)) = there.socket.recv_from(&mut buffer) {
                let is_here = there.weather.lock().unwrap().elsewhere.is_some();
                if let Some(up) = ups.get(&from).filter(|_| is_here) {
                    there.taken.fetch_add(1, Ordering::Relaxed);
                    let _ = up.send(&buffer[..length]);
                }
            }
        });
        elsewhere
    }

    /// Sends something to who is before the wire, as if it came from the node behind it.
    pub fn inject(&self, to: SocketAddr, datagram: &[u8]) {
        self.socket.send_to(datagram, to).unwrap();
    }

    /// From now on every so many of the long datagrams of `from` is lost.
    pub fn lose_each(&self, from: SocketAddr, each: usize) {
        let mut weather = self.weather.lock().unwrap();
        (weather.from, weather.lose_each, weather.seen) = (Some(from), each, 0);
    }

    /// From now on every so many of the long datagrams of `from` comes so much later.
    pub fn delay_each(&self, from: SocketAddr, each: usize, by: Duration) {
        let mut weather = self.weather.lock().unwrap();
        (weather.from, weather.late_each, weather.late_by) = (Some(from), each, by);
        weather.seen = 0;
    }

    /// Whether from now on everything of `from` is lost.
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
            // What a node that is gone refuses comes as an error, once.
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
