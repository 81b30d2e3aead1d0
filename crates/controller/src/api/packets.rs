//! Packet flows in the API.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::Extension;
use axum::extract::{Path, Request, State};
use tradewind_control::packet_flow::{PacketCounts, PacketFlowRecord};
use tradewind_control::tenants::why_stopped;
use tradewind_control::{Controller, Event, Refusal};
use tradewind_plan::packets::BEARABLE_LOSS;
use tradewind_stream::clock::unix_now;
use tradewind_units::{FlowId, HostId, Ratio};

use super::guard::Rights;
use super::handlers::{MAX_BYTES, MAX_DAYS, check_listen, days, named};
use super::{Shared, tenants};
use crate::answer::{self, Answered, Problem};
use crate::engine::{DAY_MS, millis};
use crate::view::{PacketFlowRequest, PacketFlowView, PacketFlows, SCHEMA_VERSION};

/// The first port that is given to a packet flow which names none. Chosen: below the ports that
/// Linux gives to connections, and beside those of streams.
const FIRST_PORT: u16 = 16_000;

pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    request: Request,
) -> Answered {
    let days = days(request.uri().query())?;
    let shown = move |controller: &Controller| {
        let flows = controller.state().packet_flows.values();
        let flows = flows.filter(|flow| tenants::sees(controller, &rights, &flow.id));
        let flows = flows.map(|flow| view(controller, flow, days)).collect();
        PacketFlows { schema_version: SCHEMA_VERSION, days, flows }
    };
    answer::ok(&shared.engine.read(shown).await)
}

pub(super) async fn add(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let id: FlowId = named(&id)?;
    let query = request.uri().query().map(str::to_owned);
    let request: PacketFlowRequest = answer::body(request, MAX_BYTES).await?;
    check_listen(&rights, request.listen)?;
    let name = id.clone();
    let flow = shared.engine.read(move |controller| record_of(controller, name, request)).await?;
    let event = Event::AddPacketFlow(flow);
    shared.engine.handle(tenants::of_tenant(&rights, query.as_deref(), event)?).await?;
    let shown = move |controller: &Controller| {
        let flow = controller.state().packet_flows.get(&id);
        let gone = || Refusal::NotFound(format!("there is no packet flow `{id}`"));
        flow.map(|flow| view(controller, flow, 1)).ok_or_else(gone)
    };
    answer::ok(&shared.engine.read(shown).await?)
}

/// Fills in what the request for a packet flow leaves out.
fn record_of(
    controller: &Controller,
    id: FlowId,
    request: PacketFlowRequest,
) -> Result<PacketFlowRecord, Problem> {
    let PacketFlowRequest { from, to, to_site, packets_per_second, packet, budget, .. } = request;
    let flows = &controller.state().packet_flows;
    let listen = match (request.listen, flows.get(&id)) {
        (Some(listen), _) => listen,
        (None, Some(same)) if same.from == from => same.listen,
        (None, _) => {
            let is_taken = |port: u16| {
                flows.values().any(|flow| flow.from == from && flow.listen.port() == port)
            };
            let free = (FIRST_PORT..=u16::MAX).find(|port| !is_taken(*port));
            let none = || Problem::invalid("listen: no port is left at this site; name one");
            SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), free.ok_or_else(none)?)
        }
    };
    let bearable = || Ratio::new(BEARABLE_LOSS).unwrap_or_default();
    Ok(PacketFlowRecord {
        id,
        from,
        to,
        to_site,
        packets_per_second,
        packet,
        budget,
        max_loss: request.max_loss.unwrap_or_else(bearable),
        listen,
        service: request.service.unwrap_or_default(),
    })
}

fn view(controller: &Controller, flow: &PacketFlowRecord, days: u64) -> PacketFlowView {
    let state = controller.state();
    let now = unix_now();
    let today = millis(now) / DAY_MS;
    let of_day = |day: u64| state.packets.get(&(day, flow.id.clone()));
    let by_day: Vec<_> =
        (today.saturating_sub(days - 1)..=today).filter_map(of_day).cloned().collect();
    let counts = by_day.iter().fold(PacketCounts::default(), |sum, day| sum.plus(day.counts));
    let newest = (today.saturating_sub(MAX_DAYS - 1)..=today).rev().find_map(of_day);
    let in_effect = controller.packets_in_effect(now);
    let is_stopped = why_stopped(state, millis(now), &flow.id).is_some();
    let planned = in_effect
        .filter(|packets| packets.has_ends_of(flow) && !is_stopped)
        .and_then(|packets| packets.planned(&flow.id));
    let host = |relay: &tradewind_units::RelayId| HostId::new(relay.as_str()).ok();
    let path: Vec<HostId> =
        planned.into_iter().flat_map(|planned| &planned.path).filter_map(host).collect();
    PacketFlowView {
        why: controller.why_packets(now, flow),
        planned: planned.cloned(),
        path,
        service_now: newest.map(|day| day.service.clone()),
        recovered: counts.recovered(),
        counts,
        by_day,
        flow: flow.clone(),
    }
}
