//! Flows that gateways learn: destinations that programs reach through a gateway's proxies and that
//! no flow has.
//!
//! A gateway offers proxies where the operator says so ([`Proxies`]). Sessions to destinations of
//! declared flows take the paths of those; all others go direct, and are added up by destination
//! and hour. The operator adopts a destination as a flow, or the controller does once it carries
//! enough; its usage is then the history that the flow is forecast from.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_grant::Destination;
use tradewind_units::{Bytes, FlowId, SiteId};

use crate::account;
use crate::documents::OWN_PORTS;
use crate::draft::{CONTROLLER, DAY_MS, Draft, HOUR_MS, OPERATOR};
use crate::enrolment::check_site;
use crate::event::{Answer, Keys, Refusal};
use crate::history::History;
use crate::message::{LearnedHour, SessionBatch};
use crate::operator;
use crate::proxies::{LearnedFlow, Proxies};
use crate::record::{DAYS_IN_MEMORY, FlowRecord, Host, HourUsage, Record, Role};
use crate::sessions::{MAX_BYTES, MAX_COUNT, MAX_SECONDS, MAX_SESSIONS};
use crate::state::State;
use crate::{documents, usage};

/// Most learned destinations of a site. With more, those with the fewest bytes are forgotten.
/// Chosen: far more than are worth a flow.
pub const MAX_OF_SITE: usize = 256;
/// Most learned hours of one batch; further ones are ignored. Chosen: as many as agents send.
const MAX_OF_BATCH: usize = 4096;
/// Days whose mean is the volume of a learned flow. Chosen: each day of the week once.
const MEAN_DAYS: u64 = 7;
/// Time between two looks for flows to adopt. Chosen: a flow is adopted within minutes.
const ADOPT_EVERY_MS: u64 = 60_000;
/// Most rules of destinations of a gateway's proxies. Chosen: a screen.
const MAX_RULES: usize = 64;

/// A destination that programs reach through a gateway's proxies, and that no flow has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Learned {
    /// The name that it has as a flow once it is adopted.
    pub id: FlowId,
    /// The site of the gateway.
    pub from: SiteId,
    /// The destination.
    pub to: Destination,
    /// The mean volume of a day, over the last seven days or since it was first seen.
    pub per_day: Bytes,
    /// Sessions that ended, whether or not in order.
    pub sessions: u64,
    /// The mean completion time of those that ended in order, in seconds.
    pub mean_seconds: Option<f64>,
    /// The most sessions that were open at the same time.
    pub concurrent: u64,
    /// Time when it was first reported, in milliseconds since the Unix epoch.
    pub first_unix_ms: u64,
    /// Time when it was last reported, in milliseconds since the Unix epoch.
    pub last_unix_ms: u64,
}

/// Returns the learned destinations that no flow has, those with the most bytes a day first.
#[must_use]
pub fn learned(state: &State, now_unix_ms: u64) -> Vec<Learned> {
    let mut all: Vec<Learned> = Vec::new();
    for (site, flows) in state.learned.iter() {
        let declared = declared(state, site);
        let new = flows.values().filter(|flow| !declared.contains_key(&flow.to));
        all.extend(new.map(|flow| shown(state, now_unix_ms, flow)));
    }
    all.sort_by(|a, b| b.per_day.cmp(&a.per_day).then_with(|| a.id.cmp(&b.id)));
    all
}

fn shown(state: &State, now: u64, flow: &LearnedFlow) -> Learned {
    let hours = state.usage.get(&flow.id).into_iter().flat_map(History::hours);
    let ended = flow.sessions.saturating_sub(flow.failed);
    Learned {
        id: flow.id.clone(),
        from: flow.from.clone(),
        to: flow.to.clone(),
        per_day: per_day(state, now, flow),
        sessions: flow.sessions,
        mean_seconds: (ended > 0).then(|| flow.seconds / ended as f64),
        concurrent: hours.map(|hour| hour.concurrent).max().unwrap_or(0),
        first_unix_ms: flow.first_unix_ms,
        last_unix_ms: flow.last_unix_ms,
    }
}

/// Returns the mean volume of a day. Of less than a day, what came is the volume.
fn per_day(state: &State, now: u64, flow: &LearnedFlow) -> Bytes {
    let since = (now / HOUR_MS).saturating_sub(MEAN_DAYS * usage::HOURS);
    let hours = state.usage.get(&flow.id).into_iter().flat_map(History::hours);
    let recent = hours.filter(|hour| hour.hour > since);
    let bytes = recent.fold(0_u64, |sum, hour| sum.saturating_add(hour.bytes));
    let days = now.saturating_sub(flow.first_unix_ms).div_ceil(DAY_MS).clamp(1, MEAN_DAYS);
    Bytes::new(bytes / days)
}

/// Returns the destinations of a site's flows.
fn declared<'a>(state: &'a State, site: &SiteId) -> BTreeMap<&'a Destination, &'a FlowId> {
    let flows = state.index.flows_from(site).filter_map(|id| state.flows.get(id));
    flows.map(|flow| (&flow.to, &flow.id)).collect()
}

/// Adds the records of what a batch tells of destinations without a flow.
pub(crate) fn take(
    state: &State,
    now: u64,
    host: &Host,
    batch: &SessionBatch,
    records: &mut Vec<Record>,
) {
    let Role::Gateway { site } = &host.role else { return };
    let Some(proxies) = state.proxies.get(site).filter(|_| !batch.learned.is_empty()) else {
        return;
    };
    let declared = declared(state, site);
    let mut told: BTreeMap<FlowId, (&Destination, Vec<&LearnedHour>)> = BTreeMap::new();
    let possible = batch.learned.iter().take(MAX_OF_BATCH).filter(|hour| is_possible(hour));
    let allowed = possible.filter(|hour| proxies.reach(&hour.to));
    for hour in allowed.filter(|hour| !declared.contains_key(&hour.to)) {
        let id = name_of(site, &hour.to);
        // The usage of that name is of a flow.
        if !is_named(state, &id) {
            told.entry(id).or_insert((&hour.to, Vec::new())).1.push(hour);
        }
    }
    let mut known = state.learned.get(site).cloned().unwrap_or_default();
    let before: Vec<FlowId> = known.keys().cloned().collect();
    for (id, (to, hours)) in &told {
        let flow = known.entry(id.clone()).or_insert_with(|| LearnedFlow {
            id: id.clone(),
            from: site.clone(),
            to: (*to).clone(),
            first_unix_ms: now,
            last_unix_ms: now,
            sessions: 0,
            failed: 0,
            bytes: 0,
            seconds: 0.0,
        });
        flow.last_unix_ms = now;
        hours.iter().for_each(|hour| flow.add(hour));
    }
    forget(&mut known, now);
    for id in before.iter().filter(|id| !known.contains_key(*id)) {
        records.push(Record::LearnedForgotten { from: site.clone(), flow: id.clone() });
    }
    for (id, (_, hours)) in told {
        let Some(flow) = known.remove(&id) else { continue };
        records.push(Record::Learned(flow));
        let hours: Vec<HourUsage> = hours.iter().map(|hour| hour.usage()).collect();
        records.extend(usage::add_hours(state, &id, &hours, now));
    }
}

/// Returns the hours of a batch that are of flows by now: sessions of an adopted destination that
/// ended before its gateway had the new document.
pub(crate) fn of_flows(
    state: &State,
    host: &Host,
    batch: &SessionBatch,
) -> BTreeMap<FlowId, Vec<HourUsage>> {
    let mut of_flows: BTreeMap<FlowId, Vec<HourUsage>> = BTreeMap::new();
    let Role::Gateway { site } = &host.role else { return of_flows };
    let Some(proxies) = state.proxies.get(site).filter(|_| !batch.learned.is_empty()) else {
        return of_flows;
    };
    let declared = declared(state, site);
    let possible = batch.learned.iter().take(MAX_OF_BATCH).filter(|hour| is_possible(hour));
    for hour in possible.filter(|hour| proxies.reach(&hour.to)) {
        if let Some(flow) = declared.get(&hour.to) {
            of_flows.entry((*flow).clone()).or_default().push(hour.usage());
        }
    }
    of_flows
}

impl LearnedFlow {
    fn add(&mut self, hour: &LearnedHour) {
        let sum = |known: u64, more: u64| known.saturating_add(more).min(MAX_COUNT);
        self.sessions = sum(self.sessions, hour.sessions);
        self.failed = sum(self.failed, hour.failed).min(self.sessions);
        self.bytes = sum(self.bytes, hour.bytes);
        self.seconds = (self.seconds + hour.seconds).min(MAX_COUNT as f64);
    }
}

impl LearnedHour {
    const fn usage(&self) -> HourUsage {
        let Self { hour, sessions, bytes, concurrent, .. } = *self;
        HourUsage { hour, sessions, bytes, concurrent }
    }
}

/// Forgets what has not been seen for long, and what has the fewest bytes where there are too many.
fn forget(known: &mut BTreeMap<FlowId, LearnedFlow>, now: u64) {
    let oldest = now.saturating_sub(DAYS_IN_MEMORY as u64 * DAY_MS);
    known.retain(|_, flow| flow.last_unix_ms >= oldest);
    let Some(more) = known.len().checked_sub(MAX_OF_SITE).filter(|more| *more > 0) else { return };
    let mut least: Vec<_> =
        known.values().map(|flow| (flow.bytes, flow.last_unix_ms, flow.id.clone())).collect();
    least.sort_unstable();
    least.into_iter().take(more).for_each(|(_, _, id)| drop(known.remove(&id)));
}

/// Returns whether a gateway can have had such sessions.
fn is_possible(hour: &LearnedHour) -> bool {
    let LearnedHour { sessions, failed, bytes, seconds, .. } = *hour;
    let ended = sessions.saturating_sub(failed);
    sessions > 0
        && failed <= sessions
        && sessions <= MAX_SESSIONS
        && bytes <= MAX_BYTES
        // False for NaN.
        && (0.0..=MAX_SECONDS * ended as f64).contains(&seconds)
}

/// Returns the name of a learned flow: its site, host and port, cut and ended by a hash where that
/// is too long for a name.
fn name_of(site: &SiteId, to: &Destination) -> FlowId {
    let text = match to {
        Destination::Address(address) => format!("{site}:{}:{}", address.ip(), address.port()),
        Destination::Name { name, port } => format!("{site}:{name}:{port}"),
    };
    FlowId::new(&text).unwrap_or_else(|_| {
        let kept: String = text.chars().filter(|c| is_of_names(*c)).take(47).collect();
        let hash = blake3::hash(text.as_bytes()).to_hex();
        FlowId::new(format!("{kept}-{}", &hash[..16])).expect("a site's name begins it")
    })
}

fn is_of_names(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:".contains(c)
}

/// Has a site's gateways offer proxies, or other ones.
pub(crate) fn set_proxies(draft: &mut Draft, proxies: &Proxies) -> Result<Answer, Refusal> {
    let site = &proxies.site;
    let invalid = |problem: String| Err(Refusal::Invalid(format!("proxies of {site}: {problem}")));
    check_site(site)?;
    let ports: Vec<u16> = proxies.addresses().map(|(_, address)| address.port()).collect();
    if ports.is_empty() {
        return invalid("expected an address for SOCKS5 or for HTTP proxy requests".to_owned());
    }
    if ports.contains(&0) || ports.len() == 2 && ports[0] == ports[1] {
        return invalid("expected a port for each, and not the same".to_owned());
    }
    if let Some(taken) = ports.iter().find(|port| OWN_PORTS.contains(port)) {
        return invalid(format!("port {taken} is that of the metrics of relays and gateways"));
    }
    if proxies.adopt_above == Some(Bytes::ZERO) {
        return invalid("adopt_above: expected a volume above zero".to_owned());
    }
    if proxies.destinations.len() > MAX_RULES {
        return invalid(format!("expected at most {MAX_RULES} destinations"));
    }
    if let Some((_, outside)) = proxies.addresses().find(|(_, at)| !at.ip().is_loopback()) {
        return invalid(format!("{outside} is no loopback address: any host could use them"));
    }
    let flows = draft.state.index.flows_from(site).filter_map(|id| draft.state.flows.get(id));
    if let Some(flow) = flows.into_iter().find(|flow| ports.contains(&flow.listen.port())) {
        return invalid(format!("flow `{}` has port {} already", flow.id, flow.listen.port()));
    }
    let text: Vec<String> = proxies.addresses().map(|(kind, at)| format!("{kind} {at}")).collect();
    let action = format!("offers proxies at {site}: {}", text.join(", "));
    draft.push(Record::Proxies(proxies.clone()));
    draft.audit(OPERATOR, action);
    Ok(Answer::Done)
}

/// Ends the proxies of a site's gateways. What was learned stays until it is old.
pub(crate) fn remove_proxies(draft: &mut Draft, site: &SiteId) -> Result<Answer, Refusal> {
    if !draft.state.proxies.contains_key(site) {
        return Err(Refusal::NotFound(format!("site `{site}` has no proxies")));
    }
    draft.push(Record::ProxiesRemoved { site: site.clone() });
    draft.audit(OPERATOR, format!("ends the proxies at {site}"));
    Ok(Answer::Done)
}

/// Makes a learned destination a flow.
pub(crate) fn adopt(
    draft: &mut Draft,
    id: &FlowId,
    per_day: Option<Bytes>,
    weight: Option<u32>,
    by: &str,
    keys: &Keys,
) -> Result<Answer, Refusal> {
    let found = draft.state.learned.values().find_map(|flows| flows.get(id)).cloned();
    let found = found.ok_or_else(|| Refusal::NotFound(format!("no learned flow `{id}`")))?;
    if let Some(flow) = declared(&draft.state, &found.from).get(&found.to) {
        return Err(Refusal::Conflict(format!("flow `{flow}` has this destination already")));
    }
    if is_named(&draft.state, id) {
        return Err(Refusal::Conflict(format!(
            "another flow has the name `{id}`: remove it first"
        )));
    }
    let proxies = draft.state.proxies.get(&found.from);
    if proxies.is_some_and(|proxies| !proxies.reach(&found.to)) {
        let problem = format!("the proxies of {} do not lead to {} any more", found.from, found.to);
        return Err(Refusal::Conflict(problem));
    }
    let mean = per_day.unwrap_or_else(|| self::per_day(&draft.state, draft.now(), &found));
    let LearnedFlow { from, to, .. } = found;
    let listen = operator::free_listen(&draft.state, &from)?;
    let to_site = operator::site_of(&to)?;
    let (id, weight) = (id.clone(), weight.unwrap_or(1));
    // A flow carries something.
    let per_day = mean.max(Bytes::new(1));
    let flow = FlowRecord { id, from, to, to_site, per_day, weight, listen };
    operator::declare(draft, &flow, by, keys)
}

/// Returns whether a declared flow has this name.
fn is_named(state: &State, id: &FlowId) -> bool {
    state.flows.contains_key(id) || state.packet_flows.contains_key(id)
}

/// Adopts the learned destinations that carry as much as their sites' proxies ask for; returns
/// whether it did.
pub(crate) fn tick(draft: &mut Draft, keys: &Keys) -> bool {
    let (now, before) = (draft.now(), draft.state.watching);
    let last = before.map(|watching| watching.last_unix_ms / ADOPT_EVERY_MS);
    if last == Some(now / ADOPT_EVERY_MS) {
        return false;
    }
    let sites = draft.state.proxies.values();
    let asking = sites.filter_map(|proxies| Some((&proxies.site, proxies.adopt_above?)));
    let asking: BTreeMap<SiteId, Bytes> =
        asking.map(|(site, least)| (site.clone(), least)).collect();
    if asking.is_empty() {
        return false;
    }
    let enough: Vec<Learned> = learned(&draft.state, now)
        .into_iter()
        .filter(|flow| asking.get(&flow.from).is_some_and(|least| flow.per_day >= *least))
        .filter(|flow| account::kept_by(&draft.state, &flow.id).is_none())
        .collect();
    let mut adopts = false;
    let mut full: BTreeSet<SiteId> = BTreeSet::new();
    for Learned { id, from, per_day, .. } in enough {
        if full.contains(&from) {
            continue;
        }
        let by = CONTROLLER;
        match draft.try_to(|draft| adopt(draft, &id, Some(per_day), None, by, keys)) {
            Ok(_) => adopts = true,
            Err(refusal) => {
                // The next ones of the site would meet the same.
                full.insert(from);
                documents::complain(draft, format!("{id} is not adopted: {refusal}"));
            }
        }
    }
    adopts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::message::{Arm, SessionTally};
    use crate::testing::{Bench, flow, gateway, tally};

    fn site() -> SiteId {
        SiteId::new("office").unwrap()
    }

    fn proxies(adopt_above: Option<Bytes>) -> Proxies {
        Proxies {
            site: site(),
            socks5: Some(([127, 0, 0, 1], 1080).into()),
            connect: None,
            destinations: Vec::new(),
            adopt_above,
        }
    }

    fn hour(bench: &Bench, to: &str, bytes: u64) -> LearnedHour {
        LearnedHour {
            to: to.parse().unwrap(),
            hour: bench.now / HOUR_MS,
            sessions: 2,
            failed: 1,
            bytes,
            seconds: 3.0,
            concurrent: 2,
        }
    }

    /// Has the gateway report learned sessions.
    fn tell(bench: &mut Bench, number: u64, learned: Vec<LearnedHour>) {
        let batch = SessionBatch { learned, ..SessionBatch::empty(1, number) };
        bench.report_with(1, |report| report.sessions = Some(batch));
    }

    fn offered(adopt_above: Option<Bytes>) -> Bench {
        let mut bench = Bench::new();
        bench.join(1, gateway("office"));
        bench.event(Event::SetProxies(proxies(adopt_above)));
        bench
    }

    fn names(bench: &Bench) -> Vec<String> {
        let all = learned(bench.state(), bench.now);
        all.into_iter().map(|flow| flow.id.to_string()).collect()
    }

    #[test]
    fn proxies_send_what_is_of_no_flow_direct() {
        let mut bench = offered(None);
        let direct = |bench: &Bench, to: &str| {
            let config = bench.config("office-1").unwrap();
            let parsed = tradewind_config::GatewayConfig::parse(&config).unwrap();
            assert_eq!(parsed.socks5, ["127.0.0.1:1080".parse().unwrap()]);
            let to: Destination = to.parse().unwrap();
            *parsed.routes.route(&to) == tradewind_desired::Route::Direct
        };
        let all = ["files.example.com:443", "198.41.0.1:22", "10.1.2.3:443"];
        assert_eq!(all.map(|to| direct(&bench, to)), [true; 3]);
        let rules = ["10.0.0.0/8:443", "*.example.com:443", "0.0.0.0/0:443", "[::]/0:*"];
        let rules = rules.map(|rule| rule.parse().unwrap());
        let few = Proxies { destinations: rules[..2].to_vec(), ..proxies(None) };
        bench.event(Event::SetProxies(few));
        assert_eq!(all.map(|to| direct(&bench, to)), [true, false, true]);
        // Some ports of all addresses are no name's, and not all ports.
        let some = Proxies { destinations: rules[..3].to_vec(), ..proxies(None) };
        bench.event(Event::SetProxies(some));
        assert_eq!(all.map(|to| direct(&bench, to)), [true, false, true]);
        bench.event(Event::SetProxies(Proxies { destinations: rules.into(), ..proxies(None) }));
        assert_eq!(all.map(|to| direct(&bench, to)), [true; 3]);
        bench.event(Event::RemoveProxies(site()));
        assert_eq!(bench.config("office-1"), None);
        // Without proxies what is of no flow is refused, as it was.
        bench.event(Event::AddFlow(flow("a", 7)));
        assert!(bench.config("office-1").unwrap().contains("default = \"refuse\""));
    }

    #[test]
    fn older_agents_get_no_proxies() {
        let mut bench = offered(None);
        bench.report_with(1, |report| report.config_version = 1);
        bench.event(Event::AddFlow(flow("a", 7)));
        assert!(!bench.config("office-1").unwrap().contains("socks5"));
        bench.report(1, Vec::new());
        bench.event(Event::AddFlow(flow("b", 8)));
        assert!(bench.config("office-1").unwrap().contains("socks5"));
    }

    #[test]
    fn destinations_are_learned_once_and_adopted_with_their_history() {
        let mut bench = offered(None);
        let told = vec![
            hour(&bench, "198.41.0.7:443", 7_000),
            hour(&bench, "files.example.com:443", 9_000),
        ];
        tell(&mut bench, 1, told.clone());
        // Its answer was lost.
        tell(&mut bench, 1, told);
        assert_eq!(names(&bench), ["office:files.example.com:443", "office:198.41.0.7:443"]);
        let first = learned(bench.state(), bench.now).remove(0);
        assert_eq!((first.per_day, first.sessions), (Bytes::new(9_000), 2));
        assert_eq!((first.mean_seconds, first.concurrent), (Some(3.0), 2));

        // The mean of two days, and of a session by hour.
        bench.now += 2 * DAY_MS - HOUR_MS;
        let more = hour(&bench, "files.example.com:443", 1_000);
        tell(&mut bench, 2, vec![more]);
        assert_eq!(learned(bench.state(), bench.now)[0].per_day, Bytes::new(5_000));
        let id = first.id;
        bench.event(Event::Adopt { flow: id.clone(), per_day: None, weight: Some(3) });
        let adopted = bench.state().flows[&id].clone();
        assert_eq!((adopted.per_day, adopted.weight), (Bytes::new(5_000), 3));
        assert_eq!(adopted.to_site.as_str(), "files.example.com");
        assert_eq!(adopted.listen.port(), 15_000);
        assert_eq!(bench.state().usage[&id].hours().count(), 2, "its history");
        assert_eq!(names(&bench), ["office:198.41.0.7:443"]);
        let again = Event::Adopt { flow: id.clone(), per_day: None, weight: None };
        assert!(matches!(bench.refusal(again), Refusal::Conflict(_)));
        // It has a flow now, so that nothing more is learned of it.
        let more = hour(&bench, "files.example.com:443", 1_000);
        tell(&mut bench, 3, vec![more]);
        assert_eq!(bench.state().learned[&site()][&id].bytes, 10_000);
        // Its gateway did not know it yet: what it told then is of the flow.
        let carried = |bench: &Bench| -> u64 {
            bench.state().usage[&id].hours().map(|hour| hour.bytes).sum()
        };
        assert_eq!(carried(&bench), 11_000);
        let late = vec![hour(&bench, "files.example.com:443", 500)];
        let tally = SessionTally { flow: id.clone(), ..tally(Arm::Overlay, &[], &[1.0]) };
        let tallies = vec![tally];
        let batch = SessionBatch { learned: late, tallies, ..SessionBatch::empty(1, 4) };
        bench.report_with(1, |report| report.sessions = Some(batch));
        assert_eq!(carried(&bench), 11_500 + 3_001_000, "beside what it tells of the flow itself");
        bench.event(Event::RemoveFlow(id));
        assert_eq!(names(&bench).len(), 2);
    }

    #[test]
    fn large_destinations_are_adopted_where_asked() {
        let mut bench = offered(Some(Bytes::new(5_000)));
        let told = vec![
            hour(&bench, "198.41.0.7:443", 4_999),
            hour(&bench, "files.example.com:443", 5_000),
        ];
        tell(&mut bench, 1, told);
        bench.pass(61);
        let flows: Vec<&str> = bench.state().flows.keys().map(FlowId::as_str).collect();
        assert_eq!(flows, ["office:files.example.com:443"]);
        let config = bench.config("office-1").unwrap();
        assert!(config.contains("files.example.com:443"), "{config}");
        bench.pass(61);
        assert_eq!(bench.state().flows.len(), 1);
    }

    #[test]
    fn site_adopts_as_many_as_its_grant_holds() {
        let mut bench = offered(Some(Bytes::new(1_000)));
        let told = (0..40).map(|index| hour(&bench, &format!("n{index}.example.com:443"), 9_000));
        let told = told.collect();
        tell(&mut bench, 1, told);
        bench.pass(130);
        let adopted = bench.state().flows.len();
        assert!((1..40).contains(&adopted), "{adopted}");
        let refusals = |bench: &Bench| {
            let lines = bench.state().audit.values().map(|entry| entry.action.clone());
            lines.filter(|line| line.contains("is not adopted")).count()
        };
        assert_eq!(refusals(&bench), 1);
        // The grant of what is declared is whole.
        bench.controller = bench.restarted();
        assert_eq!(bench.state().flows.len(), adopted);
        let one = bench.state().flows.keys().next().unwrap().clone();
        bench.event(Event::RemoveFlow(one));
        bench.event(Event::AddFlow(flow("a", 7)));
    }

    #[test]
    fn destination_of_a_declared_name_is_left_alone() {
        let mut bench = offered(Some(Bytes::new(1_000)));
        let named =
            FlowRecord { id: FlowId::new("office:files.example.com:443").unwrap(), ..flow("a", 7) };
        bench.event(Event::AddFlow(named.clone()));
        let one = hour(&bench, "files.example.com:443", 9_000);
        tell(&mut bench, 1, vec![one]);
        bench.pass(61);
        assert_eq!(bench.state().flows.values().collect::<Vec<_>>(), [&named]);
        assert!(bench.state().usage.is_empty());
    }

    #[test]
    fn only_destinations_of_the_rules_are_learned() {
        let mut bench = offered(None);
        let rules = ["*.example.com:443", "10.0.0.0/8:443"].map(|rule| rule.parse().unwrap());
        let few = Proxies { destinations: rules.into(), ..proxies(None) };
        bench.event(Event::SetProxies(few));
        let all = ["198.41.0.9:22", "files.example.com:443", "10.0.0.7:443", "10.0.0.7:22"];
        let told = all.map(|to| hour(&bench, to, 9_000)).into();
        tell(&mut bench, 1, told);
        let known: Vec<String> =
            learned(bench.state(), bench.now).into_iter().map(|it| it.to.to_string()).collect();
        assert_eq!(known, ["10.0.0.7:443", "files.example.com:443"]);
        let id = FlowId::new("office:10.0.0.7:443").unwrap();
        let rules = vec!["*.example.com:443".parse().unwrap()];
        bench.event(Event::SetProxies(Proxies { destinations: rules, ..proxies(None) }));
        let adopt = Event::Adopt { flow: id, per_day: None, weight: None };
        assert!(matches!(bench.refusal(adopt), Refusal::Conflict(_)));
        // Without rules no private address is one of theirs.
        bench.event(Event::SetProxies(proxies(None)));
        let told = ["10.0.0.8:443", "127.0.0.1:22"].map(|to| hour(&bench, to, 9_000)).into();
        tell(&mut bench, 2, told);
        assert_eq!(bench.state().learned[&site()].len(), 2);
    }

    #[test]
    fn impossible_figures_and_sites_without_proxies_are_ignored() {
        let mut bench = offered(None);
        let good = hour(&bench, "198.41.0.7:443", 7_000);
        let change = |by: &dyn Fn(&mut LearnedHour)| {
            let mut hour = good.clone();
            by(&mut hour);
            hour
        };
        let wrong = vec![
            change(&|hour| hour.sessions = 0),
            change(&|hour| hour.failed = 3),
            change(&|hour| hour.seconds = f64::NAN),
            change(&|hour| hour.seconds = -1.0),
            change(&|hour| hour.bytes = u64::MAX),
        ];
        tell(&mut bench, 1, wrong);
        assert!(bench.state().learned.values().all(BTreeMap::is_empty));
        bench.event(Event::RemoveProxies(site()));
        tell(&mut bench, 2, vec![good]);
        assert!(bench.state().learned.is_empty());
    }

    #[test]
    fn memory_is_bounded_and_the_largest_stay() {
        let mut bench = offered(None);
        let large = hour(&bench, "198.41.0.7:443", 1_000_000);
        tell(&mut bench, 1, vec![large]);
        for number in 2..6 {
            let to = |index: u64| format!("n{index}.example.com:{number}");
            let hours = (0..100).map(|index| hour(&bench, &to(index), 1_000 * number + index));
            let hours = hours.collect();
            tell(&mut bench, number, hours);
        }
        let known = &bench.state().learned[&site()];
        assert_eq!(known.len(), MAX_OF_SITE);
        assert!(known.contains_key(&FlowId::new("office:198.41.0.7:443").unwrap()));
        assert!(!known.contains_key(&FlowId::new("office:n0.example.com:2").unwrap()));
        assert_eq!(bench.state().usage.len(), MAX_OF_SITE, "usage goes with its flow");
        bench.now += 32 * DAY_MS;
        let one = hour(&bench, "198.41.0.9:443", 1);
        tell(&mut bench, 6, vec![one]);
        assert_eq!(names(&bench), ["office:198.41.0.9:443"]);
        assert_eq!(bench.state().usage.len(), 1);
    }

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let name = |port: u16| {
            let host = format!("{}.{}.example.com", "a".repeat(60), "b".repeat(60));
            name_of(&site(), &format!("{host}:{port}").parse().unwrap())
        };
        assert_eq!(name(443), name(443));
        assert_ne!(name(443), name(444));
        assert!(name(443).as_str().starts_with("office:aaa"));
        let v6 = name_of(&site(), &"[2001:db8::1]:443".parse().unwrap());
        assert_eq!(v6.as_str(), "office:2001:db8::1:443");
    }

    #[test]
    fn proxies_that_cannot_be_are_refused() {
        let mut bench = Bench::in_service();
        let good = proxies(None);
        let at = |text: &str| Some(text.parse().unwrap());
        for wrong in [
            Proxies { socks5: None, ..good.clone() },
            Proxies { socks5: at("127.0.0.1:0"), ..good.clone() },
            Proxies { socks5: at("192.0.2.1:1080"), ..good.clone() },
            Proxies { connect: good.socks5, ..good.clone() },
            Proxies { socks5: at("127.0.0.1:9007"), ..good.clone() },
            Proxies { socks5: at("127.0.0.1:9102"), ..good.clone() },
            Proxies { adopt_above: Some(Bytes::ZERO), ..good.clone() },
            Proxies { destinations: vec!["10.0.0.0/8:443".parse().unwrap(); 65], ..good.clone() },
        ] {
            let refusal = bench.refusal(Event::SetProxies(wrong));
            assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal}");
        }
        bench.event(Event::SetProxies(good));
        let clash = FlowRecord { listen: ([127, 0, 0, 1], 1080).into(), ..flow("b", 8) };
        let refusal = bench.refusal(Event::AddFlow(clash));
        assert!(refusal.to_string().contains("SOCKS5"), "{refusal}");
        assert!(matches!(
            bench.refusal(Event::RemoveProxies(SiteId::new("far").unwrap())),
            Refusal::NotFound(_)
        ));
    }
}
