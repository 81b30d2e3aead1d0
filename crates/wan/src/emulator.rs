//! The emulator's core: segments in, deliveries out, in virtual time.
//!
//! Every segment passes its links one after the other (see `routes`), and each link serves segments
//! in the order of their planned arrival. Only planned times drive the network: a late call delays
//! nothing but the caller's knowledge of a delivery. Segments of a bundle are treated as if they
//! had been pushed one by one, so bundling never changes a segment's fate.

use std::collections::BTreeMap;

use tradewind_units::{Bytes, Duration, SiteId, Timestamp};

use crate::{
    Admission, Bundle, ChangeError, Counters, Delivery, DropCause, Ecn, LinkCounters, LinkName,
    PairChange, Tally, Topology,
    agenda::{Agenda, LineId},
    bundles::Bundles,
    link::{Fate, LineKind, Link, Sent},
    queue::Arrival,
    routes::{Builder, EGRESS_HOP, Fabric, Next, Routes},
    segment::{Nanos, Segment, nanos},
    topology::{HostIndex, SiteIndex},
};

/// Default of the largest spread of due times within one delivery. Measured: at 250 us offloaded
/// and single packets behave alike, and the driver's cost is near its minimum.
const COALESCE: Duration = Duration::from_micros(250);

/// The number of connection caps from which idle ones are looked for. Chosen.
const CONNECTIONS_BEFORE_SWEEP: usize = 1024;

/// The number of queued segments that are examined for the next deadline. Chosen: more segments
/// than a coalescing span holds below 3 Gbit/s; beyond, the deadline is early, which is harmless.
const HEADS_IN_VIEW: usize = 64;

/// The key of a connection in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ConnectionKey {
    source: HostIndex,
    destination: HostIndex,
    /// The caller's number of the connection.
    number: u64,
}

/// An emulated network of hosts.
///
/// [`push`](Self::push) bundles as they leave their hosts, sleep until
/// [`next_deadline`](Self::next_deadline), and pass on the deliveries of
/// [`pop_due`](Self::pop_due). Times are the caller's and must not go back; an earlier time counts
/// as the latest seen.
#[derive(Debug, Clone)]
pub struct Wan<P> {
    now: Nanos,
    sites: BTreeMap<SiteId, SiteIndex>,
    routes: Routes,
    links: Vec<Link>,
    names: Vec<LinkName>,
    tallies: Vec<Tally>,
    total: Tally,
    /// Segments lost since the last reset, by ordered pair of sites.
    losses: Vec<u64>,
    agenda: Agenda,
    bundles: Bundles<P>,
    connections: BTreeMap<ConnectionKey, usize>,
    connections_before_sweep: usize,
    free_links: Vec<usize>,
}

impl<P: Clone> Wan<P> {
    /// Creates an idle network at time zero. All randomness comes from `seed`.
    #[must_use]
    pub fn new(topology: &Topology, seed: u64) -> Self {
        let Fabric { routes, links, names, tallies } = Builder::new(topology, seed).build();
        Self {
            now: 0,
            losses: vec![0; routes.pairs.len()],
            routes,
            links,
            names,
            tallies,
            total: Tally::default(),
            agenda: Agenda::default(),
            bundles: Bundles::new(topology.hosts.len(), nanos(COALESCE)),
            connections: BTreeMap::new(),
            connections_before_sweep: CONNECTIONS_BEFORE_SWEEP,
            free_links: Vec::new(),
            sites: topology.site_names(),
        }
    }

    /// Sets the largest spread of the due times within one delivery; 250 us unless set.
    pub fn set_coalesce(&mut self, span: Duration) {
        self.bundles.set_coalesce(nanos(span));
    }

    /// Pushes a bundle into the network at `now`.
    pub fn push(&mut self, now: Timestamp, bundle: Bundle<P>) -> Admission {
        self.run_until(now.as_nanos());
        let Some(pair) = self.routes.pair_between(bundle.source, bundle.destination) else {
            return Admission::NoRoute;
        };
        let shape = Shape::of(&bundle);
        let (mtu, icmp) = (self.routes.pairs[pair].mtu, self.routes.pairs[pair].icmp);
        let fitting = shape.segments_up_to(mtu);
        self.refuse_too_big(pair, shape.segments - fitting);
        if fitting > 0 {
            self.send_off(bundle, pair, shape, fitting, mtu);
        }
        if fitting < shape.segments && icmp {
            Admission::TooBig { mtu }
        } else {
            Admission::Accepted
        }
    }

    /// Returns the time of the next necessary call of [`Self::pop_due`]; `None` when nothing is in
    /// flight. It is at most one coalescing span later than the next delivery is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.bundles.has_ready() {
            return Some(Timestamp::from_nanos(self.now));
        }
        let mut soonest = self.bundles.next_expiry().unwrap_or(Nanos::MAX);
        for (at, line) in self.agenda.entries() {
            if at < soonest {
                soonest = soonest.min(self.soonest_of(at, line));
            }
        }
        (soonest != Nanos::MAX).then(|| Timestamp::from_nanos(soonest))
    }

    /// Returns the next delivery due at or before `now`; to be called until it returns `None`.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<Delivery<P>> {
        self.run_until(now.as_nanos());
        self.bundles.pop_ready()
    }

    /// Returns the segments lost between the sites of two hosts, in this direction, since the last
    /// [`Self::reset_losses`].
    #[must_use]
    pub fn losses(&self, source: HostIndex, destination: HostIndex) -> u64 {
        self.routes.pair_between(source, destination).map_or(0, |pair| self.losses[pair])
    }

    /// Starts to count losses anew.
    pub fn reset_losses(&mut self) {
        self.losses.fill(0);
    }

    /// Returns the counters at the latest time seen.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut tallies = self.tallies.clone();
        for link in &self.links {
            tallies[link.tally].in_flight += link.in_flight() as u64;
        }
        let name_tally =
            |(name, tally): (&LinkName, Tally)| LinkCounters { name: name.clone(), tally };
        let mut total = self.total;
        total.in_flight = self.bundles.outstanding();
        Counters { total, links: self.names.iter().zip(tallies).map(name_tally).collect() }
    }

    /// Changes a pair of sites at `now`. A new rate takes effect at once, also for the segment in
    /// service; a new delay applies to segments sent from now on.
    ///
    /// # Errors
    /// When the change names an unknown site, or a queue that cannot hold a packet.
    pub fn apply(&mut self, now: Timestamp, change: &PairChange) -> Result<(), ChangeError> {
        self.run_until(now.as_nanos());
        let site = |id: &SiteId| {
            self.sites.get(id).copied().ok_or_else(|| ChangeError::UnknownSite(id.clone()))
        };
        let (from, to) = (site(&change.from)?, site(&change.to)?);
        let there = self.routes.pair_of_sites(from, to);
        let back = self.routes.pair_of_sites(to, from);
        let both = [Some(there), (change.both_ways && back != there).then_some(back)];
        for pair in both.into_iter().flatten() {
            let route = &self.routes.pairs[pair];
            change.check(route.mtu, &self.links[route.own_link()])?;
        }
        both.into_iter().flatten().for_each(|pair| self.alter(pair, change));
        self.routes.refresh_leads(&mut self.links);
        Ok(())
    }

    fn alter(&mut self, pair: usize, change: &PairChange) {
        let route = &mut self.routes.pairs[pair];
        route.mtu = change.mtu.unwrap_or(route.mtu);
        let own_link = route.own_link();
        let link = &mut self.links[own_link];
        if let Some(head) = change.alter(link, self.now) {
            self.agenda.add(head, LineId::new(own_link, LineKind::Queue));
        }
    }

    /// Counts segments above the MTU as entered and dropped.
    fn refuse_too_big(&mut self, pair: usize, segments: u32) {
        let tally = self.links[self.routes.pairs[pair].own_link()].tally;
        for tally in [&mut self.tallies[tally], &mut self.total] {
            tally.entered += u64::from(segments);
            tally.drop_many(DropCause::TooBig, u64::from(segments));
        }
    }

    fn send_off(&mut self, bundle: Bundle<P>, pair: usize, shape: Shape, fitting: u32, mtu: Bytes) {
        self.total.entered += u64::from(fitting);
        let (source, destination, ecn) = (bundle.source, bundle.destination, bundle.ecn);
        let key = ConnectionKey { source, destination, number: bundle.connection };
        let connection = self.connection_link(key);
        let slot = self.bundles.admit(bundle, fitting);
        for index in 0..shape.segments {
            let bytes = shape.bytes_of(index);
            if bytes > mtu {
                continue;
            }
            let segment = Segment {
                bundle: slot,
                index,
                bytes: u32::try_from(bytes.as_u64()).expect("an MTU is below 2^16"),
                pair: u32::try_from(pair).expect("fewer than 2^16 sites"),
                source: source.0,
                destination: destination.0,
                hop: EGRESS_HOP,
                ecn_capable: ecn != Ecn::NotCapable,
                ce_marked: ecn == Ecn::Marked,
                is_last: index + 1 == shape.segments,
            };
            match connection {
                Some(link) => self.enter(link, self.now, segment),
                None => self.go_on(self.now, segment),
            }
            // Events due now come before the next segment, as if it were pushed on its own.
            self.run_until(self.now);
        }
    }

    /// Processes all events up to `limit`.
    fn run_until(&mut self, limit: Nanos) {
        while let Some((at, line)) = self.agenda.first() {
            if at > limit {
                break;
            }
            let link = &mut self.links[line.link()];
            if link.line(line.kind()).front().is_none_or(|head| head.at != at) {
                self.agenda.replace_first(None);
                continue;
            }
            let (segment, next) = link.take_head(line.kind()).expect("the line has a head");
            self.agenda.replace_first(next);
            match line.kind() {
                LineKind::Queue => self.leave_queue(line.link(), at, segment),
                LineKind::Wire | LineKind::Late => self.leave(line.link(), at, segment),
            }
        }
        self.now = self.now.max(limit);
        self.bundles.expire(self.now);
    }

    /// Moves a segment to its next link, or delivers it.
    fn go_on(&mut self, now: Nanos, mut segment: Segment) {
        loop {
            let next = self.routes.next(&segment);
            segment.hop += 1;
            match next {
                Next::Skip => {}
                Next::Link(link) => return self.enter(link, now, segment),
                Next::Arrived => return self.arrive(now, segment),
            }
        }
    }

    fn enter(&mut self, index: usize, now: Nanos, mut segment: Segment) {
        let link = &mut self.links[index];
        let tally = &mut self.tallies[link.tally];
        tally.entered += 1;
        let was_marked = segment.ce_marked;
        match link.queue.arrive(now, &mut segment) {
            Arrival::Passes => self.leave_queue(index, now, segment),
            Arrival::Refused => self.drop_segment(index, segment, DropCause::QueueFull),
            Arrival::Waits => tally.marked += u64::from(segment.ce_marked && !was_marked),
            Arrival::WaitsFirst(head) => {
                tally.marked += u64::from(segment.ce_marked && !was_marked);
                self.agenda.add(head, LineId::new(index, LineKind::Queue));
            }
        }
    }

    /// Applies the link's faults to a segment that was sent at `now`, then puts it on the wire.
    fn leave_queue(&mut self, index: usize, now: Nanos, segment: Segment) {
        let link = &mut self.links[index];
        let Some(faults) = &mut link.faults else { return self.leave(index, now, segment) };
        let late_by = faults.late_by();
        let (twice, late) = match faults.judge(now) {
            Fate::Lost(cause) => return self.drop_segment(index, segment, cause),
            Fate::Goes { twice, late } => (twice, late),
        };
        if twice {
            self.tallies[link.tally].duplicated += 1;
            self.total.duplicated += 1;
            self.bundles.duplicate(segment.bundle);
        }
        for _ in 0..=u8::from(twice) {
            let wire = &mut self.links[index].wire;
            let sent =
                if late { wire.send_late(now, segment, late_by) } else { wire.send(now, segment) };
            match sent {
                Sent::Arrives => self.leave(index, now, segment),
                Sent::First(kind, due) => self.agenda.add(due, LineId::new(index, kind)),
                Sent::Behind => {}
            }
        }
    }

    /// Passes a segment on from the remote end of a link.
    fn leave(&mut self, index: usize, now: Nanos, segment: Segment) {
        self.tallies[self.links[index].tally].deliver(segment.bytes);
        self.go_on(now, segment);
    }

    fn drop_segment(&mut self, index: usize, segment: Segment, cause: DropCause) {
        self.tallies[self.links[index].tally].drop_many(cause, 1);
        self.total.drop_many(cause, 1);
        self.losses[segment.pair as usize] += 1;
        self.bundles.drop_segment(segment.bundle);
    }

    fn arrive(&mut self, now: Nanos, segment: Segment) {
        self.total.deliver(segment.bytes);
        let (routes, links) = (&self.routes, &self.links);
        self.bundles.deliver(now, &segment, || next_arrival(routes, links, &segment));
    }

    /// Returns the earliest time at which the head of a FIFO, due at `at`, can lead to a delivery,
    /// or `Nanos::MAX` if the head is due at another time.
    fn soonest_of(&self, at: Nanos, line: LineId) -> Nanos {
        let link = &self.links[line.link()];
        let Some(head) = link.line(line.kind()).front().filter(|head| head.at == at) else {
            return Nanos::MAX;
        };
        if line.kind() == LineKind::Queue && !link.is_ingress {
            let pair = &self.routes.pairs[head.segment.pair as usize];
            let lead = link.lead.unwrap_or_else(|| self.links[pair.own_link()].wire.delay);
            return at.saturating_add(lead);
        }
        // Segments of a bundle are delivered together: wait for the last one that may join.
        let window = at.saturating_add(self.bundles.coalesce());
        let mut seen = at;
        for head in link.line(line.kind()).iter().take(HEADS_IN_VIEW) {
            if head.at > window {
                return seen;
            }
            if head.segment.is_last {
                return head.at;
            }
            seen = head.at;
        }
        if link.line(line.kind()).len() > HEADS_IN_VIEW { seen } else { window }
    }

    /// Returns the link of a connection's own cap, if its host has one.
    fn connection_link(&mut self, connection: ConnectionKey) -> Option<usize> {
        let cap = self.routes.connection_cap(connection.source)?;
        if let Some(link) = self.connections.get(&connection) {
            return Some(*link);
        }
        if self.connections.len() >= self.connections_before_sweep {
            self.sweep_connections();
        }
        let link = cap.link();
        let index = match self.free_links.pop() {
            Some(index) => {
                self.links[index] = link;
                index
            }
            None => {
                self.links.push(link);
                self.links.len() - 1
            }
        };
        self.connections.insert(connection, index);
        Some(index)
    }

    /// Removes the caps of idle connections.
    fn sweep_connections(&mut self) {
        let (links, free, now) = (&self.links, &mut self.free_links, self.now);
        self.connections.retain(|_, index| {
            let keeps = !links[*index].queue.is_at_rest(now);
            if !keeps {
                free.push(*index);
            }
            keeps
        });
        self.connections_before_sweep = CONNECTIONS_BEFORE_SWEEP.max(2 * self.connections.len());
    }
}

/// Returns the earliest time at which another segment of this one's pair can arrive at the same
/// host, or zero when that is unknown.
fn next_arrival(routes: &Routes, links: &[Link], segment: &Segment) -> Nanos {
    let ingress = routes.ingress(segment.destination).map(|link| &links[link]);
    if let Some(head) = ingress.and_then(|link| link.queue.waiting.front()) {
        return head.at;
    }
    let pair = &links[routes.pairs[segment.pair as usize].own_link()];
    if let Some(head) = pair.line(LineKind::Wire).front() {
        return head.at;
    }
    if let Some(head) = pair.queue.waiting.front() {
        return head.at.saturating_add(pair.wire.delay);
    }
    if routes.has_links_before_pair(segment) { 0 } else { Nanos::MAX }
}

/// The segmentation of a bundle.
#[derive(Debug, Clone, Copy)]
struct Shape {
    segments: u32,
    header: u32,
    payload: u32,
    segment_payload: u32,
}

impl Shape {
    fn of<P>(bundle: &Bundle<P>) -> Self {
        let payload = bundle.payload_bytes;
        let is_single = bundle.segment_bytes == 0 || bundle.segment_bytes >= payload;
        let segment_payload = if is_single { payload } else { bundle.segment_bytes };
        let segments = if is_single { 1 } else { payload.div_ceil(segment_payload) };
        Self { segments, header: bundle.header_bytes, payload, segment_payload }
    }

    /// Returns the number of segments that are no larger than `mtu`: all, only the last, or none.
    fn segments_up_to(self, mtu: Bytes) -> u32 {
        if self.bytes_of(0) <= mtu {
            self.segments
        } else {
            u32::from(self.bytes_of(self.segments - 1) <= mtu)
        }
    }

    /// Returns the IP bytes of one segment.
    fn bytes_of(self, index: u32) -> Bytes {
        let before = self.segment_payload * index;
        let payload = self.segment_payload.min(self.payload - before);
        Bytes::new(u64::from(self.header) + u64::from(payload))
    }
}
