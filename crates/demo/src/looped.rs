//! The loop of a controller, as an operator leads it: flows, budget and prices are declared; the
//! controller measures and plans; the plan is put into effect.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tradewind_control::predict::Predictor;
use tradewind_control::record::{FlowRecord, PlanRecord, Role as HostRole, Step};
use tradewind_control::terms::{RelayTerms, Terms};
use tradewind_controller::Client;
use tradewind_controller::view::{
    FlowRequest, FlowView, HostState, Hosts, Measurements, PlanView, SettingsRequest, SettingsView,
    Status,
};
use tradewind_grant::Destination;
use tradewind_model::StartUp;
use tradewind_model::fct::{path_fct, path_rate};
use tradewind_model::measurement::LegMeasurement;
use tradewind_units::{Bytes, Duration, FlowId, Ratio, RelayId, SiteId, time};

use crate::controlled::Controlled;
use crate::overlay::{self, OverlayHost};
use crate::processes::{LabContext, ProcessError};
use crate::report::MeasuredLeg;
use crate::scenario::Scenario;
use crate::transfers::{PathKind, Transfer};
use crate::{DemoError, host_of};

/// The port of the first flow's receiver.
const FIRST_RECEIVER_PORT: u16 = 8001;
/// Longest wait for all round-trip times. Chosen: they take ten seconds.
const TO_MEASURE: Duration = Duration::from_secs(60);
/// Time after which no rate test is under way when none is begun any more. Chosen: the longest test
/// with its report.
const LAST_RATES: Duration = Duration::from_secs(16);
/// Longest wait until all hosts run what they should. Chosen: it takes five seconds.
const TO_APPLY: Duration = Duration::from_secs(60);

/// The bounds on a run's time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// The time for rate tests; none are made without.
    rate_tests: Option<Duration>,
    /// The time since the begin of the run after which invalid transfers are not repeated, so that
    /// a run ends in time.
    pub(crate) repeats_until: Duration,
}

impl Effort {
    /// Rates are tested as by default, for some time.
    pub(crate) const FULL: Self =
        Self { rate_tests: Some(Duration::from_secs(40)), repeats_until: Duration::from_secs(140) };
    /// Plans rest on round-trip times alone.
    pub(crate) const QUICK: Self =
        Self { rate_tests: None, repeats_until: Duration::from_secs(32) };
}

/// Returns the scenario's hosts: gateways at its sites, relays in its regions.
pub(crate) fn hosts(
    scenario: &Scenario,
    context: &LabContext,
) -> Result<Vec<OverlayHost>, ProcessError> {
    let sites = scenario.sites.iter().map(|site| (site.clone(), None));
    let regions = scenario.regions.iter().map(|region| (region.clone().into(), Some(region)));
    let host = |(place, region): (SiteId, Option<&tradewind_units::RegionId>)| {
        let name = host_of(&place);
        let role = match region {
            None => HostRole::Gateway { site: place },
            Some(region) => {
                HostRole::Relay { region: region.clone(), relay_type: overlay::relay_type() }
            }
        };
        let address = IpAddr::V4(context.lab.address_v4(&name)?);
        Ok(OverlayHost { name, role, address })
    };
    sites.chain(regions).map(host).collect()
}

/// Returns the number of legs that the controller measures: between all places, but between sites
/// those of flows alone, which are all as well.
pub(crate) fn legs(scenario: &Scenario) -> usize {
    let places = scenario.sites.len() + scenario.regions.len();
    places * (places - 1)
}

/// Declares budget, prices and flows. No session goes direct by lot: each flow has one of each.
pub(crate) fn declare(
    client: &Client,
    scenario: &Scenario,
    context: &LabContext,
    effort: &Effort,
) -> Result<(), DemoError> {
    let relay = &scenario.relay;
    let terms = RelayTerms {
        usd_per_day: relay.setup,
        capacity: relay.capacity,
        per_connection: Some(relay.per_connection),
    };
    let terms = Terms {
        egress_usd_per_gb: Some(relay.egress),
        relay_types: BTreeMap::from([(overlay::relay_type(), terms)]),
    };
    set(
        client,
        &SettingsRequest {
            control_share: Some(Ratio::ZERO),
            terms: Some(terms),
            tests_share: effort.rate_tests.is_none().then_some(Ratio::ZERO),
            ..SettingsRequest::budget(scenario.budget)
        },
    )?;
    for ((from, to), port) in scenario.flows().zip(FIRST_RECEIVER_PORT..) {
        let address = IpAddr::V4(context.lab.address_v4(&host_of(to)).map_err(ProcessError::from)?);
        let to_address = Destination::address(SocketAddr::new(address, port));
        let request = FlowRequest {
            from: from.clone(),
            to: to_address.map_err(ProcessError::from)?,
            to_site: Some(to.clone()),
            per_day: scenario.volume_nominal,
            weight: None,
            listen: None,
        };
        let id = FlowId::new(format!("{from}.{to}"))?;
        let _: FlowView = client.put(&format!("/v1/flows/{id}"), &request)?;
    }
    Ok(())
}

fn set(client: &Client, request: &SettingsRequest) -> Result<SettingsView, DemoError> {
    Ok(client.put("/v1/settings", request)?)
}

/// Waits until the controller has measured, and has it plan; `done` is called with the number of
/// legs whose round-trip time is known.
pub(crate) fn plan(
    overlay: &mut Controlled<'_>,
    scenario: &Scenario,
    effort: &Effort,
    mut done: impl FnMut(u64),
) -> Result<Planned, DemoError> {
    let all = legs(scenario);
    overlay.wait("round-trip times between all places", TO_MEASURE, |it| {
        let known = it.client.get::<Measurements>("/v1/measurements")?.legs.len();
        done(known as u64);
        Ok((known >= all).then_some(()))
    })?;
    if let Some(span) = effort.rate_tests {
        await_rates(overlay, span)?;
    }
    let view = make_plan(overlay)?;
    let settings: SettingsView = overlay.client.get("/v1/settings")?;
    Ok(Planned { record: view.record, terms: settings.terms })
}

/// Has the controller plan once all hosts are well: a plan leaves out those that are not.
fn make_plan(overlay: &mut Controlled<'_>) -> Result<PlanView, DemoError> {
    overlay.wait("all hosts well", TO_APPLY, |it| Ok(are_well(&it.client)?.then_some(())))?;
    Ok(overlay.client.post("/v1/plans", &())?)
}

fn are_well(client: &Client) -> Result<bool, DemoError> {
    let hosts: Hosts = client.get("/v1/hosts")?;
    Ok(hosts.hosts.iter().all(|host| host.state == HostState::Well))
}

/// Lets the controller test rates for `span`, then ends that: tests would disturb the transfers.
fn await_rates(overlay: &mut Controlled<'_>, span: Duration) -> Result<(), DemoError> {
    make_plan(overlay)?;
    overlay.pass(span)?;
    let tests_share = Some(Ratio::ZERO);
    set(&overlay.client, &SettingsRequest { tests_share, ..SettingsRequest::default() })?;
    overlay.pass(LAST_RATES)
}

/// Puts a plan into effect, and waits until all hosts run what they should.
pub(crate) fn apply(overlay: &mut Controlled<'_>, plan: &Planned) -> Result<(), DemoError> {
    let number = plan.record.number;
    if plan.record.hosts.is_empty() {
        return Ok(());
    }
    overlay.client.act(&format!("/v1/plans/{number}/apply"))?;
    overlay.wait("the plan in effect", TO_APPLY, |it| {
        let status: Status = it.client.get("/v1/status")?;
        let is_in_effect = status.plan == Some(number) && status.step == Step::Done;
        Ok((is_in_effect && are_well(&it.client)?).then_some(()))
    })
}

/// A plan of the controller.
pub(crate) struct Planned {
    /// It.
    pub(crate) record: PlanRecord,
    /// The terms that it was made with.
    terms: Terms,
}

impl Planned {
    /// Returns the transfers to carry, with predictions at the carried volume: every flow direct,
    /// then those with a path over it.
    pub(crate) fn transfers(&self, volume: Bytes) -> Result<Vec<Transfer>, DemoError> {
        let flows: Vec<(&FlowRecord, &[RelayId])> = self.record.paths().collect();
        let all = flows.iter().enumerate();
        let planned = all.clone().filter(|(_, (_, path))| !path.is_empty());
        let direct = all.map(|(index, (flow, _))| (index, *flow, PathKind::Direct, &[][..]));
        let planned = planned.map(|(index, (flow, path))| (index, *flow, PathKind::Planned, *path));
        direct.chain(planned).map(|transfer| self.transfer(transfer, volume)).collect()
    }

    fn transfer(
        &self,
        (index, flow, kind, path): (usize, &FlowRecord, PathKind, &[RelayId]),
        volume: Bytes,
    ) -> Result<Transfer, DemoError> {
        let legs = Predictor::new(&self.terms, &self.record, &self.record.measurements);
        let legs = legs.path(flow, path).ok_or_else(|| DemoError::NoLegs(flow.id.to_string()))?;
        let Destination::Address(receiver) = flow.to else {
            return Err(DemoError::NoLegs(flow.id.to_string()));
        };
        let dial = match kind {
            PathKind::Direct => receiver,
            PathKind::Planned => flow.listen,
        };
        Ok(Transfer {
            flow: index,
            name: flow.id.clone(),
            kind,
            hosts: self.record.places(flow, path).iter().map(host_of).collect(),
            dial,
            receiver,
            rate: path_rate(&legs),
            volume,
            predicted: path_fct(&legs, volume, StartUp::Cold),
        })
    }

    /// Returns the regions of a flow's relays.
    pub(crate) fn regions(&self, flow: usize) -> Vec<String> {
        let Some((flow, path)) = self.record.paths().nth(flow) else { return Vec::new() };
        let places = self.record.places(flow, path);
        places[1..places.len() - 1].iter().map(ToString::to_string).collect()
    }

    /// Returns the rates that the plan knows.
    pub(crate) fn rates(&self) -> impl Iterator<Item = MeasuredLeg> {
        self.record.measurements.iter().filter_map(|leg| {
            let rate = leg.rate?;
            let bound_by = if rate.window.is_some() { "window" } else { "capacity" };
            Some(MeasuredLeg {
                source: leg.source.to_string(),
                destination: leg.destination.to_string(),
                rtt_ms: time::as_millis_f64(leg.rtt.min),
                rate_mbps: rate.rate.as_mbps(),
                bound_by: bound_by.to_owned(),
            })
        })
    }

    /// Returns the number of legs of the plan's paths whose rate was measured, and of all.
    pub(crate) fn measured_legs(&self) -> (usize, usize) {
        let is_measured = |from: &SiteId, to: &SiteId| {
            let is_it = |leg: &&LegMeasurement| leg.source == *from && leg.destination == *to;
            self.record.measurements.iter().find(is_it).is_some_and(|leg| leg.rate.is_some())
        };
        let mut legs: Vec<(SiteId, SiteId)> = Vec::new();
        for (flow, path) in self.record.paths() {
            let places = self.record.places(flow, path);
            legs.extend(places.windows(2).map(|pair| (pair[0].clone(), pair[1].clone())));
        }
        legs.sort();
        legs.dedup();
        (legs.iter().filter(|(from, to)| is_measured(from, to)).count(), legs.len())
    }
}
