//! The emulator's thread: moves packets from the hosts into the emulated network and deliveries out
//! of it.
//!
//! Each turn of its loop sleeps until a packet waits or a delivery is due, reads a few packets and
//! delivers what is due. Before a delivery that follows a longer sleep it wakes up a moment early
//! and polls the clock; apart from those moments it never spins, because spinning under a real-time
//! priority would freeze the machine.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use tradewind_net::arena::{Arena, Slice};
use tradewind_net::clock::{self, Urgency};
use tradewind_net::epoll::{Epoll, Waker};
use tradewind_net::idle::WakefulCpus;
use tradewind_net::virtio::VirtioHeader;
use tradewind_units::{Duration, Timestamp};
use tradewind_wan::{
    Admission, Bundle, ChangeError, Counters, Delivery, HostIndex, PairChange, Wan,
};

use crate::address;
use crate::delays::Delays;
use crate::error::LabError;
use crate::host::Attachment;
use crate::icmp;
use crate::lateness::Crossed;
use crate::options::AddedLateness;
use crate::packet::{Layout, Version};
use crate::rebuild::{self, Edits};
use crate::validity::{Meters, RingDrops};
use crate::window::WindowBounds;

/// Packets read from one host before the next host is served. Chosen: at 10 us each, well below the
/// bound on lateness.
const READS_IN_A_ROW: usize = 16;
/// Longest sleep. A late wake-up from it shows that this thread is being starved, even without
/// traffic.
const HEARTBEAT: Duration = Duration::from_millis(10);
/// The idle time before a delivery beyond which a CPU enters an idle state so deep that it wakes up
/// late: the thread then wakes up [`EARLY`] and spins. Chosen: at most a tenth of a CPU is spent
/// so.
const REST: Duration = Duration::from_millis(1);
/// The lead of the wake-up before a delivery. Chosen: more than the median wake-up latency of a
/// virtual CPU.
const EARLY: Duration = Duration::from_micros(100);
/// Wake-ups at shorter intervals than this, [`THICK_WAKES`] in a row, are moderated: the thread
/// then sleeps for this span and reads several packets at once. Chosen: a tenth of the bound on
/// lateness, and half of what wake-ups cost at 100,000 packets a second.
const MODERATION: Duration = Duration::from_micros(50);
const THICK_WAKES: u32 = 32;
/// The number of frames up to which a moderated wake-up did not pay.
const FRAMES_IN_A_THICK_WAKE: u64 = 2;
/// Failed reads after which a host's device counts as removed. Chosen: a device that goes down and
/// up again fails once each time.
const MAX_READ_ERRORS: u32 = 100;
/// The time after a host's last packet during which the machine's CPUs are kept awake. Chosen: a
/// measuring program hardly ever pauses longer.
const AWAKE: Duration = Duration::from_secs(5);
/// The epoll token of the waker; a host's token is its index.
const WAKER: u64 = u64::MAX;

/// A request of another thread to the emulator.
pub(crate) enum Request {
    /// Changes a pair of sites.
    Apply(Box<PairChange>, Sender<Result<(), ChangeError>>),
    /// Reports the measurement since the last reset.
    Measure(Sender<Measurement>),
    /// Discards the measurement.
    Reset(Sender<()>),
    /// Ends the thread.
    Stop,
}

/// The emulator's measurement of itself and its network.
pub(crate) struct Measurement {
    pub(crate) meters: Meters,
    pub(crate) counters: Counters,
    pub(crate) ring_drops: RingDrops,
    pub(crate) urgency: Urgency,
    pub(crate) arena_bytes: usize,
}

/// The data from which a delivery is turned into packets again.
#[derive(Clone)]
struct Content {
    frame: Slice,
    virtio: VirtioHeader,
    layout: Layout,
    window: Option<u16>,
    /// The time at which the frame entered the network.
    entered: Timestamp,
}

/// The thread's state.
pub(crate) struct Driver {
    hosts: Vec<Attachment>,
    wan: Wan<Content>,
    windows: WindowBounds,
    arena: Arena,
    epoll: Epoll,
    waker: Arc<Waker>,
    requests: Receiver<Request>,
    zero: Timestamp,
    meters: Meters,
    urgency: Urgency,
    drops_before: RingDrops,
    wakeful_cpus: Option<Arc<WakefulCpus>>,
    /// Deliveries that are held back on purpose.
    delays: Option<Delays<Delivery<Content>>>,
}

impl Driver {
    /// Builds the state. Must be called on the emulator's own thread: it sets the calling thread's
    /// timer slack and scheduling priority.
    pub(crate) fn new(
        hosts: Vec<Attachment>,
        network: NetworkSettings<'_>,
        waker: Arc<Waker>,
        requests: Receiver<Request>,
        wakeful_cpus: Option<Arc<WakefulCpus>>,
    ) -> Result<Self, LabError> {
        clock::sharpen_timers();
        let urgency = clock::raise_urgency();
        let epoll = Epoll::new()?;
        epoll.watch(&*waker, WAKER)?;
        for (index, host) in hosts.iter().enumerate() {
            epoll.watch(&host.port, index as u64)?;
        }
        let mut wan = Wan::new(network.topology, network.seed);
        if let Some(span) = network.coalesce {
            wan.set_coalesce(span);
        }
        let mut driver = Self {
            hosts,
            wan,
            windows: WindowBounds::new(network.topology),
            arena: Arena::default(),
            epoll,
            waker,
            requests,
            zero: clock::monotonic(),
            meters: Meters::start(clock::thread_cpu()),
            urgency,
            drops_before: RingDrops::default(),
            wakeful_cpus,
            delays: network.late.map(|late| Delays::new(late, network.seed)),
        };
        driver.drops_before = driver.read_ring_drops()?;
        Ok(driver)
    }

    /// Runs until [`Request::Stop`] arrives.
    pub(crate) fn run(mut self) -> Result<(), LabError> {
        let mut ready: Vec<u64> = Vec::new();
        let mut looked = clock::monotonic();
        let mut thick_wakes = 0_u32;
        loop {
            let frames_before = self.meters.frames_read;
            let is_moderated = thick_wakes > THICK_WAKES;
            if is_moderated {
                looked = self.moderate(looked)?;
            }
            let before = looked;
            let woken = self.rest(looked, &mut ready)?;
            looked = woken;
            for token in &ready {
                if *token == WAKER {
                    self.waker.silence();
                    if !self.serve_requests()? {
                        return Ok(());
                    }
                } else {
                    if let Some(cpus) = &self.wakeful_cpus {
                        cpus.keep_awake_until(looked + AWAKE);
                    }
                    looked = self.read_host(HostIndex(*token as u16), looked);
                }
            }
            looked = self.deliver_due(looked);
            let found_several =
                self.meters.frames_read.saturating_sub(frames_before) > FRAMES_IN_A_THICK_WAKE;
            let is_thick =
                if is_moderated { found_several } else { woken.since(before) < MODERATION };
            thick_wakes = if is_thick { thick_wakes.saturating_add(1) } else { 0 };
        }
    }

    /// Sleeps for [`MODERATION`] while packets accumulate, then delivers what is due. Returns the
    /// time.
    fn moderate(&mut self, looked: Timestamp) -> Result<Timestamp, LabError> {
        let until = looked + MODERATION;
        clock::sleep_until(until)?;
        let woken = clock::monotonic();
        self.meters.note_gap(woken.since(until));
        Ok(self.deliver_due(woken))
    }

    /// Sleeps until packets wait, a delivery is due or [`HEARTBEAT`] has passed, and fills `ready`
    /// with the tokens of the hosts with packets. Returns the time.
    fn rest(&mut self, now: Timestamp, ready: &mut Vec<u64>) -> Result<Timestamp, LabError> {
        ready.clear();
        let due = self.wan.next_deadline().map(|deadline| self.to_machine_time(deadline));
        let held = self.delays.as_ref().and_then(Delays::next_release);
        let due = due.into_iter().chain(held).min();
        let (sleep, early) = match due.map(|due| due.since(now)) {
            Some(span) if span < REST => (span, Duration::ZERO),
            Some(span) if span < HEARTBEAT => (span - EARLY, EARLY),
            _ => (HEARTBEAT, Duration::ZERO),
        };
        ready.extend(self.epoll.wait(Some(sleep))?);
        let mut woken = clock::monotonic();
        if ready.is_empty() {
            self.meters.note_gap(woken.since(now + sleep));
        }
        while ready.is_empty() && woken < now + (sleep + early) {
            ready.extend(self.epoll.wait(Some(Duration::ZERO))?);
            woken = clock::monotonic();
        }
        Ok(woken)
    }

    fn to_machine_time(&self, network_time: Timestamp) -> Timestamp {
        self.zero + network_time.since(Timestamp::ZERO)
    }

    fn to_network_time(&self, machine_time: Timestamp) -> Timestamp {
        Timestamp::ZERO + machine_time.since(self.zero)
    }

    /// Reads up to [`READS_IN_A_ROW`] packets from a host, and delivers what falls due meanwhile.
    fn read_host(&mut self, source: HostIndex, looked: Timestamp) -> Timestamp {
        let mut looked = looked;
        for _ in 0..READS_IN_A_ROW {
            let port = &self.hosts[usize::from(source.0)].port;
            match self.arena.read_packet(port) {
                Ok(Some(frame)) => {
                    let now = clock::monotonic();
                    self.meters.note_gap(now.since(looked));
                    looked = self.deliver_due(now);
                    self.take_in(source, frame, looked);
                }
                Ok(None) => break,
                Err(_) => {
                    self.meters.read_errors += 1;
                    self.give_up_if_broken(source);
                    break;
                }
            }
        }
        looked
    }

    /// Counts a failed read, and stops polling a device after too many: a removed device would be
    /// reported as readable for ever.
    fn give_up_if_broken(&mut self, source: HostIndex) {
        let host = &mut self.hosts[usize::from(source.0)];
        host.read_errors += 1;
        if host.read_errors > MAX_READ_ERRORS {
            self.epoll.forget(&host.port);
        }
    }

    /// Sends one frame into the network.
    fn take_in(&mut self, source: HostIndex, frame: Slice, now: Timestamp) {
        self.meters.frames_read += 1;
        let port = &self.hosts[usize::from(source.0)].port;
        let Some((virtio, packet)) = port.open_frame(frame.as_bytes()) else {
            self.meters.foreign_frames += 1;
            return;
        };
        let layout = match Layout::parse(packet) {
            Some(layout) if rebuild::is_consistent(&virtio, &layout) => layout,
            _ => {
                self.meters.foreign_frames += 1;
                return;
            }
        };
        let Some(destination) = self.find_destination(layout.destination) else {
            self.meters.unroutable += 1;
            return;
        };
        let ends = (source, destination);
        let window = self.windows.field_for(now, ends, &layout, packet);
        let bundle = Bundle {
            source,
            destination,
            connection: layout.connection,
            header_bytes: u32::from(layout.header_bytes),
            payload_bytes: layout.total_bytes - u32::from(layout.header_bytes),
            segment_bytes: u32::from(virtio.segment_bytes),
            ecn: layout.ecn,
            content: Content { frame: frame.clone(), virtio, layout, window, entered: now },
        };
        match self.wan.push(self.to_network_time(now), bundle) {
            Admission::Accepted => {}
            Admission::NoRoute => self.meters.unroutable += 1,
            Admission::TooBig { mtu } => {
                let prefix = self.hosts[usize::from(source.0)].port.prefix_bytes();
                let mtu = mtu.as_u64() as u32;
                let answer = icmp::too_big(&frame.as_bytes()[prefix..], &layout, mtu);
                self.send(source, &VirtioHeader::default(), layout.version, &[], &answer);
            }
        }
    }

    fn find_destination(&self, address: IpAddr) -> Option<HostIndex> {
        address::host_of(address).filter(|host| usize::from(host.0) < self.hosts.len())
    }

    /// Delivers what is due at `now` or falls due while delivering; returns the last reading of the
    /// clock.
    fn deliver_due(&mut self, now: Timestamp) -> Timestamp {
        let mut now = now;
        while let Some(delivery) = self.next_due(now) {
            let due = self.to_machine_time(delivery.due);
            self.meters.note_delivery(&Crossed {
                source: delivery.source,
                destination: delivery.destination,
                transit: due.since(delivery.content.entered),
                late: now.since(due),
                segments: delivery.segments.len() as u64,
            });
            self.deliver(&delivery);
            let looked = clock::monotonic();
            self.meters.note_gap(looked.since(now));
            now = looked;
        }
        now
    }

    /// Returns the next delivery that is due and not held back.
    fn next_due(&mut self, now: Timestamp) -> Option<Delivery<Content>> {
        let Some(delays) = &mut self.delays else {
            return self.wan.pop_due(self.to_network_time(now));
        };
        let network_now = Timestamp::ZERO + now.since(self.zero);
        while let Some(delivery) = self.wan.pop_due(network_now) {
            let due = self.zero + delivery.due.since(Timestamp::ZERO);
            delays.hold(due, delivery);
        }
        delays.release(now)
    }

    fn deliver(&mut self, delivery: &Delivery<Content>) {
        let Content { frame, virtio, layout, window, .. } = &delivery.content;
        let prefix = self.hosts[usize::from(delivery.source.0)].port.prefix_bytes();
        let packet = &frame.as_bytes()[prefix..];
        let segments = delivery.segments.clone();
        let is_whole = segments.start == 0 && segments.end == rebuild::segments_of(virtio, layout);
        let was_marked = layout.ecn == tradewind_wan::Ecn::Marked;
        let edits = Edits { ce_marked: delivery.ce_marked && !was_marked, window: *window };
        if is_whole && edits == Edits::default() {
            let packet = &packet[..layout.total_bytes as usize];
            self.send(delivery.destination, virtio, layout.version, &[], packet);
        } else {
            let part = rebuild::rebuild(virtio, layout, packet, segments, edits);
            let payload = &packet[part.payload.clone()];
            let to = delivery.destination;
            self.send(to, &part.virtio, layout.version, part.headers(), payload);
        }
    }

    fn send(
        &mut self,
        to: HostIndex,
        virtio: &VirtioHeader,
        version: Version,
        headers: &[u8],
        payload: &[u8],
    ) {
        let port = &self.hosts[usize::from(to.0)].port;
        if port.send(virtio, version, headers, payload).is_err() {
            self.meters.write_errors += 1;
        }
    }

    /// Serves pending requests; returns `false` on [`Request::Stop`].
    fn serve_requests(&mut self) -> Result<bool, LabError> {
        while let Ok(request) = self.requests.try_recv() {
            // The requester may be gone by now; then the reply is dropped.
            match request {
                Request::Apply(change, answer) => {
                    let now = self.to_network_time(clock::monotonic());
                    let _ = answer.send(self.wan.apply(now, &change));
                }
                Request::Measure(answer) => {
                    let measurement = self.measure()?;
                    let _ = answer.send(measurement);
                }
                Request::Reset(answer) => {
                    self.drops_before = self.read_ring_drops()?;
                    self.meters = Meters::start(clock::thread_cpu());
                    self.wan.reset_losses();
                    let _ = answer.send(());
                }
                Request::Stop => return Ok(false),
            }
        }
        Ok(true)
    }

    fn measure(&mut self) -> Result<Measurement, LabError> {
        let mut meters = self.meters.clone();
        meters.stop(clock::thread_cpu());
        meters.legs.set_losses(|from, to| self.wan.losses(from, to));
        let ring_drops = self.read_ring_drops()?.since(&self.drops_before);
        Ok(Measurement {
            meters,
            counters: self.wan.counters(),
            ring_drops,
            urgency: self.urgency,
            arena_bytes: self.arena.bytes_held(),
        })
    }

    /// Reads the number of packets that hosts' devices and ports have lost since the lab's start.
    fn read_ring_drops(&mut self) -> Result<RingDrops, LabError> {
        let mut drops = RingDrops::default();
        for host in &mut self.hosts {
            let counters = host.devices.read(crate::host::DEVICE)?;
            host.port_drops += host.port.take_drops();
            drops.add(counters.send_drops + host.port_drops, counters.receive_drops);
        }
        Ok(drops)
    }
}

/// The settings of the emulated network.
pub(crate) struct NetworkSettings<'a> {
    pub(crate) topology: &'a tradewind_wan::Topology,
    pub(crate) seed: u64,
    pub(crate) coalesce: Option<Duration>,
    pub(crate) late: Option<AddedLateness>,
}
