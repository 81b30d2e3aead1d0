//! Windows that the hosts of one site share, where jump-start says so: each host is told what the
//! others of its site have learned from connections of their own.
//!
//! Of a destination that several know it is their mean, as the paper combines connections of one
//! host `[RT III-B]`. Each host counts once, whatever it reports: one that invents windows moves
//! the mean by its own share, within `window_max`, and takes no more places of the list than each
//! other host.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::learner::{HostLearners, MAX_DESTINATIONS, SharedWindow};
use crate::message::LEARNS;
use crate::record::Host;
use crate::settings::JumpstartSettings;
use crate::state::{SEEN_WITHIN, State};

/// Most hosts whose windows one host is told. Chosen: a report then takes some 3,000 windows in,
/// and each host has three of the hundred places.
const MAX_HOSTS: usize = 32;

/// The windows that hosts have of one destination.
#[derive(Debug, Default)]
struct Combined {
    /// The best place that it has among the destinations of a host.
    rank: usize,
    hosts: u32,
    sum: f64,
}

/// Returns the windows of the other hosts of a host's site, first those that are first on any of
/// them. None are of hosts that are revoked, not heard, or not covered by the settings.
pub(crate) fn windows(state: &State, now: u64, host: &Host) -> Vec<SharedWindow> {
    let settings = &state.settings.jumpstart;
    let site = host.role.site();
    if !settings.is_shared || host.config_version < LEARNS || !settings.covers(&host.id, &site) {
        return Vec::new();
    }
    let others = state.index.hosts_of(&site).filter(|other| {
        let is_trusted = state.hosts.get(other).is_some_and(|other| other.is_trusted);
        let is_there = is_trusted && state.was_seen(other, now, SEEN_WITHIN);
        **other != host.id && is_there && settings.covers(other, &site)
    });
    let mut known: BTreeMap<IpNet, Combined> = BTreeMap::new();
    for other in others.filter_map(|other| state.learners.get(other)).take(MAX_HOSTS) {
        for (rank, (destination, window)) in learned(settings, other).into_iter().enumerate() {
            let combined =
                known.entry(destination).or_insert(Combined { rank, ..Combined::default() });
            combined.rank = combined.rank.min(rank);
            combined.hosts += 1;
            combined.sum += window;
        }
    }
    let mut known: Vec<_> = known.into_iter().collect();
    known.sort_by_key(|(destination, combined)| (combined.rank, *destination));
    known.truncate(MAX_DESTINATIONS);
    let mean = |(destination, Combined { hosts, sum, .. }): (IpNet, Combined)| SharedWindow {
        destination,
        window_segments: (sum / f64::from(hosts)).round() as u32,
    };
    known.into_iter().map(mean).collect()
}

/// Returns the windows that a host has learned from connections of its own, one for each
/// destination, those with most connections first. Learners that set none, such as by a kill switch
/// of their host, count for none.
fn learned(settings: &JumpstartSettings, host: &HostLearners) -> Vec<(IpNet, f64)> {
    let most = settings.window_max.as_u32();
    let mut sums: BTreeMap<IpNet, (u64, f64)> = BTreeMap::new();
    let acting = host.learners.iter().filter(|learner| learner.why.is_none());
    for window in acting.flat_map(|learner| &learner.destinations).filter(|it| it.samples > 0) {
        let (samples, sum) = sums.entry(window.destination).or_default();
        *samples += u64::from(window.samples);
        *sum += f64::from(window.window_segments.clamp(1, most)) * f64::from(window.samples);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(destination, (samples, _))| (Reverse(*samples), *destination));
    sums.truncate(MAX_DESTINATIONS);
    sums.into_iter()
        .map(|(destination, (samples, sum))| (destination, sum / samples as f64))
        .collect()
}

#[cfg(test)]
mod tests {
    use tradewind_units::Segments;

    use super::*;
    use crate::event::{Event, JumpstartRequest, SettingsRequest};
    use crate::learner::{LearnedWindow, LearnerReport};
    use crate::message::Report;
    use crate::testing::{Bench, gateway, host, identity};

    /// Returns a learner with windows, each with so many connections.
    fn learner(windows: &[(&str, u32, u32)]) -> LearnerReport {
        let learned = |(destination, window_segments, samples): &(&str, u32, u32)| LearnedWindow {
            destination: destination.parse().unwrap(),
            window_segments: *window_segments,
            samples: *samples,
            is_in_force: true,
        };
        LearnerReport {
            process: "gateway".to_owned(),
            run: 1,
            through: "sockops".to_owned(),
            why: None,
            destinations: windows.iter().map(learned).collect(),
            others: 0,
            windows: Vec::new(),
            tallies: Vec::new(),
        }
    }

    fn learns(bench: &mut Bench, number: u8, windows: &[(&str, u32, u32)]) {
        let learners = vec![learner(windows)];
        bench.report_with(number, |it: &mut Report| it.learners = learners);
    }

    /// Returns what a host is told.
    fn told(bench: &Bench, number: u8) -> Vec<(String, u32)> {
        let host = bench.state().host_of(&identity(number)).unwrap();
        let shared = windows(bench.state(), bench.now, host);
        shared.iter().map(|it| (it.destination.to_string(), it.window_segments)).collect()
    }

    fn all(windows: &[(&str, u32)]) -> Vec<(String, u32)> {
        windows.iter().map(|(destination, window)| ((*destination).to_owned(), *window)).collect()
    }

    fn set(bench: &mut Bench, change: impl FnOnce(&mut JumpstartRequest)) {
        let mut request = JumpstartRequest { is_on: Some(true), ..JumpstartRequest::default() };
        change(&mut request);
        bench.event(Event::ChangeSettings(SettingsRequest::jumpstart(request)));
    }

    /// Returns three gateways of one site and one of another, all of which share windows.
    fn sharing() -> Bench {
        let mut bench = Bench::new();
        for (number, site) in (1..).zip(["office", "office", "office", "plant"]) {
            bench.join(number, gateway(site));
        }
        set(&mut bench, |request| request.is_shared = Some(true));
        bench
    }

    #[test]
    fn hosts_of_a_site_are_told_the_mean_of_the_others() {
        let mut bench = sharing();
        learns(&mut bench, 1, &[("10.0.0.1/32", 40, 1), ("10.0.0.2/32", 90, 9)]);
        learns(&mut bench, 2, &[("10.0.0.1/32", 81, 3), ("10.0.0.3/32", 50, 0)]);
        learns(&mut bench, 3, &[]);
        learns(&mut bench, 4, &[("10.0.0.1/32", 10, 100)]);
        // What was only shared with the second host is none of its own.
        let both = all(&[("10.0.0.1/32", 61), ("10.0.0.2/32", 90)]);
        assert_eq!(told(&bench, 3), both);
        assert_eq!(told(&bench, 1), all(&[("10.0.0.1/32", 81)]));
        assert!(told(&bench, 4).is_empty());
        set(&mut bench, |request| request.window_max = Segments::new(60).ok());
        assert_eq!(told(&bench, 1), all(&[("10.0.0.1/32", 60)]));
        set(&mut bench, |request| request.is_shared = Some(false));
        assert!(told(&bench, 3).is_empty());
    }

    #[test]
    fn sharing_is_off_by_default_and_ends_with_jump_start() {
        let mut bench = Bench::new();
        bench.join(1, gateway("office"));
        bench.join(2, gateway("office"));
        set(&mut bench, |_| ());
        learns(&mut bench, 1, &[("10.0.0.1/32", 40, 1)]);
        assert!(told(&bench, 2).is_empty());
        set(&mut bench, |request| request.is_shared = Some(true));
        assert_eq!(told(&bench, 2).len(), 1);
        // It is kept where only the hosts change; those that are left out tell and are told none.
        set(&mut bench, |request| request.hosts = Some([host("office-2")].into()));
        assert!(told(&bench, 2).is_empty());
        set(&mut bench, |request| request.hosts = Some([host("office-1")].into()));
        assert!(told(&bench, 2).is_empty());
        set(&mut bench, |request| request.hosts = Some([].into()));
        assert_eq!(told(&bench, 2).len(), 1);
        set(&mut bench, |request| request.is_on = Some(false));
        assert!(told(&bench, 2).is_empty());
    }

    #[test]
    fn hosts_that_are_revoked_silent_or_switched_off_share_nothing() {
        let mut bench = sharing();
        learns(&mut bench, 1, &[("10.0.0.1/32", 40, 1)]);
        learns(&mut bench, 2, &[("10.0.0.2/32", 50, 1)]);
        let both = all(&[("10.0.0.1/32", 40), ("10.0.0.2/32", 50)]);
        assert_eq!(told(&bench, 3), both);
        bench.now += SEEN_WITHIN.as_millis() as u64 - 1;
        assert_eq!(told(&bench, 3), both);
        bench.report_with(2, |it: &mut Report| {
            it.learners = vec![learner(&[("10.0.0.2/32", 50, 1)])]
        });
        bench.now += 1;
        assert_eq!(told(&bench, 3), all(&[("10.0.0.2/32", 50)]));
        learns(&mut bench, 1, &[("10.0.0.1/32", 40, 1)]);
        bench.event(Event::Revoke(host("office-2")));
        assert_eq!(told(&bench, 3), all(&[("10.0.0.1/32", 40)]));
        let off =
            LearnerReport { why: Some("off".to_owned()), ..learner(&[("10.0.0.1/32", 40, 1)]) };
        bench.report_with(1, |it: &mut Report| it.learners = vec![off]);
        assert!(told(&bench, 3).is_empty());
    }

    #[test]
    fn hostile_host_moves_the_mean_by_its_share_and_takes_its_share_of_places() {
        let mut bench = sharing();
        let names = |third: u8| (0..120).map(move |last| format!("10.0.{third}.{last}/32"));
        let honest: Vec<_> = names(9).collect();
        let windows: Vec<_> = honest.iter().map(|name| (name.as_str(), 20, 1)).collect();
        learns(&mut bench, 1, &windows);
        // Four learners, each with as many destinations as it likes, the largest windows, and more
        // connections than anybody; one destination is the other host's, named again and again.
        let invented: Vec<_> = (0..4).flat_map(names).collect();
        let mine = ("10.0.9.0/32", u32::MAX, u32::MAX);
        let invented: Vec<_> =
            invented.iter().map(|name| (name.as_str(), u32::MAX, u32::MAX)).collect();
        let learners =
            invented.chunks(120).map(|of_one| learner(&[&[mine, mine][..], of_one].concat()));
        let learners: Vec<_> = learners.collect();
        bench.report_with(2, |it: &mut Report| it.learners = learners);
        let told = told(&bench, 3);
        assert_eq!(told.len(), MAX_DESTINATIONS);
        let of_honest = told.iter().filter(|(name, _)| name.starts_with("10.0.9."));
        assert!((49..=51).contains(&of_honest.count()), "{told:?}");
        let window = |name: &str| told.iter().find(|(other, _)| other == name).map(|it| it.1);
        assert_eq!(window("10.0.9.0/32"), Some(60), "(20 + 100) / 2");
        assert_eq!(window("10.0.9.1/32"), Some(20));
        assert_eq!(told.iter().map(|it| it.1).max(), Some(100));
    }

    #[test]
    fn older_agent_is_told_nothing() {
        let mut bench = sharing();
        learns(&mut bench, 1, &[("10.0.0.1/32", 40, 1)]);
        bench.report_with(3, |report| report.config_version = LEARNS - 1);
        assert!(told(&bench, 3).is_empty());
        assert_eq!(told(&bench, 2).len(), 1);
    }
}
