//! A session whose path is open, from its first bytes to its end.

use std::sync::Arc;

use tradewind_grant::{Destination, GrantId};
use tradewind_net::tcp;
use tradewind_units::FlowId;

use crate::config::Timeouts;
use crate::counts::Outcome;
use crate::profile::Legs;
use crate::pump::{Broken, Direction, IdleLimits, Pump};
use crate::quota::Place;
use crate::side::Side;
use crate::worker::Worker;

/// A session whose path is open.
pub(crate) struct Session {
    pub(crate) flow: FlowId,
    pub(crate) destination: Destination,
    pub(crate) upstream: Side<'static>,
    pub(crate) downstream: Side<'static>,
    pub(crate) up: Direction,
    pub(crate) down: Direction,
    /// Its place under its grant, at relays.
    pub(crate) place: Option<Place<GrantId>>,
}

/// How sessions are kept.
#[derive(Debug)]
pub(crate) struct Keeping {
    pub(crate) idle: IdleLimits,
    pub(crate) legs: Arc<Legs>,
}

impl Keeping {
    pub(crate) fn new(legs: Arc<Legs>, timeouts: &Timeouts) -> Self {
        let idle = IdleLimits { open: timeouts.idle, half_closed: timeouts.half_closed };
        Self { idle, legs }
    }
}

impl Session {
    /// Moves bytes until both directions have ended or one side has failed.
    pub(crate) async fn carry(mut self, worker: &Worker, keeping: &Keeping) -> Outcome {
        let pump = Pump {
            upstream: &mut self.upstream,
            downstream: &mut self.downstream,
            up: &mut self.up,
            down: &mut self.down,
            worker,
            keeping,
        };
        match pump.run().await.and_then(|()| self.end_in_order()) {
            Ok(()) => Outcome::Ended,
            Err(error) => {
                // What waits to travel with something must arrive before the reset.
                self.down.answer_now(&self.upstream);
                for side in [&self.upstream, &self.downstream] {
                    let _gone = tcp::send_held_back(side);
                }
                broken(&self.flow, &self.destination, &error)
            }
        }
    }

    /// Lets both sockets close in order, now that both directions have ended.
    fn end_in_order(&self) -> Result<(), Broken> {
        tcp::end_in_order_on_close(&self.upstream).map_err(Broken::Upstream)?;
        tcp::end_in_order_on_close(&self.downstream).map_err(Broken::Downstream)
    }
}

/// Logs that a flow broke off.
pub(crate) fn broken(flow: &FlowId, destination: &Destination, error: &Broken) -> Outcome {
    tracing::debug!(%flow, "flow to {destination} broke off: {error}");
    error.outcome()
}
