//! Path MTU discovery with probes (RFC 8899): probes of one size are sent until one is answered or
//! three are lost.
//!
//! ICMP is not trusted, and no datagram is fragmented by IP. Each path has its own machine: it
//! begins with the size that every path takes, searches for the largest, and checks now and then
//! that it still arrives, as a path may change. Sizes are those of datagrams without UDP's and IP's
//! headers.

use tradewind_units::{Duration, Timestamp};

/// The size that every path takes. Source: RFC 8899, 5.1.2.
const BASE: usize = 1200;
/// The sizes for paths of Ethernet's MTU over IPv4, and for the jumbo frames of clouds and
/// networks.
const USUAL: usize = 1472;
const JUMBO: usize = 8_952;
/// The precision of the search.
const STEP: usize = 4;
/// Lost probes of one size after which it counts as too long. Source: RFC 8899, 5.1.2.
const TRIES: u32 = 3;
/// Round trips after which a probe counts as lost, within these bounds.
const ROUND_TRIPS: u32 = 3;
const MIN_WAIT: Duration = Duration::from_millis(300);
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Time between two checks that the longest size still arrives. Chosen: a path that has changed
/// loses long packets until then.
const CONFIRM_EVERY: Duration = Duration::from_secs(5);
/// Time until longer sizes are tried again. Source: RFC 8899, 5.1.1.
const RAISE_AFTER: Duration = Duration::from_secs(600);

/// The search on one path.
#[derive(Debug)]
pub struct PathMtu {
    /// The longest size that has arrived, or the base.
    fits: usize,
    /// The shortest size that has not arrived.
    too_long: Option<usize>,
    probe: Option<Probe>,
    /// Time before which no probe is sent.
    rest_until: Timestamp,
    raise_at: Timestamp,
    /// The result, once the search has ended.
    found: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    bytes: usize,
    sent: Timestamp,
    tries: u32,
}

impl PathMtu {
    /// Returns a search that begins.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let raise_at = now + RAISE_AFTER;
        Self { fits: BASE, too_long: None, probe: None, rest_until: now, raise_at, found: None }
    }

    /// Restarts the search when the path has changed. The previous result is reported until the
    /// search has ended.
    pub fn begin_again(&mut self, now: Timestamp) {
        *self = Self { found: self.found, ..Self::new(now) };
    }

    /// Returns the size of the probe to be sent now, if one is due. To be called only while the
    /// path answers otherwise: a dead path says nothing about sizes.
    pub fn poll(&mut self, now: Timestamp, round_trip: Duration) -> Option<usize> {
        let wait = (round_trip * ROUND_TRIPS).clamp(MIN_WAIT, MAX_WAIT);
        match self.probe {
            Some(probe) if now.since(probe.sent) < wait => return None,
            Some(probe) if probe.tries < TRIES => return self.send(now, probe.bytes, probe.tries),
            Some(probe) => self.fail(probe.bytes),
            None if now < self.rest_until => return None,
            None => {}
        }
        if now >= self.raise_at {
            (self.too_long, self.raise_at) = (None, now + RAISE_AFTER);
        }
        match self.next_size() {
            Some(bytes) => self.send(now, bytes, 0),
            None => {
                let was_found = self.found.replace(self.fits).is_some();
                let is_rested = now >= self.rest_until && was_found && self.fits > BASE;
                self.rest_until = now + CONFIRM_EVERY;
                if is_rested { self.send(now, self.fits, 0) } else { None }
            }
        }
    }

    /// Notes that a probe of this size has arrived.
    pub fn arrived(&mut self, bytes: usize) {
        if self.probe.take_if(|probe| probe.bytes == bytes).is_some() {
            self.fits = self.fits.max(bytes);
            self.too_long = self.too_long.filter(|limit| *limit > bytes);
        }
    }

    /// Returns the longest size that arrives, once it was found.
    #[must_use]
    pub fn longest(&self) -> Option<usize> {
        self.found
    }

    /// Returns the longest size that has arrived so far; before any has, the size that every path
    /// takes.
    #[must_use]
    pub fn proven(&self) -> usize {
        self.fits
    }

    /// Returns whether this size, or a shorter one, did not arrive. Once the search has ended with
    /// a size that did not arrive, any size beyond the longest found counts as too long as well:
    /// between the two there are no usual sizes.
    #[must_use]
    pub fn is_too_long(&self, bytes: usize) -> bool {
        let is_searched = self.next_size().is_none();
        let beyond = |limit| bytes >= limit || (is_searched && bytes >= self.fits + STEP);
        self.too_long.is_some_and(beyond)
    }

    fn send(&mut self, now: Timestamp, bytes: usize, tries: u32) -> Option<usize> {
        self.probe = Some(Probe { bytes, sent: now, tries: tries + 1 });
        Some(bytes)
    }

    /// Notes that no datagram of this size arrives. If it did before, the path has changed.
    fn fail(&mut self, bytes: usize) {
        self.probe = None;
        self.too_long = Some(bytes);
        if bytes <= self.fits {
            self.fits = BASE;
            self.found = self.found.map(|_| BASE);
        }
    }

    /// Returns the next size to try, while the result is not precise enough.
    fn next_size(&self) -> Option<usize> {
        match self.too_long {
            None => [USUAL, JUMBO].into_iter().find(|size| *size > self.fits),
            // There are no usual sizes between Ethernet's and jumbo frames.
            Some(limit) if self.fits >= USUAL || limit <= self.fits + STEP => None,
            Some(limit) => Some(self.fits.midpoint(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(50);
    const TICK: Duration = Duration::from_millis(50);

    /// Runs a path that takes `limit` for `span`; returns how many probes were sent.
    fn run(machine: &mut PathMtu, now: &mut Timestamp, limit: usize, span: Duration) -> usize {
        let (end, mut probes) = (*now + span, 0);
        while *now < end {
            if let Some(bytes) = machine.poll(*now, ROUND_TRIP) {
                probes += 1;
                if bytes <= limit {
                    machine.arrived(bytes);
                }
            }
            *now = *now + TICK;
        }
        probes
    }

    #[test]
    fn mtu_is_found_to_four_bytes() {
        for limit in (1200..=1480).chain([4_000, 8_952, 9_000]) {
            let mut now = Timestamp::ZERO;
            let mut machine = PathMtu::new(now);
            let probes = run(&mut machine, &mut now, limit, Duration::from_secs(15));
            let most = if limit < JUMBO { limit.min(USUAL) } else { JUMBO };
            let found = machine.longest().unwrap();
            assert!((most.saturating_sub(3)..=most).contains(&found), "{found} of {limit}");
            assert!(probes < 35, "{probes} probes for {limit}");
            assert!(!machine.is_too_long(found));
        }
    }

    #[test]
    fn smaller_mtu_is_noticed() {
        let mut now = Timestamp::ZERO;
        let mut machine = PathMtu::new(now);
        run(&mut machine, &mut now, 1472, Duration::from_secs(15));
        assert_eq!(machine.longest(), Some(1472));
        assert!(!machine.is_too_long(1472) && machine.is_too_long(8_952));
        assert!(machine.is_too_long(1500), "nothing is usual between Ethernet and jumbo frames");
        run(&mut machine, &mut now, 1300, Duration::from_secs(20));
        assert!((1297..=1300).contains(&machine.longest().unwrap()), "{machine:?}");
        assert!(machine.is_too_long(1304));
    }

    #[test]
    fn larger_mtu_is_found_within_ten_minutes() {
        let mut now = Timestamp::ZERO;
        let mut machine = PathMtu::new(now);
        run(&mut machine, &mut now, 1300, Duration::from_secs(15));
        let probes = run(&mut machine, &mut now, 1472, Duration::from_secs(500));
        assert!((1297..=1300).contains(&machine.longest().unwrap()), "{machine:?}");
        assert!((90..=110).contains(&probes), "{probes} probes");
        run(&mut machine, &mut now, 1472, Duration::from_secs(110));
        assert_eq!(machine.longest(), Some(1472));
    }

    #[test]
    fn changed_path_restarts_search() {
        let mut now = Timestamp::ZERO;
        let mut machine = PathMtu::new(now);
        run(&mut machine, &mut now, 1300, Duration::from_secs(15));
        machine.begin_again(now);
        assert!((1297..=1300).contains(&machine.longest().unwrap()), "it is told until then");
        assert!(!machine.is_too_long(1472) && machine.proven() == BASE);
        run(&mut machine, &mut now, 1472, Duration::from_secs(3));
        assert_eq!(machine.longest(), Some(1472));
    }

    #[test]
    fn unsolicited_answer_is_ignored() {
        let mut machine = PathMtu::new(Timestamp::ZERO);
        machine.arrived(8_952);
        assert_eq!(machine.poll(Timestamp::ZERO, ROUND_TRIP), Some(1472));
        machine.arrived(1471);
        assert_eq!(machine.poll(Timestamp::ZERO, ROUND_TRIP), None);
        assert_eq!(machine.longest(), None);
    }
}
