//! The answer of `tradewind machines`: a line for each machine, with prices.

use serde::Serialize;
use tradewind_controller::view::HostState;
use tradewind_machines::Order;
use tradewind_units::{HostId, Money};

use super::changes::{Action, Change};
use crate::output::{self, table as tables};

/// The answer about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct MachineAnswer {
    /// Its name in the file of machines.
    pub(super) machine: String,
    /// `keep`, `make`, `replace` or `remove`.
    pub(super) action: &'static str,
    /// Its state at the controller, `not joined` or `removed`; empty before anything is done.
    pub(super) state: &'static str,
    /// Its name at the controller.
    pub(super) host: Option<HostId>,
    /// Its public address.
    pub(super) address: Option<String>,
}

impl MachineAnswer {
    pub(super) fn of(change: &Change, state: &'static str) -> Self {
        let action = change.action.as_str();
        Self { machine: change.machine.clone(), action, state, host: None, address: None }
    }

    /// Returns whether it is not as it should be.
    pub(super) fn is_failure(&self) -> bool {
        let right = [HostState::Well.as_str(), HostState::Drained.as_str(), "removed", ""];
        !right.contains(&self.state)
    }
}

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Answer {
    /// 1.
    schema_version: u32,
    /// The machines, each with what was done with it, or would be.
    machines: Vec<MachineAnswer>,
    /// The machines as they should be, with their prices.
    orders: Vec<Order>,
    /// The price of an hour of all of them.
    usd_per_hour: Money,
}

impl Answer {
    /// Creates the answer about what was done, or would be.
    pub(super) fn new(orders: &[Order], machines: Vec<MachineAnswer>) -> Self {
        let usd_per_hour = orders.iter().map(|order| order.usd_per_hour).sum();
        Self { schema_version: 1, machines, orders: orders.to_vec(), usd_per_hour }
    }

    pub(super) fn has_changes(&self) -> bool {
        self.machines.iter().any(|it| it.action != Action::Keep.as_str())
    }

    pub(super) fn has_failures(&self) -> bool {
        self.machines.iter().any(MachineAnswer::is_failure)
    }
}

/// Prints it for people.
pub(super) fn table(answer: &Answer) -> anyhow::Result<()> {
    let row = |machine: &MachineAnswer| {
        let order = answer.orders.iter().find(|order| order.machine == machine.machine);
        let of_order = |text: fn(&Order) -> String| order.map(text).unwrap_or_default();
        vec![
            machine.machine.clone(),
            machine.action.to_owned(),
            machine.state.to_owned(),
            machine.host.as_ref().map(ToString::to_string).unwrap_or_default(),
            machine.address.clone().unwrap_or_default(),
            of_order(|order| order.region.to_string()),
            of_order(|order| order.machine_type.clone()),
            of_order(|order| format!("{:.3}", order.usd_per_hour.as_usd())),
            of_order(|order| {
                let price = order.usd_per_gb.map(|price| format!("{:.3}", price.as_usd_per_gb()));
                price.unwrap_or_else(|| "unknown".to_owned())
            }),
        ]
    };
    let rows: Vec<Vec<String>> = answer.machines.iter().map(row).collect();
    let heading =
        ["machine", "action", "state", "host", "address", "region", "type", "$/hour", "$/GB out"];
    tables::print(&heading, &rows, 7)?;
    let hour = answer.usd_per_hour.as_usd();
    output::line(format_args!("all machines: ${hour:.3} an hour, ${:.2} a month", hour * 730.0))?;
    let mut sources: Vec<(&str, &str)> = Vec::new();
    for order in &answer.orders {
        let dated = order.price_dated.as_deref().unwrap_or("now");
        if !sources.iter().any(|(source, _)| *source == order.price_source) {
            sources.push((&order.price_source, dated));
        }
    }
    for (source, dated) in sources {
        output::line(format_args!("price of the hour: {source} ({dated})"))?;
    }
    Ok(())
}
