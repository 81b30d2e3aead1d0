//! A session whose path is open, from its first bytes to its end.

pub mod authorization;
pub mod buffer_pool;
pub mod open_flows;
pub mod opening;
pub mod pump;

use std::io;
use std::sync::Arc;

use tradewind_grant::{Destination, GrantId};
use tradewind_net::tcp;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::FlowId;

use crate::access_log::{Goes, SessionFacts, note};
use crate::connection::Connection;
use crate::connection::side::Side;
use crate::counts::Outcome;
use crate::dial::profile::Legs;
use crate::limits::memory::Memory;
use crate::limits::quota::{Meter, Slot};
use crate::limits::timeouts::LiveTimeouts;
use crate::process::worker::{Permit, Worker};
use crate::session::open_flows::OpenSession;
use crate::session::pump::{Broken, Direction, Pump, Stopped};
use crate::stripe::{Carry, End, Left, Offers};

/// A session whose path is open.
pub struct Session {
    /// The flow.
    pub flow: FlowId,
    /// The destination that was asked for.
    pub destination: Destination,
    /// The side that the session came from.
    pub upstream: Side<'static>,
    /// The side that was dialled.
    pub downstream: Side<'static>,
    /// The direction towards the destination.
    pub up: Direction,
    /// The direction back.
    pub down: Direction,
    /// Its place among its grant's sessions, at relays.
    pub place: Option<Slot<GrantId>>,
    /// Its memory limit, if there is one.
    pub memory: Option<Arc<Memory>>,
    /// Legs that may be striped; absent when neither may.
    pub offers: Option<Box<Offers>>,
    /// Its entry among the open sessions of its flow, at gateways.
    pub open: Option<OpenSession>,
}

/// The settings of sessions.
#[derive(Debug)]
pub struct SessionSettings {
    /// The timeouts in force.
    pub timeouts: LiveTimeouts,
    /// The profiles of legs.
    pub legs: Arc<Legs>,
}

impl Session {
    /// Creates a session between two sides whose read interest is enabled, without limits and not
    /// striped.
    pub fn between(
        (flow, destination): (FlowId, Destination),
        (upstream, up): (Connection, Direction),
        (downstream, down): (Connection, Direction),
    ) -> Self {
        let (upstream, downstream) = (Side::ReadEnabled(upstream), Side::ReadEnabled(downstream));
        Self {
            flow,
            destination,
            upstream,
            downstream,
            up,
            down,
            place: None,
            memory: None,
            offers: None,
            open: None,
        }
    }

    /// Applies the rate and memory limits of its connection, if there are any, and has its bytes
    /// counted in the connection's record.
    pub(crate) fn bind(&mut self, permit: &Permit) {
        if let Some(record) = permit.record() {
            self.up.record(record, Goes::Up);
            self.down.record(record, Goes::Down);
        }
        let by_grant = self.place.as_ref();
        self.memory = permit.memory(by_grant.and_then(|place| place.memory.clone()));
        let rates = permit.rates(by_grant.and_then(|place| place.rate.clone()));
        if !rates.is_empty() {
            for direction in [&mut self.up, &mut self.down] {
                direction.bind(Meter::through(&rates, direction.moved()));
            }
        }
    }

    /// Moves bytes until both directions have ended or one side has failed.
    ///
    /// This is no `async` function, since that holds its arguments twice: most of the memory of an
    /// idle session is its task.
    pub(crate) fn carry<'a>(
        self: Box<Self>,
        worker: &'a Worker,
        session_settings: &'a SessionSettings,
    ) -> impl Future<Output = Outcome> + Send {
        let mut pump = Pump { session: self, worker, session_settings };
        async move {
            match pump.run().await {
                // What follows takes memory that a session which moves bytes does not need.
                Ok(Stopped::Joined) => {
                    Box::pin((*pump.session).carry_striped(pump.worker, pump.session_settings))
                        .await
                }
                Ok(Stopped::Over) => match pump.session.end_in_order() {
                    Ok(()) => Outcome::Ended,
                    Err(error) => Box::pin(pump.session.break_off(pump.worker, error)).await,
                },
                Err(error) => Box::pin(pump.session.break_off(pump.worker, error)).await,
            }
        }
    }

    /// Ends a session that has failed.
    async fn break_off(&mut self, worker: &Worker, error: Broken) -> Outcome {
        let by_keepalive = self.ended_by_keepalive(&error);
        self.linger(worker, &error).await;
        let outcome = broken(&self.flow, &self.destination, &error);
        if by_keepalive {
            note(SessionFacts::note_keepalive);
        }
        outcome
    }

    /// Returns true if the kernel closed one side because it answered no keepalive probe while
    /// nothing was in flight to it.
    fn ended_by_keepalive(&self, error: &Broken) -> bool {
        let (side, error) = match error {
            Broken::Upstream(error) => (&self.upstream, error),
            Broken::Downstream(error) => (&self.downstream, error),
            Broken::Idle(_) => return false,
        };
        let is_late = error.kind() == io::ErrorKind::TimedOut;
        is_late && TcpInfo::of(side).is_ok_and(|info| info.ended_by_keepalive())
    }

    /// Delivers all that the failed side had sent before the reset.
    async fn linger(&mut self, worker: &Worker, error: &Broken) {
        let Self { upstream, downstream, up, down, memory, .. } = self;
        let memory = memory.as_ref();
        match error {
            Broken::Upstream(_) => {
                up.linger(upstream, downstream, worker.up_context().within(memory)).await;
            }
            Broken::Downstream(_) => {
                down.linger(downstream, upstream, worker.down_context().within(memory)).await;
            }
            Broken::Idle(_) => {}
        }
        [upstream, downstream].into_iter().for_each(|side| side.send_held_back());
    }

    /// Continues where the pump has stopped, with a striped leg.
    async fn carry_striped(self, worker: &Worker, session_settings: &SessionSettings) -> Outcome {
        let (flow, destination) = (self.flow, self.destination);
        let _held = (self.place, self.open);
        // Bytes that wait to be coalesced must not wait for frames.
        [&self.upstream, &self.downstream].into_iter().for_each(Side::send_held_back);
        let carrying = async {
            let offers = *self.offers.unwrap_or_default();
            let settled =
                session_settings.legs.of(&self.downstream).settled.apply(&self.downstream);
            settled.map_err(|error| Broken::Downstream(error.source))?;
            tcp::acknowledge_at_once(&self.downstream).map_err(Broken::Downstream)?;
            tcp::acknowledge_at_once(&self.upstream).map_err(Broken::Upstream)?;
            let up = self.up.leave(worker.up_context()).map_err(Broken::Upstream)?;
            let down = self.down.leave(worker.down_context()).map_err(Broken::Downstream)?;
            let upstream = Left::between(&up, &down, session_settings.legs.lifts_accepted());
            let ramp = session_settings.legs.of(&self.downstream).ramps();
            let downstream = Left::between(&down, &up, ramp);
            let connection = self.upstream.into_connection().map_err(Broken::Upstream)?;
            let upstream = End::new(connection, offers.up, upstream);
            let connection = self.downstream.into_connection().map_err(Broken::Downstream)?;
            let downstream = End::new(connection, offers.down, downstream);
            let memory = self.memory.as_ref();
            Carry::new((upstream, up), (downstream, down), worker, session_settings, memory)
                .run()
                .await
        };
        match carrying.await {
            Ok(()) => Outcome::Ended,
            Err(error) => broken(&flow, &destination, &error),
        }
    }

    /// Lets both sockets close in order, now that both directions have ended.
    fn end_in_order(&self) -> Result<(), Broken> {
        tcp::end_in_order_on_close(&self.upstream).map_err(Broken::Upstream)?;
        tcp::end_in_order_on_close(&self.downstream).map_err(Broken::Downstream)
    }
}

/// Logs that a flow broke off.
pub fn broken(flow: &FlowId, destination: &Destination, error: &Broken) -> Outcome {
    tracing::debug!(%flow, "flow to {destination} broke off: {error}");
    note(|facts| facts.broke(error));
    error.outcome()
}

#[cfg(test)]
pub(crate) mod tests;
