//! The loss that the packets of a flow are expected to suffer on the Internet, which decides
//! whether it needs relays.
//!
//! Packets that relays forward tell nothing of it: they are counted apart. Those of a flow that a
//! plan gives no relays are not numbered, so nobody counts them. Meanwhile the handshakes of probes
//! between the flow's sites go on measuring the Internet path; a probe that fails altogether counts
//! as well, where the other site can be reached otherwise. They lose packets both ways, which is
//! taken as the loss of one: no path loses more than that. What was measured too long ago is not
//! taken for no loss: the flow keeps what the newest plan counts on.

use tradewind_plan::packets::{INTERNET_LOSS, PlannedPacketFlow};
use tradewind_units::{Duration, Ratio, SiteId};

use crate::by_path::{ByPath, Handshakes, PathPackets};
use crate::draft::DAY_MS;
use crate::message::{Probe, ProbeKind, ProbeOutcome};
use crate::packet_flow::{OWN_PACKETS, PacketFlowRecord};
use crate::record::{Host, PlanRecord};
use crate::state::{SEEN_WITHIN, State};

/// Days, today included, whose packets tell what a path loses.
const DAYS: u64 = 2;
/// The share of the loss that a flow tolerates below which it leaves its relays. Chosen: a loss
/// about the limit is counted differently each day, and moves the flow once.
const LEAVES_BELOW: f64 = 0.5;
/// Age of a measurement from another place that shows a site to be reachable. Chosen: a bit more
/// than the time between two of a leg that is not used.
const REACHED_WITHIN: Duration = Duration::from_secs(360);
/// Returns whether a site that `source` has reached before can be reached otherwise: its agent
/// reports, and another place has measured its way there lately.
fn is_reached_otherwise(state: &State, now: u64, source: &SiteId, to: &SiteId) -> bool {
    let is_recent = |at: u64| u128::from(now.abs_diff(at)) < REACHED_WITHIN.as_millis();
    let mut hosts = state.index.hosts_of(to);
    let mut legs = state.measurements.values().filter(|leg| leg.destination == *to);
    state.measurements.contains_key(&(source.clone(), to.clone()))
        && hosts.any(|host| state.was_seen(host, now, SEEN_WITHIN))
        && legs.any(|leg| leg.source != *source && leg.measured_at_unix_ms.is_some_and(is_recent))
}

/// Returns the sum with the handshakes of a probe, if it went from one site of a packet flow to the
/// other; `sums` are those of the same report.
pub(crate) fn handshakes(
    state: &State,
    now: u64,
    host: &Host,
    (probe, outcome): (&Probe, &ProbeOutcome),
    sums: &[Handshakes],
) -> Option<Handshakes> {
    let ProbeKind::Rtt { samples: sent, .. } = probe.kind else { return None };
    let source = host.role.site();
    state.packet_flows.values().find(|flow| flow.is_between(&source, &probe.to))?;
    let came = match outcome {
        ProbeOutcome::Rtt { samples, .. } => *samples,
        ProbeOutcome::Failed { .. } if is_reached_otherwise(state, now, &source, &probe.to) => 0,
        _ => return None,
    };
    let new = sums.iter().rev().find(|sum| sum.destination == probe.to);
    let key = (source.clone(), probe.to.clone());
    let known = new.or_else(|| state.handshakes.get(&key)).cloned();
    let nothing = PathPackets::default();
    let known = known.unwrap_or_else(|| Handshakes {
        source,
        destination: probe.to.clone(),
        day: now / DAY_MS,
        today: nothing,
        yesterday: nothing,
    });
    let mut sum = known.on(now / DAY_MS);
    let lost = u64::from(sent.saturating_sub(came));
    sum.today = sum.today.plus(PathPackets { expected: u64::from(sent), lost });
    Some(sum)
}

/// A loss that a flow is expected to suffer on the Internet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExpectedLoss {
    pub(crate) loss: Ratio,
    /// Its basis in words.
    pub(crate) basis: String,
    /// True if it was measured on the Internet path, now or before.
    pub(crate) is_measured: bool,
}

/// Returns the loss that a flow is expected to suffer on the Internet: of its own packets there,
/// else of the probes' handshakes, else what the newest plan counts on, else of a rate test,
/// else an assumption.
pub(crate) fn expected(state: &State, now: u64, flow: &PacketFlowRecord) -> ExpectedLoss {
    let before = PlannedBefore::of(state, flow);
    let measured = measured(state, now, flow);
    match (measured, before) {
        (Some((loss, basis)), Some(before)) if before.is_kept_at(loss, flow) => ExpectedLoss {
            loss: before.loss,
            basis: format!("{basis}: too near to what it tolerates to change what runs"),
            is_measured: true,
        },
        (Some((loss, basis)), _) => ExpectedLoss { loss, basis, is_measured: true },
        (None, Some(PlannedBefore { loss, plan, is_measured: true, .. })) => ExpectedLoss {
            loss,
            basis: format!(
                "loss {loss} as in plan {plan}: the Internet path was not measured since, and what \
                 runs is kept"
            ),
            is_measured: true,
        },
        (None, _) => unmeasured(state, flow),
    }
}

/// Returns the loss that was measured on the Internet path lately, and its basis.
fn measured(state: &State, now: u64, flow: &PacketFlowRecord) -> Option<(Ratio, String)> {
    let days = (now / DAY_MS).saturating_sub(DAYS - 1)..=now / DAY_MS;
    let of_days = days.filter_map(|day| state.packets.get(&(day, flow.id.clone())));
    let own =
        of_days.fold(PathPackets::default(), |sum, day| sum.plus(ByPath::of_day(day).internet));
    if let Some(loss) = own.loss() {
        return Some((loss, format!("loss {loss} of {} {OWN_PACKETS}", own.expected)));
    }
    let ends = (flow.from.clone(), flow.to_site.clone());
    let probed = state.handshakes.get(&ends)?.clone().on(now / DAY_MS);
    let loss = probed.loss()?;
    let sent = probed.today.plus(probed.yesterday).expected;
    Some((loss, format!("loss {loss} at most: of {sent} handshakes of probes, both ways")))
}

fn unmeasured(state: &State, flow: &PacketFlowRecord) -> ExpectedLoss {
    let ends = (flow.from.clone(), flow.to_site.clone());
    let tested = state.measurements.get(&ends).and_then(|leg| leg.rate?.retransmitted);
    let (loss, basis) = match tested {
        Some(loss) => (loss, format!("loss {loss}: resent in a rate test of the Internet path")),
        None => {
            let loss = Ratio::new(INTERNET_LOSS).unwrap_or_default();
            (loss, format!("loss {loss} assumed: none is measured yet"))
        }
    };
    ExpectedLoss { loss, basis, is_measured: false }
}

/// The part of a flow in plans before.
struct PlannedBefore {
    /// The newest plan, and the loss that it counts on.
    plan: u64,
    loss: Ratio,
    is_measured: bool,
    /// True if the flow has relays in the plan in effect.
    has_relays: bool,
}

impl PlannedBefore {
    fn of(state: &State, flow: &PacketFlowRecord) -> Option<Self> {
        let plan = state.newest_plan().filter(|plan| plan.packets.has_ends_of(flow))?;
        let in_effect = state.plan_in_effect().and_then(|plan| planned(plan, flow));
        Some(Self {
            plan: plan.number,
            loss: plan.packets.loss_of(&flow.id)?,
            is_measured: plan.packets.is_measured(&flow.id),
            has_relays: in_effect.is_some_and(|planned| !planned.path.is_empty()),
        })
    }

    /// Returns whether the flow keeps its relays at this loss: it tolerates that, but only just.
    fn is_kept_at(&self, loss: Ratio, flow: &PacketFlowRecord) -> bool {
        let (most, loss) = (flow.max_loss.as_f64(), loss.as_f64());
        let is_near = loss > most * LEAVES_BELOW && loss <= most;
        self.has_relays && self.loss.as_f64() > most && is_near
    }
}

/// Returns a flow's part in a plan that was made for the same ends.
fn planned<'a>(plan: &'a PlanRecord, flow: &PacketFlowRecord) -> Option<&'a PlannedPacketFlow> {
    plan.packets.planned(&flow.id).filter(|_| plan.packets.has_ends_of(flow))
}

/// Returns the service of a flow's packets before those of a report of this day.
pub(crate) fn service_before<'a>(
    state: &'a State,
    day: u64,
    flow: &PacketFlowRecord,
) -> Option<&'a str> {
    let of_day = |day: u64| state.packets.get(&(day, flow.id.clone()));
    let newest = of_day(day).or_else(|| of_day(day.checked_sub(1)?))?;
    Some(&newest.service)
}
