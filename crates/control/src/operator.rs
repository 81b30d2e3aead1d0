//! Settings that the operator declares: flows, budget, mode, and hosts out of service.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tradewind_grant::Destination;
use tradewind_plan::packets::MAX_PACKET_FLOWS;
use tradewind_units::{Bytes, FlowId, HostId, SiteId};

use crate::account;
use crate::documents;
use crate::draft::{DAY_MS, Draft, OPERATOR};
use crate::enrolment::check_site;
use crate::event::{Answer, Keys, Refusal, SettingsRequest};
use crate::jumpstart;
use crate::money;
use crate::packet_flow::PacketFlowRecord;
use crate::prices;
use crate::proxies::Proxies;
use crate::record::{FlowRecord, Host, InviteRecord, Mode, Record, Role, Settings, Spent};
use crate::settings::MAX_RELAY_SETUP;
use crate::state::State;
use crate::tenants;
use crate::terms::Terms;

/// The first port that is given to a flow which names none. Chosen: below the ports that Linux
/// gives to connections.
const FIRST_PORT: u16 = 15_000;

/// Adds a flow, or replaces the one of the same name.
pub(crate) fn add_flow(
    draft: &mut Draft,
    flow: &FlowRecord,
    keys: &Keys,
) -> Result<Answer, Refusal> {
    declare(draft, flow, OPERATOR, keys)
}

/// Adds a flow by whom it is.
pub(crate) fn declare(
    draft: &mut Draft,
    flow: &FlowRecord,
    by: &str,
    keys: &Keys,
) -> Result<Answer, Refusal> {
    check_flow(draft, flow)?;
    check_name(draft, &flow.id)?;
    tenants::check_destination(&draft.state, flow)?;
    let action = format!(
        "declared flow {}: {} -> {}, {:.3} GB a day, at {}",
        flow.id,
        flow.from,
        flow.to,
        flow.per_day.as_gb(),
        flow.listen
    );
    let ends = |flow: &FlowRecord| (flow.from.clone(), flow.to.clone(), flow.to_site.clone());
    let before = draft.state.flows.get(&flow.id);
    if before.is_some_and(|before| ends(before) != ends(flow)) {
        account::leave(draft, &flow.id);
        // Between other ends it is another flow, whose hours tell nothing of this one.
        draft.push(Record::FlowRemoved { flow: flow.id.clone() });
    }
    draft.push(Record::Flow(flow.clone()));
    documents::check_grant(draft, &flow.from, keys)?;
    draft.audit(by, action);
    Ok(Answer::Done)
}

fn check_flow(draft: &Draft, flow: &FlowRecord) -> Result<(), Refusal> {
    let invalid = |problem: &str| Err(Refusal::Invalid(format!("flow `{}`: {problem}", flow.id)));
    check_site(&flow.from)?;
    check_site(&flow.to_site)?;
    if flow.from == flow.to_site {
        return invalid("its destination is the site that it comes from");
    }
    if flow.per_day == Bytes::ZERO {
        return invalid("a volume above zero is needed");
    }
    if flow.weight == 0 {
        return invalid("a weight of 1 or more is needed");
    }
    if flow.listen.port() == 0 {
        return invalid("its gateway needs a port to listen on");
    }
    if documents::OWN_PORTS.contains(&flow.listen.port()) {
        return invalid("its port is that of the metrics of relays and gateways");
    }
    if draft.state.packet_flows.contains_key(&flow.id) {
        return invalid("a packet flow has this name");
    }
    let others = draft.state.flows.values().filter(|other| other.id != flow.id);
    let mut here = others.filter(|other| other.from == flow.from);
    if let Some(other) = here.find(|other| other.listen.port() == flow.listen.port()) {
        return invalid(&format!(
            "flow `{}` has port {} of this site already",
            other.id,
            flow.listen.port()
        ));
    }
    let mut proxies = draft.state.proxies.get(&flow.from).into_iter().flat_map(Proxies::addresses);
    if let Some((kind, _)) = proxies.find(|(_, at)| at.port() == flow.listen.port()) {
        return invalid(&format!("the {kind} proxy of its site has port {}", flow.listen.port()));
    }
    Ok(())
}

/// Adds a packet flow, or replaces the one of the same name.
pub(crate) fn add_packet_flow(
    draft: &mut Draft,
    flow: &PacketFlowRecord,
    keys: &Keys,
) -> Result<Answer, Refusal> {
    flow.check()
        .and_then(|()| check_beside_others(draft, flow))
        .map_err(|problem| Refusal::Invalid(format!("flow `{}`: {problem}", flow.id)))?;
    check_site(&flow.from)?;
    check_site(&flow.to_site)?;
    check_name(draft, &flow.id)?;
    let action = format!(
        "declared packet flow {}: {} -> {} at {}, {} packets a second of {}, at {}",
        flow.id,
        flow.from,
        flow.to,
        flow.to_site,
        flow.packets_per_second,
        flow.packet,
        flow.listen
    );
    draft.push(Record::PacketFlow(flow.clone()));
    documents::check_grant(draft, &flow.from, keys)?;
    draft.audit(OPERATOR, action);
    Ok(Answer::Done)
}

/// Checks that a packet flow has a name and a port of its own, and that there is room for it.
fn check_beside_others(draft: &Draft, flow: &PacketFlowRecord) -> Result<(), String> {
    let state = &draft.state;
    if state.flows.contains_key(&flow.id) {
        return Err("a flow of streams has this name".to_owned());
    }
    let before = state.packet_flows.get(&flow.id);
    let has_moved = |it: &&PacketFlowRecord| (&it.from, &it.to_site) != (&flow.from, &flow.to_site);
    if let Some(PacketFlowRecord { from, to_site, .. }) = before.filter(has_moved) {
        // What became of its packets tells of the path between them.
        return Err(format!("it goes from {from} to {to_site}: remove it first"));
    }
    let mut others = state.packet_flows.values().filter(|other| other.id != flow.id);
    if others.clone().count() >= MAX_PACKET_FLOWS {
        return Err(format!("there are {MAX_PACKET_FLOWS} packet flows already"));
    }
    let port = flow.listen.port();
    if port == documents::PACKET_PORT {
        return Err(format!("port {port} is that of gateways themselves"));
    }
    match others.find(|other| other.from == flow.from && other.listen.port() == port) {
        Some(other) => Err(format!("packet flow `{}` has port {port} already", other.id)),
        None => Ok(()),
    }
}

/// Refuses a name whose costs are another's.
fn check_name(draft: &Draft, flow: &FlowId) -> Result<(), Refusal> {
    account::kept_by(&draft.state, flow).map_or(Ok(()), |why| Err(Refusal::Conflict(why)))
}

/// Returns an address on loopback with a port that no flow and no proxy of a site has.
///
/// # Errors
/// When there is none.
pub fn free_listen(state: &State, from: &SiteId) -> Result<SocketAddr, Refusal> {
    let flows = state.index.flows_from(from).filter_map(|id| state.flows.get(id));
    let proxies = state.proxies.get(from).into_iter().flat_map(Proxies::addresses);
    let used = flows.map(|flow| flow.listen.port()).chain(proxies.map(|(_, at)| at.port()));
    let used: BTreeSet<u16> = used.collect();
    let free = (FIRST_PORT..=u16::MAX).find(|port| !used.contains(port));
    let none = || Refusal::Invalid("listen: no port is left at this site; name one".to_owned());
    Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), free.ok_or_else(none)?))
}

/// Returns a site that is named after the host of a destination.
///
/// # Errors
/// When that is no name of a site.
pub fn site_of(to: &Destination) -> Result<SiteId, Refusal> {
    let host = match to {
        Destination::Address(address) => address.ip().to_string(),
        Destination::Name { name, .. } => name.to_string(),
    };
    let named = host.parse();
    named.map_err(|_| Refusal::Invalid(format!("to_site: expected a name for the place of {to}")))
}

/// Removes a flow or packet flow.
pub(crate) fn remove_flow(draft: &mut Draft, flow: &FlowId) -> Result<Answer, Refusal> {
    let state = &draft.state;
    if !state.flows.contains_key(flow) && !state.packet_flows.contains_key(flow) {
        return Err(Refusal::NotFound(format!("no flow `{flow}`")));
    }
    account::forget(draft, flow);
    draft.push(Record::FlowRemoved { flow: flow.clone() });
    draft.audit(OPERATOR, format!("removed flow {flow}"));
    Ok(Answer::Done)
}

/// Changes settings, all of them or none. With a budget of zero, all flows go direct at once.
pub(crate) fn change_settings(
    draft: &mut Draft,
    request: &SettingsRequest,
) -> Result<Answer, Refusal> {
    const MAX_CONTROL: f64 = 0.5;
    let invalid = |problem: &str| Err(Refusal::Invalid(problem.to_owned()));
    let SettingsRequest { budget_usd_per_day, alarm_share, mode, control_share, .. } = *request;
    if alarm_share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
        return invalid("the share that raises an alarm is 0 to 1");
    }
    if control_share.is_some_and(|share| share.as_f64() > MAX_CONTROL) {
        return invalid("the control arm is at most half of all sessions");
    }
    if request.relay_setup.is_some_and(|span| span > MAX_RELAY_SETUP) {
        return invalid("relays take at most 30 min to set up");
    }
    if let Some(terms) = &request.terms {
        check_terms(draft, terms)?;
    }
    let jumpstart =
        request.jumpstart.as_ref().map(|request| jumpstart::changed(&draft.state, request));
    let jumpstart = jumpstart.transpose()?;
    if request.terms.is_some() {
        // Until now machines cost what they did.
        money::meter(draft);
    }
    let known = draft.state.settings.clone();
    draft.push(Record::Settings(Settings {
        budget_usd_per_day: budget_usd_per_day.unwrap_or(known.budget_usd_per_day),
        alarm_share: alarm_share.or(known.alarm_share),
        mode: mode.unwrap_or(known.mode),
        control_share: control_share.unwrap_or(known.control_share),
        jumpstart: jumpstart.unwrap_or(known.jumpstart),
        terms: request.terms.clone().unwrap_or(known.terms),
        tests_share: request.tests_share.unwrap_or(known.tests_share),
        relay_setup: request.relay_setup.unwrap_or(known.relay_setup),
    }));
    // What was said of the budget before says nothing of this one.
    if (budget_usd_per_day.is_some() || alarm_share.is_some())
        && let Some(spent) = draft.state.spent.get(&(draft.now() / DAY_MS)).cloned()
    {
        draft.push(Record::Spent(Spent { has_alarmed: false, has_stopped: false, ..spent }));
    }
    audit_settings(draft, request);
    Ok(Answer::Done)
}

/// Writes the settings that were changed to the audit log.
fn audit_settings(draft: &mut Draft, request: &SettingsRequest) {
    if let Some(usd_per_day) = request.budget_usd_per_day {
        draft.audit(OPERATOR, format!("set the budget to {usd_per_day} a day"));
    }
    if let Some(share) = request.alarm_share {
        draft.audit(OPERATOR, format!("set the alarm to {:.0} % of the budget", share * 100.0));
    }
    if let Some(mode) = request.mode {
        let who = match mode {
            Mode::Suggest => "the operator",
            Mode::Auto => "the controller",
        };
        draft.audit(OPERATOR, format!("plans are applied by {who}"));
    }
    if let Some(share) = request.control_share {
        draft.audit(OPERATOR, format!("set the control arm to {share} of sessions"));
    }
    if let Some(terms) = &request.terms {
        draft.audit(OPERATOR, format!("set {terms}"));
    }
    if let Some(share) = request.tests_share {
        draft.audit(OPERATOR, format!("gave rate tests {share} of the budget"));
    }
    if let Some(span) = request.relay_setup {
        draft.audit(OPERATOR, format!("relays take {} s to set up", span.as_secs_f64()));
    }
    if request.jumpstart.is_some() {
        draft.audit(OPERATOR, format!("jump-start is {}", draft.state.settings.jumpstart));
    }
}

/// Refuses terms that lack the relay type of a host, or of an invite that a host may still use.
fn check_terms(draft: &Draft, terms: &Terms) -> Result<(), Refusal> {
    let now = draft.now();
    let trusted = draft.state.hosts.values().filter(|host| host.is_trusted);
    let is_open =
        |invite: &&InviteRecord| invite.used_by.is_none() && now <= invite.expires_unix_ms;
    let invited = draft.state.invites.values().filter(is_open);
    let roles = trusted.map(|host| &host.role).chain(invited.map(|invite| &invite.role));
    for role in roles {
        if let Role::Relay { relay_type, .. } = role {
            prices::relay_type(terms, relay_type)?;
        }
    }
    Ok(())
}

/// Takes a host out of service, or back into it.
pub(crate) fn drain(draft: &mut Draft, host: &HostId, is_drained: bool) -> Result<Answer, Refusal> {
    let host = trusted(draft, host)?;
    let action = if is_drained { "drains" } else { "takes back" };
    let action = format!("{action} host {}", host.id);
    draft.push(Record::Host(Host { is_drained, ..host }));
    draft.audit(OPERATOR, action);
    Ok(Answer::Done)
}

/// Revokes a host for good.
pub(crate) fn revoke(draft: &mut Draft, host: &HostId) -> Result<Answer, Refusal> {
    let host = trusted(draft, host)?;
    let action = format!("revoked host {}", host.id);
    draft.push(Record::Host(Host { is_trusted: false, ..host }));
    draft.audit(OPERATOR, action);
    Ok(Answer::Done)
}

fn trusted(draft: &Draft, host: &HostId) -> Result<Host, Refusal> {
    match draft.state.hosts.get(host) {
        None => Err(Refusal::NotFound(format!("no host `{host}`"))),
        Some(host) if !host.is_trusted => {
            Err(Refusal::Conflict(format!("host `{}` is revoked", host.id)))
        }
        Some(host) => Ok(host.clone()),
    }
}

#[cfg(test)]
mod tests {
    use tradewind_units::{Duration, Money, Ratio};

    use super::*;
    use crate::event::Event;
    use crate::testing::{Bench, flow, host, relay};

    #[test]
    fn flows_that_cannot_be_carried_are_refused() {
        let mut bench = Bench::new();
        bench.event(Event::AddFlow(flow("a", 7)));
        let twice = FlowRecord { listen: flow("a", 7).listen, ..flow("b", 8) };
        let nowhere = FlowRecord { to_site: flow("b", 8).from, ..flow("b", 8) };
        let empty = FlowRecord { per_day: Bytes::ZERO, ..flow("b", 8) };
        let weightless = FlowRecord { weight: 0, ..flow("b", 8) };
        for wrong in [twice, nowhere, empty, weightless] {
            let refusal = bench.refusal(Event::AddFlow(wrong));
            assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal}");
        }
        assert_eq!(bench.state().flows.len(), 1);
        bench.event(Event::AddFlow(FlowRecord { weight: 2, ..flow("a", 7) }));
        assert_eq!(bench.state().flows[&flow("a", 7).id].weight, 2);
    }

    #[test]
    fn flows_beyond_a_grant_are_refused() {
        let mut bench = Bench::new();
        let mut events = (1..=40).map(|number| Event::AddFlow(flow(&format!("f{number}"), number)));
        let refusal = events.find_map(|event| bench.try_event(&event).err()).unwrap();
        assert!(refusal.to_string().contains("the grant of office would hold too much"));
        assert_eq!(bench.state().flows.len(), tradewind_grant::token::RULE_LIMIT);
    }

    #[test]
    fn terms_hold_instead_of_the_catalogue() {
        let mut bench = Bench::in_service();
        let usd = |usd: f64| Money::from_usd(usd).unwrap();
        let text = "egress_usd_per_gb = 0.5\n[relay_types.standard]\nusd_per_day = 24\n\
                    capacity = \"100 Mbit/s\"\n[relay_types.rack]\nusd_per_day = 1\n\
                    capacity = \"1 Gbit/s\"\n";
        let terms: Terms = toml::from_str(text).unwrap();
        let set = |terms: &Terms| {
            let terms = Some(terms.clone());
            Event::ChangeSettings(SettingsRequest { terms, ..SettingsRequest::default() })
        };
        bench.event(set(&terms));
        let problem = bench.controller.problem(bench.time()).unwrap();
        let standard = &problem.inputs().relay_types[0];
        assert_eq!((standard.set_up, standard.capacity.as_mbps()), (usd(24.0), 100.0));
        let region = problem.inputs().regions[0].clone();
        assert_eq!(prices::cost(&terms, Some(&region), None, 2_000_000_000), usd(1.0));
        let relay_host = |bench: &Bench| bench.state().relay_hosts(bench.now).next().cloned();
        let hour = prices::machine(&terms, &relay_host(&bench).unwrap(), 3_600_000);
        assert_eq!(hour, usd(1.0));
        // A type of a host, or of an open invite, stays.
        let relay_type = "rack".parse().unwrap();
        let secret = bench.invite(Role::Relay { region, relay_type });
        let refusal = bench.refusal(set(&Terms::default()));
        assert!(refusal.to_string().contains("no relay type `rack`"), "{refusal}");
        bench.event(Bench::request(4, secret));
        let refusal = bench.refusal(set(&Terms::default()));
        assert!(refusal.to_string().contains("no relay type `rack`"), "{refusal}");
        assert_eq!(bench.state().settings.terms, terms);
    }

    #[test]
    fn settings_change_together_or_not_at_all() {
        let mut bench = Bench::new();
        let good = SettingsRequest {
            alarm_share: Some(0.5),
            control_share: Some(Ratio::new(0.1).unwrap()),
            mode: Some(Mode::Auto),
            ..SettingsRequest::budget(Money::from_usd(5.0).unwrap())
        };
        let (before, lines) = (bench.state().settings.clone(), bench.state().audit.len());
        for wrong in [
            SettingsRequest { control_share: Some(Ratio::new(0.6).unwrap()), ..good.clone() },
            SettingsRequest { alarm_share: Some(1.1), ..good.clone() },
            SettingsRequest { alarm_share: Some(f64::NAN), ..good.clone() },
            SettingsRequest { relay_setup: Some(Duration::from_secs(1801)), ..good.clone() },
        ] {
            let refusal = bench.refusal(Event::ChangeSettings(wrong));
            assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal}");
            assert_eq!((&bench.state().settings, bench.state().audit.len()), (&before, lines));
        }
        bench.event(Event::ChangeSettings(good));
        assert_eq!(bench.state().settings.mode, Mode::Auto);
        assert_eq!(bench.state().settings.alarm_share, Some(0.5));
        assert_eq!(bench.state().audit.len(), lines + 4);
        // What is absent stays.
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Suggest)));
        assert_eq!(bench.state().settings.alarm_share, Some(0.5));
    }

    #[test]
    fn each_action_of_the_operator_is_in_the_audit_log() {
        let mut bench = Bench::new();
        bench.join(1, relay("gcp:us-east1"));
        let id = host("gcp:us-east1-1");
        let budget = Money::from_usd(5.0).unwrap();
        for event in [
            Event::AddFlow(flow("a", 7)),
            Event::RemoveFlow(flow("a", 7).id),
            Event::ChangeSettings(SettingsRequest::budget(budget)),
            Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)),
            Event::Drain { host: id.clone(), is_drained: true },
            Event::Revoke(id.clone()),
        ] {
            let lines = bench.state().audit.len();
            bench.event(event);
            assert_eq!(bench.state().audit.len(), lines + 1);
            assert_eq!(bench.state().audit.last_key_value().unwrap().1.actor, OPERATOR);
        }
        assert_eq!(bench.state().settings.budget_usd_per_day, budget);
        assert!(matches!(bench.refusal(Event::Revoke(id)), Refusal::Conflict(_)));
        let gone = Event::RemoveFlow(flow("a", 7).id);
        assert!(matches!(bench.refusal(gone), Refusal::NotFound(_)));
    }
}
