//! Packets and handshakes by the path that carried them, and those that it lost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{Ratio, SiteId};

use crate::packet_flow::{DayPackets, PacketCounts};

/// The least packets that tell what a path loses. Chosen: one loss in a thousand is seen ten times.
const MIN_PACKETS: u64 = 10_000;
/// The service whose packets all go over relays, as gateways name it.
const FORWARDING: &str = "forwarding";
/// Services whose packets go over the Internet, with or without copies over relays. `direct` is
/// counted where the gateway selects it beside relays.
const OVER_INTERNET: [&str; 3] = ["direct", "caching", "coding"];

/// Packets that were sent over one path, and those that it lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathPackets {
    /// Packets that should have come.
    pub expected: u64,
    /// Those that the path lost, recovered or not.
    pub lost: u64,
}

impl PathPackets {
    const fn of(counts: &PacketCounts) -> Self {
        Self { expected: counts.expected, lost: counts.lost_by_internet }
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            expected: self.expected.saturating_add(other.expected),
            lost: self.lost.saturating_add(other.lost),
        }
    }

    /// Returns the share that was lost, if enough packets tell it.
    pub(crate) fn loss(self) -> Option<Ratio> {
        let share = self.lost as f64 / self.expected.max(1) as f64;
        (self.expected >= MIN_PACKETS).then(|| Ratio::new(share).ok()).flatten()
    }
}

/// The packets of a flow by path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ByPath {
    /// Those that were sent over the Internet.
    pub internet: PathPackets,
    /// Those that relays forwarded.
    pub relays: PathPackets,
}

impl ByPath {
    /// Adds new packets to those of the path that carried them. Where the service has changed since
    /// `before`, they are of both.
    pub(crate) fn add(&mut self, counts: &PacketCounts, service: &str, before: Option<&str>) {
        if before.is_some_and(|before| before != service) {
            return;
        }
        let path = match service {
            FORWARDING => &mut self.relays,
            service if OVER_INTERNET.contains(&service) => &mut self.internet,
            _ => return,
        };
        *path = path.plus(PathPackets::of(counts));
    }

    /// Returns those of a day. One that an older program has added up counts by its last service,
    /// and only if the Internet has lost some: relays may have forwarded the others.
    pub(crate) fn of_day(day: &DayPackets) -> Self {
        day.by_path.unwrap_or_else(|| {
            let mut all = Self::default();
            if day.counts.lost_by_internet > 0 {
                all.add(&day.counts, &day.service, None);
            }
            all
        })
    }
}

/// Handshakes of probes between the sites of packet flows, of today and the day before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshakes {
    /// The site whose gateway probes.
    pub source: SiteId,
    /// The site that it probes.
    pub destination: SiteId,
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// Those of that day; lost is one whose first packet, or the answer, did not come.
    pub today: PathPackets,
    /// Those of the day before.
    pub yesterday: PathPackets,
}

impl Handshakes {
    /// Returns the days' sums as of `day`.
    pub(crate) fn on(self, day: u64) -> Self {
        let nothing = PathPackets::default();
        let (today, yesterday) = match day.checked_sub(self.day) {
            Some(0) => (self.today, self.yesterday),
            Some(1) => (nothing, self.today),
            _ => (nothing, nothing),
        };
        Self { day, today, yesterday, ..self }
    }

    /// Returns the share of handshakes that fail: the most that the path loses one way.
    pub(crate) fn loss(&self) -> Option<Ratio> {
        self.today.plus(self.yesterday).loss()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_of_an_older_program_tells_the_internets_loss_only_if_some_was_lost() {
        let day = |service: &str, lost_by_internet: u64| {
            let counts =
                PacketCounts { expected: 50_000, lost_by_internet, ..PacketCounts::default() };
            let flow = "call".parse().unwrap();
            let (service, why) = (service.to_owned(), String::new());
            ByPath::of_day(&DayPackets { flow, day: 1, service, why, counts, by_path: None })
        };
        // Its packets may have been forwarded for most of the day.
        assert_eq!(day("direct", 0), ByPath::default());
        let lost = PathPackets { expected: 50_000, lost: 500 };
        assert_eq!(day("caching", 500), ByPath { internet: lost, ..ByPath::default() });
        assert_eq!(day("forwarding", 500), ByPath { relays: lost, ..ByPath::default() });
    }
}
