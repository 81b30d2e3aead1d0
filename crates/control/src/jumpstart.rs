//! Jump-start over the hosts of the overlay: which of them learn initial windows, what they have
//! learned, and what that gains.
//!
//! The settings reach hosts by their documents, so that turning it off does as well: a process
//! without the section starts no learner, and what one has set in the kernel goes with it.
//!
//! Connections that started with a learned window are compared with those of the control arm within
//! size classes, in the same way as [`gain`](crate::gain) compares sessions.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use tradewind_units::{HostId, SiteId, Timestamp};

use crate::draft::{DAY_MS, unix_ms};
use crate::event::{JumpstartRequest, Refusal};
use crate::gain::{Compared, Estimate, MIN_SESSIONS, Sample, speedup};
use crate::learner::{JumpArm, JumpTally, LearnedWindow, LearnerReport, WindowCount};
use crate::message::{LEARNS, learner_socket};
use crate::record::{Host, Role};
use crate::settings::{JumpstartSettings, Settings};
use crate::state::State;

/// The greatest control share. Chosen: as of sessions.
const MAX_CONTROL: f64 = 0.5;
/// The windows that `window_max` may have: from the learner's least one on, to its largest.
const WINDOWS: std::ops::RangeInclusive<u32> = 10..=65_535;

/// Returns the settings with what a request changes.
///
/// # Errors
/// When it names a host or site that there is none of, or figures out of their range.
pub(crate) fn changed(
    state: &State,
    request: &JumpstartRequest,
) -> Result<JumpstartSettings, Refusal> {
    let JumpstartRequest { is_on, hosts, sites, control_share, window_max, .. } = request;
    let trusted = || state.hosts.values().filter(|host| host.is_trusted);
    let names: BTreeSet<&HostId> = trusted().map(|host| &host.id).collect();
    if let Some(host) = hosts.iter().flatten().find(|host| !names.contains(host)) {
        return Err(Refusal::NotFound(format!("no host `{host}`")));
    }
    let places: BTreeSet<SiteId> = trusted().map(|host| host.role.site()).collect();
    if let Some(site) = sites.iter().flatten().find(|site| !places.contains(site)) {
        return Err(Refusal::NotFound(format!("no host at site or region `{site}`")));
    }
    let invalid = |problem: String| Err(Refusal::Invalid(problem));
    if control_share.is_some_and(|share| share.as_f64() > MAX_CONTROL) {
        return invalid("jump-start's control arm is at most half of all connections".to_owned());
    }
    if let Some(window) = window_max.filter(|window| !WINDOWS.contains(&window.as_u32())) {
        let (least, most) = (WINDOWS.start(), WINDOWS.end());
        let window = window.as_u32();
        return invalid(format!("initial windows are {least} to {most} segments, not {window}"));
    }
    let known = &state.settings.jumpstart;
    Ok(JumpstartSettings {
        is_on: is_on.unwrap_or(known.is_on),
        hosts: hosts.clone().unwrap_or_else(|| known.hosts.clone()),
        sites: sites.clone().unwrap_or_else(|| known.sites.clone()),
        control_share: control_share.unwrap_or(known.control_share),
        window_max: window_max.unwrap_or(known.window_max),
        has_probes: request.has_probes.unwrap_or(known.has_probes),
        is_shared: request.is_shared.unwrap_or(known.is_shared),
    })
}

/// Returns the section `[jumpstart]` of a host's process; `None` if it is not to learn, or its
/// agent is older and would not tell what was learned.
pub(crate) fn section(settings: &Settings, host: &Host, process: &str) -> Option<Table> {
    let settings = &settings.jumpstart;
    let is_able = host.config_version >= LEARNS;
    (is_able && settings.covers(&host.id, &host.role.site())).then(|| {
        let mut learn = Table::new();
        let share = Value::Float(settings.control_share.as_f64());
        learn.insert("control_share".to_owned(), share);
        learn.insert("c_max".to_owned(), i64::from(settings.window_max.as_u32()).into());
        let mut section = Table::new();
        section.insert("socket".to_owned(), learner_socket(process).into());
        section.insert("learn".to_owned(), Value::Table(learn));
        section
    })
}

/// Jump-start on one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostJumpstart {
    /// The host.
    pub host: HostId,
    /// True if the settings cover it.
    pub is_covered: bool,
    /// True if it starts connections with learned windows now.
    pub is_acting: bool,
    /// The reason why it does not although it should, in one line.
    pub why_not: Option<String>,
    /// The destinations with most samples.
    pub destinations: Vec<LearnedWindow>,
    /// Destinations that are left out above.
    pub others: u64,
    /// The windows of all destinations, as a histogram.
    pub windows: Vec<WindowCount>,
    /// The comparison of both arms over the days that were asked for.
    #[serde(flatten)]
    pub arms: ArmsView,
}

/// Connections that started with a learned window, compared with those of the control arm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArmsView {
    /// Connections that started with a learned window, and ended.
    pub jumped_connections: u64,
    /// Connections of the control arm that ended.
    pub control_connections: u64,
    /// Segments sent again by each megabyte of the former.
    pub jumped_resent_per_mb: Option<f64>,
    /// The same of the control arm.
    pub control_resent_per_mb: Option<f64>,
    /// Completion time of the control arm by that with learned windows, over size classes with
    /// both; absent: too few.
    pub speedup: Option<Estimate>,
}

/// Returns jump-start on all hosts that the settings cover, or that still report a learner, with
/// both arms over the last `days`, today included; and both arms of all hosts together.
#[must_use]
pub fn hosts(state: &State, now: Timestamp, days: u64) -> (Vec<HostJumpstart>, ArmsView) {
    let first = (unix_ms(now) / DAY_MS + 1).saturating_sub(days);
    let mut all = Vec::new();
    let mut hosts = Vec::new();
    for host in state.hosts.values().filter(|host| host.is_trusted) {
        let of_host = state.jumps.get(&host.id).into_iter().flat_map(|days| days.range(first..));
        let tallies: Vec<JumpTally> = of_host.flat_map(|(_, day)| day.tallies.clone()).collect();
        let learners = state.learners.get(&host.id).map_or(&[][..], |known| &known.learners);
        let is_covered = state.settings.jumpstart.covers(&host.id, &host.role.site());
        if is_covered || !learners.is_empty() || !tallies.is_empty() {
            hosts.push(of_host_view(state, host, (is_covered, learners), &tallies));
            all.extend(tallies);
        }
    }
    (hosts, compare(&all))
}

fn of_host_view(
    state: &State,
    host: &Host,
    (is_covered, learners): (bool, &[LearnerReport]),
    tallies: &[JumpTally],
) -> HostJumpstart {
    let is_acting = learners.iter().any(|learner| learner.why.is_none());
    let mut windows: BTreeMap<u32, u64> = BTreeMap::new();
    for WindowCount { from_segments, destinations } in
        learners.iter().flat_map(|learner| &learner.windows)
    {
        let sum = windows.entry(*from_segments).or_default();
        *sum = sum.saturating_add(*destinations);
    }
    let class = |(from_segments, destinations)| WindowCount { from_segments, destinations };
    HostJumpstart {
        host: host.id.clone(),
        is_covered,
        is_acting,
        why_not: (is_covered && !is_acting).then(|| why_not(state, host, learners)),
        destinations: learners.iter().flat_map(|it| it.destinations.clone()).collect(),
        others: learners.iter().map(|it| it.others).fold(0, u64::saturating_add),
        windows: windows.into_iter().map(class).collect(),
        arms: compare(tallies),
    }
}

/// Returns why a host sets no windows although it should.
fn why_not(state: &State, host: &Host, learners: &[LearnerReport]) -> String {
    let seen = state.seen.get(&host.id);
    if host.config_version < LEARNS {
        let version = seen.map_or("an older version", |seen| seen.agent_version.as_str());
        return format!("its agent is older (tradewind {version}): upgrade it");
    }
    if let Some(why) = learners.iter().find_map(|learner| learner.why.clone()) {
        return why;
    }
    if let Some(refused) = seen.and_then(|seen| seen.refused.as_ref()) {
        return format!("it refuses its document: {}", refused.reason);
    }
    let document = state.documents.get(&host.id);
    if document.is_some_and(|document| !document.processes.is_empty()) {
        return "it has not reported a learner yet".to_owned();
    }
    match host.role {
        Role::Relay { .. } => "no plan has a relay run on it".to_owned(),
        Role::Gateway { .. } => "its site has no flow".to_owned(),
        Role::Probe { .. } => "it runs neither a relay nor a gateway".to_owned(),
    }
}

/// Compares both arms.
fn compare(tallies: &[JumpTally]) -> ArmsView {
    let mut sums: BTreeMap<(JumpArm, u8), JumpTally> = BTreeMap::new();
    for tally in tallies {
        sums.entry(tally.key()).and_modify(|sum| sum.add(tally)).or_insert(*tally);
    }
    let of = |arm| sums.range((arm, 0)..=(arm, u8::MAX)).map(|(_, tally)| tally);
    let connections = |arm| of(arm).map(|tally| tally.connections).fold(0, u64::saturating_add);
    let resent_per_mb = |arm| {
        let bytes: f64 = of(arm).map(|tally| tally.bytes as f64).sum();
        let resent: f64 = of(arm).map(|tally| tally.retransmitted_segments as f64).sum();
        (bytes > 0.0).then(|| resent / (bytes / 1e6))
    };
    let compared = |jumped: &JumpTally| {
        let control = sums.get(&(JumpArm::Control, jumped.size_class))?;
        let has_enough = |tally: &JumpTally| tally.connections >= MIN_SESSIONS;
        (has_enough(jumped) && has_enough(control))
            .then(|| Compared::new(jumped.size_class, &sample(jumped), &sample(control)))
    };
    let classes: Vec<Compared> = of(JumpArm::Jumped).filter_map(compared).collect();
    ArmsView {
        jumped_connections: connections(JumpArm::Jumped),
        control_connections: connections(JumpArm::Control),
        jumped_resent_per_mb: resent_per_mb(JumpArm::Jumped),
        control_resent_per_mb: resent_per_mb(JumpArm::Control),
        speedup: speedup(&classes),
    }
}

fn sample(tally: &JumpTally) -> Sample {
    let JumpTally { connections, bytes, seconds, log_seconds, log_seconds_squared, .. } = *tally;
    Sample { sessions: connections, up: bytes, down: 0, seconds, log_seconds, log_seconds_squared }
}

#[cfg(test)]
mod tests {
    use tradewind_config::{GatewayConfig, JumpstartConfig, RelayConfig};
    use tradewind_units::{Ratio, Segments};

    use super::*;
    use crate::event::{Event, SettingsRequest};
    use crate::message::CONFIG_VERSION;
    use crate::testing::{Bench, PATH, host};

    fn set(request: JumpstartRequest) -> Event {
        Event::ChangeSettings(SettingsRequest::jumpstart(request))
    }

    fn on() -> JumpstartRequest {
        JumpstartRequest { is_on: Some(true), ..JumpstartRequest::default() }
    }

    fn off() -> JumpstartRequest {
        JumpstartRequest { is_on: Some(false), ..JumpstartRequest::default() }
    }

    /// Returns the learner that a host's document asks for.
    fn learner(bench: &Bench, id: &str) -> Option<JumpstartConfig> {
        let config = bench.config(id).unwrap();
        match id {
            "office-1" => GatewayConfig::parse(&config).unwrap().jumpstart,
            _ => RelayConfig::parse(&config).unwrap().jumpstart,
        }
    }

    fn who_learns(bench: &Bench) -> Vec<&'static str> {
        let all = ["office-1", PATH[0], PATH[1]];
        all.into_iter().filter(|id| learner(bench, id).is_some()).collect()
    }

    #[test]
    fn settings_reach_the_hosts_that_they_cover() {
        let mut bench = Bench::in_service();
        assert!(who_learns(&bench).is_empty(), "off by default");
        let before = bench.state().documents[&host("office-1")].clone();
        bench.event(set(JumpstartRequest {
            control_share: Some(Ratio::new(0.1).unwrap()),
            window_max: Some(Segments::new(80).unwrap()),
            ..on()
        }));
        assert_eq!(who_learns(&bench), ["office-1", PATH[0], PATH[1]]);
        let config = learner(&bench, "office-1").unwrap();
        assert_eq!(config.learn.control_share.unwrap().as_f64(), 0.1);
        assert_eq!(config.learn.c_max.unwrap().as_u32(), 80);
        assert_eq!(config.socket.unwrap().to_str(), Some("learners/gateway.sock"));
        // Figures stay where only the hosts change.
        let sites = Some([SiteId::new("gcp:asia-east1").unwrap()].into());
        bench.event(set(JumpstartRequest { sites, ..on() }));
        assert_eq!(who_learns(&bench), [PATH[1]]);
        assert_eq!(learner(&bench, PATH[1]).unwrap().learn.c_max.unwrap().as_u32(), 80);
        let hosts = Some([host("office-1")].into());
        bench.event(set(JumpstartRequest { hosts, ..on() }));
        assert_eq!(who_learns(&bench), ["office-1", PATH[1]]);
        // The kill switch leaves documents as they were.
        bench.event(set(off()));
        assert!(who_learns(&bench).is_empty());
        let after = &bench.state().documents[&host("office-1")];
        assert_eq!(after.processes, before.processes);
        assert!(after.version > before.version);
        let last = bench.state().audit.values().next_back().unwrap();
        assert_eq!(last.action, "jump-start is off: all hosts start connections by default");
    }

    #[test]
    fn older_agent_is_left_out_and_named() {
        let mut bench = Bench::in_service();
        bench.event(set(on()));
        bench.report_with(1, |report| {
            report.config_version = LEARNS - 1;
            report.agent_version = "0.0.9".to_owned();
        });
        bench.now += 1000;
        bench.event(Event::Tick);
        bench.event(set(on()));
        assert_eq!(who_learns(&bench), [PATH[0], PATH[1]]);
        let (hosts, _) = hosts(bench.state(), bench.time(), 1);
        let gateway = hosts.iter().find(|it| it.host == host("office-1")).unwrap();
        let expected = "its agent is older (tradewind 0.0.9): upgrade it";
        assert_eq!(gateway.why_not.as_deref(), Some(expected));
        bench.report_with(1, |report| report.config_version = CONFIG_VERSION);
        bench.event(set(on()));
        assert_eq!(who_learns(&bench).len(), 3);
    }

    #[test]
    fn names_and_figures_out_of_range_are_refused() {
        let mut bench = Bench::in_service();
        let share = |share| Some(Ratio::new(share).unwrap());
        let window = |window| Some(Segments::new(window).unwrap());
        let elsewhere = Some([SiteId::new("gcp:us-east1").unwrap()].into());
        for wrong in [
            JumpstartRequest { hosts: Some([host("office-2")].into()), ..on() },
            JumpstartRequest { sites: elsewhere, ..on() },
            JumpstartRequest { control_share: share(0.51), ..on() },
            JumpstartRequest { window_max: window(9), ..on() },
            JumpstartRequest { window_max: window(65_536), ..on() },
        ] {
            bench.refusal(set(wrong));
            assert_eq!(bench.state().settings.jumpstart, JumpstartSettings::default());
        }
    }

    /// Returns a host's learner after 6 connections of one size in each arm, of which those of the
    /// control arm take twice as long.
    fn report(why: Option<&str>) -> LearnerReport {
        let tally = |arm, seconds: &[f64]| {
            let logs = || seconds.iter().map(|seconds| seconds.ln());
            JumpTally {
                arm,
                size_class: 20,
                connections: seconds.len() as u64,
                bytes: 1_500_000 * seconds.len() as u64,
                retransmitted_segments: 9,
                seconds: seconds.iter().sum(),
                log_seconds: logs().sum(),
                log_seconds_squared: logs().map(|log| log * log).sum(),
            }
        };
        let seconds = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95];
        LearnerReport {
            process: "gateway".to_owned(),
            run: 7,
            through: "sockops".to_owned(),
            why: why.map(str::to_owned),
            destinations: vec![LearnedWindow {
                destination: "198.51.100.7/32".parse().unwrap(),
                window_segments: 64,
                samples: 3,
                is_in_force: true,
            }],
            others: 2,
            windows: vec![WindowCount { from_segments: 60, destinations: 3 }],
            tallies: vec![
                tally(JumpArm::Jumped, &seconds),
                tally(JumpArm::Control, &seconds.map(|seconds| 2.0 * seconds)),
            ],
        }
    }

    #[test]
    fn view_has_windows_and_both_arms_with_their_interval() {
        let mut bench = Bench::in_service();
        bench.event(set(on()));
        bench.report_with(1, |it| it.learners = vec![report(None)]);
        let (hosts, all) = hosts(bench.state(), bench.time(), 1);
        assert_eq!(hosts.len(), 3);
        let gateway = hosts.iter().find(|it| it.host == host("office-1")).unwrap();
        assert!(gateway.is_acting && gateway.is_covered && gateway.why_not.is_none());
        assert_eq!((gateway.destinations.len(), gateway.others), (1, 2));
        assert_eq!(gateway.windows[0].destinations, 3);
        assert_eq!((gateway.arms.jumped_connections, gateway.arms.control_connections), (6, 6));
        assert_eq!(gateway.arms.jumped_resent_per_mb, Some(1.0));
        let speedup = gateway.arms.speedup.unwrap();
        assert!((speedup.value - 2.0).abs() < 1e-9, "{speedup:?}");
        assert!(speedup.low > 1.8 && speedup.high < 2.3, "{speedup:?}");
        assert_eq!(all, gateway.arms);
        let relay = hosts.iter().find(|it| it.host == host(PATH[0])).unwrap();
        assert_eq!(relay.why_not.as_deref(), Some("it has not reported a learner yet"));
        assert_eq!(relay.arms.speedup, None);
    }

    #[test]
    fn speedup_that_is_no_number_is_left_out() {
        let of = |log: f64| {
            let far = |tally: &JumpTally| JumpTally {
                log_seconds: if tally.arm == JumpArm::Control { log } else { 0.0 },
                log_seconds_squared: log * log,
                ..*tally
            };
            compare(&report(None).tallies.iter().map(far).collect::<Vec<_>>())
        };
        // The value is finite, the interval's upper end is not.
        for log in [3000.0, 1e9, f64::MAX, f64::NAN] {
            let view = of(log);
            assert_eq!(view.speedup, None, "{log}");
            let text = serde_json::to_string(&view).unwrap();
            assert_eq!(serde_json::from_str::<ArmsView>(&text).unwrap(), view);
        }
        assert!(of(1.0).speedup.is_some());
    }

    #[test]
    fn host_that_cannot_learn_says_why() {
        let mut bench = Bench::in_service();
        bench.event(set(on()));
        let why_not = |bench: &Bench, id: &str| {
            let (hosts, _) = hosts(bench.state(), bench.time(), 1);
            hosts.iter().find(|it| it.host == host(id)).and_then(|it| it.why_not.clone())
        };
        bench.report_with(1, |it| it.learners = vec![report(Some("sockops: no CAP_BPF"))]);
        assert_eq!(why_not(&bench, "office-1").as_deref(), Some("sockops: no CAP_BPF"));
        bench.join(4, crate::testing::relay("gcp:us-east1"));
        let expected = Some("no plan has a relay run on it");
        assert_eq!(why_not(&bench, "gcp:us-east1-1").as_deref(), expected);
        // What was learned stays in sight until the learner has gone.
        bench.event(set(off()));
        assert_eq!(why_not(&bench, "office-1"), None);
        let left = |bench: &Bench| hosts(bench.state(), bench.time(), 1).0;
        assert_eq!(left(&bench)[0].destinations.len(), 1);
        bench.report_with(1, |it| it.learners = Vec::new());
        let left = left(&bench);
        assert_eq!((left.len(), left[0].destinations.len()), (1, 0));
        assert_eq!(left[0].arms.jumped_connections, 6);
        assert!(!left[0].is_covered && !left[0].is_acting);
    }
}
