//! Losses and recoveries, by the length of the burst and the place of the loss.

use tradewind_packet::event::Arrival;
use tradewind_units::Duration;

use super::paths::Path;
use super::world::Fate;

/// Lengths of bursts in packets, as the paper classes them [JQ 5.2]: random, multi-packet, outage.
pub(crate) const CLASSES: [(&str, usize, usize); 3] =
    [("1 packet", 1, 1), ("2 to 14 packets", 2, 14), ("over 14 packets", 15, usize::MAX)];

/// One packet that the Internet lost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    /// Index of its class in [`CLASSES`].
    pub(crate) class: usize,
    /// True if its copy was lost, too: both pass the sender's access path.
    pub(crate) on_access: bool,
    /// Time of its recovery after it was due, over the path's round trip.
    pub(crate) after: Option<f64>,
    /// The same in time.
    pub(crate) took: Duration,
    /// The means of its recovery, where known.
    pub(crate) arrival: Option<Arrival>,
    /// Its path.
    pub(crate) path: usize,
    /// Its index among the packets of its path and span.
    pub(crate) place: usize,
    /// Its burst's index among all bursts.
    pub(crate) burst: usize,
}

impl Loss {
    /// Returns whether it was recovered: within a round trip of the Internet path [JQ 5.2].
    pub(crate) fn is_recovered(&self) -> bool {
        self.after.is_some_and(|round_trips| round_trips <= 1.0)
    }
}

/// Returns all losses of paths with these fates of their packets.
pub(crate) fn losses(paths: &[(Path, Vec<Fate>)]) -> Vec<Loss> {
    let mut all = Vec::new();
    gather(paths, &mut all);
    all
}

/// Adds the losses of another span to `all`.
pub(super) fn gather(paths: &[(Path, Vec<Fate>)], all: &mut Vec<Loss>) {
    let mut bursts = all.last().map_or(0, |loss| loss.burst + 1);
    for (index, (path, fates)) in paths.iter().enumerate() {
        let mut burst: Vec<(usize, &Fate)> = Vec::new();
        let mut end = |burst: &mut Vec<(usize, &Fate)>| {
            let length = burst.len();
            let class =
                CLASSES.iter().position(|(_, least, most)| (*least..=*most).contains(&length));
            let Some(class) = class else { return };
            for (place, fate) in burst.drain(..) {
                let due = fate.sent + path.internet;
                let took = fate.back.map_or(Duration::ZERO, |at| at.since(due));
                let round_trips = took.as_secs_f64() / (2.0 * path.internet.as_secs_f64());
                let after = fate.back.map(|_| round_trips);
                let (on_access, arrival) = (!fate.copied, fate.arrival);
                let (path, burst) = (index, bursts);
                all.push(Loss { class, on_access, after, took, arrival, path, place, burst });
            }
            bursts += 1;
        };
        for (place, fate) in fates.iter().enumerate() {
            if fate.came {
                end(&mut burst);
            } else {
                burst.push((place, fate));
            }
        }
        end(&mut burst);
    }
}

/// Returns the share of `losses` that are recovered, in per cent; `None` without any.
pub(crate) fn recovered<'a>(losses: impl Iterator<Item = &'a Loss>) -> Option<f64> {
    share(losses.map(Loss::is_recovered))
}

/// Returns the share of true values, in per cent; `None` of none.
pub(crate) fn share(values: impl Iterator<Item = bool>) -> Option<f64> {
    let (holds, all) =
        values.fold((0_u64, 0_u64), |(holds, all), value| (holds + u64::from(value), all + 1));
    (all > 0).then(|| 100.0 * holds as f64 / all as f64)
}
