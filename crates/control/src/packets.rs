//! The part of packet flows in plans, and what gateways report of them.
//!
//! A plan reserves their highest possible cost before the streams are planned, then gives each the
//! cheapest service over the relays that the streams pay for, and others. A flow that no service
//! can carry within the budget goes over the Internet alone, and says why.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::packet::Tariff;
use tradewind_plan::packets::{
    FLOWS_PER_MACHINE, PacketFlow, Packets, RelayPrices, ServedPackets, Unplanned,
};
use tradewind_plan::service::Demand;
use tradewind_plan::{Inputs, Plan};
use tradewind_units::{
    Duration, HostId, Money, Ratio, RegionId, RelayId, RelayTypeId, SiteId, one_line,
};

use crate::by_path::ByPath;
use crate::draft::DAY_MS;
use crate::message::{CARRIES_PACKETS, SessionBatch};
use crate::money;
use crate::packet_flow::{DayPackets, PacketCounts, PacketFlowRecord, PacketTally, PlannedPackets};
use crate::path_loss::{self, ExpectedLoss};
use crate::record::{Host, PlanRecord, Record, Role};
use crate::removed::RemovedFlows;
use crate::sessions::MAX_COUNT;
use crate::state::State;
use crate::tenants;

/// The time that costs are for: flows send all day.
const DAY: Duration = Duration::from_secs(86_400);
const HOURS: u32 = 24;
/// Longest service and reason that are kept. Chosen: far longer than a gateway's.
const MAX_TEXT: usize = 200;
/// Highest price of a GB that relays can have been told, in dollars. Chosen: several times the
/// dearest of the catalogue.
const MAX_USD_PER_GB: f64 = 1.0;
/// The most bytes that relays send for one of a flow, headers and repair packets included. Chosen:
/// small packets over several relays.
const MAX_COPIES: f64 = 16.0;

/// Returns the host whose gateway delivers a packet flow: the first one of its site that can.
pub(crate) fn receiver<'a>(state: &'a State, flow: &PacketFlowRecord) -> Option<&'a Host> {
    let mut hosts = state.index.hosts_of(&flow.to_site).filter_map(|id| state.hosts.get(id));
    hosts.find(|host| matches!(host.role, Role::Gateway { .. }) && carries_packets(state, host))
}

/// Returns whether a host takes part in packet flows.
pub(crate) fn carries_packets(state: &State, host: &Host) -> bool {
    host.is_trusted && packet_ineligibility(state, host).is_none()
}

/// Returns why a trusted host takes no part in packet flows, if so. The bounds of an owner hold for
/// streams alone.
fn packet_ineligibility(state: &State, host: &Host) -> Option<&'static str> {
    let is_bounded = || state.seen.get(&host.id).is_some_and(|seen| seen.bounds.is_some());
    if host.config_version < CARRIES_PACKETS {
        Some("runs an agent too old for packets")
    } else if is_bounded() {
        Some("has an owner who bounds rate or spend, which packets do not keep to")
    } else {
        None
    }
}

/// Returns why no host can carry a flow now, not even over the Internet alone; `None` if one can.
pub(crate) fn unable(state: &State, flow: &PacketFlowRecord) -> Option<String> {
    [(&flow.from, "sends"), (&flow.to_site, "takes")]
        .into_iter()
        .find_map(|(site, verb)| gateway_unable(state, site, verb))
}

fn gateway_unable(state: &State, site: &SiteId, verb: &str) -> Option<String> {
    let hosts = state.index.hosts_of(site).filter_map(|id| state.hosts.get(id));
    let is_gateway = |host: &&Host| matches!(host.role, Role::Gateway { .. }) && host.is_trusted;
    let gateways: Vec<&Host> = hosts.filter(is_gateway).collect();
    if gateways.iter().any(|host| carries_packets(state, host)) {
        return None;
    }
    let why = gateways
        .first()
        .map(|host| (&host.id, packet_ineligibility(state, host).unwrap_or_default()));
    let why = why.map_or("none has joined".to_owned(), |(id, why)| format!("{id} {why}"));
    Some(format!("no gateway at {site} {verb} packet flows: {why}"))
}

/// Relays that packet flows may take: those of the streams' plan on hosts that carry packets, and
/// further such hosts.
pub(crate) struct PacketRelays<'a> {
    /// The streams' plan, if it is made.
    streams: Option<&'a Plan>,
    /// Its relays on hosts that carry no packets.
    barred: BTreeSet<RelayId>,
    /// The number of relays that there may be of each kind, those of the streams included.
    most: BTreeMap<(RegionId, RelayTypeId), usize>,
    /// Hosts of relays that carry no packets, each with the reason.
    barred_hosts: BTreeMap<HostId, &'static str>,
}

impl<'a> PacketRelays<'a> {
    /// Returns those of `hosts` beside no streams' plan.
    pub(crate) fn alone<'b>(state: &State, hosts: impl Iterator<Item = &'b Host>) -> Self {
        let (streams, barred) = (None, BTreeSet::new());
        let (most, barred_hosts) = (BTreeMap::new(), BTreeMap::new());
        let mut able = Self { streams, barred, most, barred_hosts };
        for host in hosts {
            let Role::Relay { region, relay_type } = &host.role else { continue };
            if carries_packets(state, host) {
                *able.most.entry((region.clone(), relay_type.clone())).or_default() += 1;
            } else {
                let why = packet_ineligibility(state, host).unwrap_or("is not trusted");
                able.barred_hosts.insert(host.id.clone(), why);
            }
        }
        able
    }

    /// Returns those of `hosts` beside a streams' plan on hosts of its own.
    pub(crate) fn beside<'b>(
        state: &State,
        streams: &'a Plan,
        of_streams: &BTreeMap<RelayId, HostId>,
        hosts: impl Iterator<Item = &'b Host>,
    ) -> Self {
        let mut able = Self::alone(state, hosts);
        able.streams = Some(streams);
        for relay in &streams.relays {
            let host = of_streams.get(&relay.id);
            if host.is_none_or(|id| able.barred_hosts.contains_key(id)) {
                // It counts beside those that carry packets.
                let kind = (relay.region.clone(), relay.relay_type.clone());
                *able.most.entry(kind).or_default() += 1;
                able.barred.insert(relay.id.clone());
            }
        }
        able
    }

    /// Returns the planner's inputs with the quotas of these relays.
    fn inputs(&self, inputs: &Inputs) -> Inputs {
        let most = |kind: &(RegionId, RelayTypeId)| self.most.get(kind).copied().unwrap_or(0);
        let most = inputs.most.keys().map(|kind| (kind.clone(), most(kind))).collect();
        Inputs { most, ..inputs.clone() }
    }

    /// Returns a reason with the hosts that could not be planned over, if there are any.
    fn with_barred(&self, reason: &str) -> String {
        let Some((first, why)) = self.barred_hosts.first_key_value() else {
            return reason.to_owned();
        };
        let others = match self.barred_hosts.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more relays carry no packets"),
        };
        format!("{reason}; {first} {why}{others}")
    }
}

/// Returns a packet flow as the planner takes it.
pub(crate) fn flow_of(flow: &PacketFlowRecord, loss: Ratio) -> PacketFlow {
    PacketFlow {
        id: flow.id.clone(),
        source: flow.from.clone(),
        destination: flow.to_site.clone(),
        rate: flow.rate(),
        packet: flow.packet,
        span: DAY,
        demand: Demand { budget: flow.budget, bearable: flow.max_loss },
        loss,
        helper_rtt: None,
    }
}

/// Returns the prices of relays for packet flows, in each region with one: those of the dearest of
/// its machines, for an hour.
fn prices(inputs: &Inputs) -> BTreeMap<RegionId, RelayPrices> {
    let vm_hour = |region: &RegionId| {
        let is_there = |id| inputs.most.get(&(region.clone(), id)).is_some_and(|most| *most > 0);
        let there = inputs.relay_types.iter().filter(|it| is_there(it.id.clone()));
        there.map(|it| it.set_up.shared_by(HOURS)).max().unwrap_or_default()
    };
    let prices = |region: &RegionId| RelayPrices {
        vm_hour: vm_hour(region),
        flows: FLOWS_PER_MACHINE,
        ingress: Tariff::FREE,
        egress: None,
        storage_gb_hour: Money::ZERO,
    };
    inputs.regions.iter().map(|region| (region.clone(), prices(region))).collect()
}

/// Plans the packet flows over the relays of the streams' plan and others, for what that plan
/// leaves of the budget; without one, over machines of which none is paid.
pub(crate) fn plan(
    state: &State,
    now: u64,
    inputs: &Inputs,
    able: &PacketRelays<'_>,
) -> PlannedPackets {
    let inputs = &able.inputs(inputs);
    let streams = able.streams;
    let older = able.barred_hosts.keys().cloned().collect();
    let mut planned = PlannedPackets { older, ..PlannedPackets::default() };
    let mut packets =
        Packets { prices: prices(inputs), barred: able.barred.clone(), ..Packets::default() };
    for flow in state.packet_flows.values() {
        planned.flows.push(flow.clone());
        let ExpectedLoss { loss, basis, is_measured } = path_loss::expected(state, now, flow);
        planned.expected.insert(flow.id.clone(), loss);
        if is_measured {
            planned.measured.insert(flow.id.clone());
        }
        if let Some(why) = unable(state, flow) {
            planned.left_out.insert(flow.id.clone(), why);
            continue;
        }
        packets.flows.push(flow_of(flow, loss));
        planned.losses.insert(flow.id.clone(), basis);
    }
    let spent = streams.map_or(Money::ZERO, |plan| plan.cost);
    let budget = inputs.budget.checked_sub(spent).unwrap_or_default();
    loop {
        let served =
            packets.plan_within(inputs, streams, budget).map_err(|error| error.to_string());
        let served = served.and_then(|served| {
            packets.flows.retain(|flow| !served.left_out.contains_key(&flow.id));
            checked(&packets, inputs, streams, served)
        });
        let ServedPackets { plan, left_out } = match served {
            Ok(served) => served,
            Err(problem) => {
                state.packet_flows.keys().cloned().for_each(|flow| {
                    planned.left_out.entry(flow).or_insert_with(|| problem.clone());
                });
                return planned;
            }
        };
        planned.left_out.extend(left_out.into_iter().map(|(flow, why)| match why {
            Unplanned::NoService(error) => (flow, able.with_barred(&error.to_string())),
            Unplanned::Unpaid => (flow, why.to_string()),
        }));
        let beyond = tenants::beyond(state, now, &plan);
        if beyond.is_empty() {
            return PlannedPackets { plan, ..planned };
        }
        packets.flows.retain(|flow| !beyond.contains(&flow.id));
        let why = "the budget of its tenant does not suffice for it";
        planned.left_out.extend(beyond.into_iter().map(|flow| (flow, why.to_owned())));
    }
}

/// Returns a plan in which the verifier finds nothing.
fn checked(
    packets: &Packets,
    inputs: &Inputs,
    streams: Option<&Plan>,
    served: ServedPackets,
) -> Result<ServedPackets, String> {
    let found = streams.map(|streams| packets.verify(inputs, streams, &served.plan));
    match found.and_then(|found| found.into_iter().next()) {
        None => Ok(served),
        Some(found) => {
            Err(format!("the plan of packet flows is wrong, which is a bug of ours: {found}"))
        }
    }
}

/// Returns what a plan's packet flows rest on, a line each.
pub(crate) fn rests_on(planned: &PlannedPackets) -> impl Iterator<Item = String> {
    planned.losses.iter().map(|(flow, basis)| format!("packet flow {flow}: {basis}"))
}

/// Returns which packet flows are declared otherwise than when the plan was made, which are
/// expected to lose more or less than they tolerate by now, and which hosts carry them otherwise.
pub(crate) fn changed(state: &State, now: u64, plan: &PlanRecord) -> Vec<String> {
    let changed = |flow: &PacketFlowRecord| match plan.packets.record(&flow.id) {
        None => Some(format!("packet flow {} is not planned", flow.id)),
        Some(known) if known != flow => Some(format!("packet flow {} was declared anew", flow.id)),
        Some(_) => carried_otherwise(state, plan, flow)
            .or_else(|| another_loss(state, now, &plan.packets, flow)),
    };
    let gone = plan.packets.flows.iter().map(|flow| &flow.id);
    let gone = gone.filter(|id| !state.packet_flows.contains_key(*id));
    let gone = gone.map(|id| format!("packet flow {id} was removed"));
    let newer = plan.packets.older.iter().filter_map(|id| state.hosts.get(id));
    let newer = newer.filter(|host| carries_packets(state, host));
    let newer = newer.map(|host| format!("host {} can carry packets by now", host.id));
    state.packet_flows.values().filter_map(changed).chain(gone).chain(newer).collect()
}

/// Returns that a planned flow can be carried by now, or no longer, if so.
fn carried_otherwise(state: &State, plan: &PlanRecord, flow: &PacketFlowRecord) -> Option<String> {
    let is_planned = plan.packets.losses.contains_key(&flow.id);
    if let Some(why) = unable(state, flow) {
        return is_planned.then(|| format!("packet flow {}: {why}", flow.id));
    }
    if !is_planned {
        return Some(format!("packet flow {} can be carried by now", flow.id));
    }
    let planned = plan.packets.planned(&flow.id)?;
    let hosts = planned.path.iter().filter_map(|relay| plan.hosts.get(relay));
    let mut hosts = hosts.filter_map(|id| state.hosts.get(id));
    let older = hosts.find(|host| host.is_trusted && !carries_packets(state, host))?;
    Some(format!("packet flow {}: host {} carries packets no longer", flow.id, older.id))
}

/// Returns that a flow that was planned is expected to lose more than it tolerates on the Internet,
/// or no longer, other than the plan counts on.
fn another_loss(
    state: &State,
    now: u64,
    planned: &PlannedPackets,
    flow: &PacketFlowRecord,
) -> Option<String> {
    planned.losses.get(&flow.id)?;
    let before = planned.loss_of(&flow.id)?;
    let after = path_loss::expected(state, now, flow).loss;
    let is_tolerated = |loss: Ratio| loss.as_f64() <= flow.max_loss.as_f64();
    let (id, most) = (&flow.id, flow.max_loss);
    (is_tolerated(before) != is_tolerated(after)).then(|| {
        format!("packet flow {id}: loss {after} on the Internet, was {before}; tolerates {most}")
    })
}

/// Returns the reason for which a packet flow has its service and relays now; `in_effect` are the
/// packet flows of the plan in effect, `stopped` says why its tenant's budget pays nothing.
pub(crate) fn why(
    state: &State,
    flow: &PacketFlowRecord,
    in_effect: Option<&PlannedPackets>,
    stopped: Option<String>,
) -> String {
    if let Some(why) = unable(state, flow) {
        return format!("not carried: {why}");
    }
    if let Some(why) = stopped {
        return why;
    }
    let Some(packets) = in_effect else {
        return "no plan is in effect: the Internet alone".to_owned();
    };
    if !packets.has_ends_of(flow) {
        return "the plan was made before it was known: the Internet alone".to_owned();
    }
    if let Some(reason) = packets.left_out.get(&flow.id) {
        return format!("the Internet alone: {reason}");
    }
    let planned = packets.planned(&flow.id);
    let host = |relay: &RelayId| state.hosts.get(&HostId::new(relay.as_str()).ok()?);
    let mut hosts = planned.into_iter().flat_map(|planned| &planned.path).filter_map(host);
    if let Some(older) = hosts.find(|host| !carries_packets(state, host)) {
        return format!("the Internet alone: host {} carries packets no longer", older.id);
    }
    let loss = packets.losses.get(&flow.id).map_or("", String::as_str);
    if planned.is_some_and(|planned| !planned.path.is_empty()) {
        format!("the cheapest service that meets its budget; {loss}")
    } else {
        format!("the Internet alone meets its budget; {loss}")
    }
}

/// Returns why the controller should put the packet flows of a new plan into effect, if it should:
/// one gets relays, and the old plan gives it none that carry packets; or one needs none any more.
/// The expected loss of a flow has a hysteresis of its own, so that neither swings.
pub(crate) fn reason_to_apply(
    state: &State,
    old: &PlanRecord,
    new: &PlannedPackets,
) -> Option<String> {
    let host = |relay: &RelayId| state.hosts.get(old.hosts.get(relay)?);
    let carries = |relay: &RelayId| host(relay).is_some_and(|host| carries_packets(state, host));
    let mut flows = new.plan.flows.iter().filter(|flow| !flow.path.is_empty());
    let gains = flows.find(|flow| {
        let path = old.packets.planned(&flow.id).map_or(&[][..], |planned| &planned.path);
        let has_relays = !path.is_empty() && path.iter().all(carries);
        !has_relays || old.packets.record(&flow.id) != new.record(&flow.id)
    });
    let gains =
        gains.map(|flow| format!("packet flow {} gets {} over relays", flow.id, flow.service));
    gains.or_else(|| leaves_relays(state, &old.packets, new))
}

/// Returns that a packet flow leaves its relays by the new plan, if one does: the Internet alone
/// meets its budget, or nothing does any more that is paid.
fn leaves_relays(state: &State, old: &PlannedPackets, new: &PlannedPackets) -> Option<String> {
    let mut relayed = old.plan.flows.iter().filter(|flow| !flow.path.is_empty());
    relayed.find_map(|before| {
        let flow = state.packet_flows.get(&before.id).filter(|flow| new.has_ends_of(flow))?;
        let id = &flow.id;
        match (new.planned(id), new.left_out.get(id)) {
            (Some(planned), _) if planned.path.is_empty() => {
                Some(format!("packet flow {id} goes direct: the Internet alone meets its budget"))
            }
            (None, Some(why)) => Some(format!("packet flow {id} goes direct: {why}")),
            _ => None,
        }
    })
}

/// Adds the records of the packets of a batch: the new sums of its day. Returns the cost of their
/// traffic.
pub(crate) fn take(
    state: &State,
    now: u64,
    host: &Host,
    batch: &SessionBatch,
    records: &mut Vec<Record>,
) -> Money {
    let Role::Gateway { site } = &host.role else { return Money::ZERO };
    if batch.packets.is_empty() {
        return Money::ZERO;
    }
    let day = now / DAY_MS;
    let of_site = state.packet_flows.values().filter(|flow| flow.from == *site);
    let flows: BTreeMap<_, _> = of_site.map(|flow| (flow.listen, flow)).collect();
    let mut sums: BTreeMap<_, DayPackets> = BTreeMap::new();
    let mut cost = Money::ZERO;
    let mut removed = RemovedFlows::new(state, day);
    for tally in batch.packets.iter().filter(|tally| is_possible(&tally.counts)) {
        let Some(flow) = flows.get(&tally.listen).copied() else {
            cost = cost.saturating_add(removed.charge(site, tally));
            continue;
        };
        let known = sums.get(&flow.id).or_else(|| state.packets.get(&(day, flow.id.clone())));
        let before = known.map(|known| known.counts).unwrap_or_default();
        // A gateway's word costs no more than the flow as it was declared can.
        let left = most_of_day(flow).checked_sub(before.usd).unwrap_or_default();
        let usd = tally.counts.usd.min(left);
        let counts = before.plus(PacketCounts { usd, ..tally.counts });
        if counts.largest() > MAX_COUNT {
            continue;
        }
        cost = cost.saturating_add(usd);
        let PacketTally { service, why, .. } = tally;
        let [service, why] = [service, why].map(|text| one_line(text, MAX_TEXT));
        let mut by_path = known.map(ByPath::of_day).unwrap_or_default();
        let before = sums.get(&flow.id).map(|before| before.service.as_str());
        let service_before = before.or_else(|| path_loss::service_before(state, day, flow));
        by_path.add(&tally.counts, &service, service_before);
        let (id, by_path) = (flow.id.clone(), Some(by_path));
        let packets = DayPackets { flow: id, day, service, why, counts, by_path };
        sums.insert(flow.id.clone(), packets);
    }
    records.extend(sums.into_values().map(Record::Packets));
    removed.into_records(records);
    cost
}

/// Returns what the packets of a flow may still cost today.
pub(crate) fn left_of_day(state: &State, now: u64, flow: &PacketFlowRecord) -> Money {
    let known = state.packets.get(&(now / DAY_MS, flow.id.clone()));
    let known = known.map(|known| known.counts.usd).unwrap_or_default();
    most_of_day(flow).checked_sub(known).unwrap_or_default()
}

/// Returns the most that a flow's packets may cost in a day.
fn most_of_day(flow: &PacketFlowRecord) -> Money {
    let bytes = flow.packets_per_second * flow.packet.as_u64() as f64 * DAY.as_secs_f64();
    Money::from_usd(bytes / 1e9 * MAX_COPIES * MAX_USD_PER_GB).unwrap_or(money::most())
}

/// Returns whether relays may have sent so much at that price.
fn is_possible(counts: &PacketCounts) -> bool {
    let most = counts.relay_bytes as f64 / 1e9 * MAX_USD_PER_GB;
    counts.largest() <= MAX_COUNT && counts.usd.as_usd() <= most * (1.0 + 1e-6) + 1e-9
}
