//! The changes to be made: from the orders, the machines that are there, and the records.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_machines::Order;

use super::folder::Record;
use super::terraform::State;
use crate::output::BadFile;

/// A change of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// It is there, as it should be.
    Keep,
    /// It is made.
    Make,
    /// It is made anew, since another type is wanted.
    Replace,
    /// It is taken away.
    Remove,
}

impl Action {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Make => "make",
            Self::Replace => "replace",
            Self::Remove => "remove",
        }
    }

    /// Returns whether a machine comes.
    pub(super) const fn begins_one(self) -> bool {
        matches!(self, Self::Make | Self::Replace)
    }
}

/// A machine and what is done with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) machine: String,
    pub(super) action: Action,
}

/// Returns what is done with each machine, in the order of the file; those that go come last.
/// `forced` are machines that Terraform makes anew by itself.
///
/// # Errors
/// When a machine should be in another region than it is.
pub(super) fn changes(
    orders: &[Order],
    state: &State,
    records: &BTreeMap<String, Record>,
    forced: &BTreeSet<String>,
) -> Result<Vec<Change>, BadFile> {
    let mut changes = Vec::new();
    for order in orders {
        let record = records.get(&order.machine);
        let there = state.machine(&order.machine);
        let is_there = there.is_some();
        // A run that was to replace it came to nothing.
        let is_replaced = |record: &Record| {
            record.replaces.is_some() && record.replaces.as_ref() == there.map(|it| &it.id)
        };
        let elsewhere = record.filter(|record| is_there && record.region != order.region);
        if let Some(record) = elsewhere {
            return Err(BadFile(format!(
                "machine `{}` is in {}: give the one in {} another name",
                order.machine, record.region, order.region
            )));
        }
        let action = match record {
            _ if !is_there => Action::Make,
            _ if forced.contains(&order.machine) => Action::Replace,
            Some(record) if record.differs(order) || is_replaced(record) => Action::Replace,
            _ => Action::Keep,
        };
        changes.push(Change { machine: order.machine.clone(), action });
    }
    let is_wanted = |name: &str| orders.iter().any(|order| order.machine == name);
    let unwanted = state.machines().filter(|machine| !is_wanted(&machine.name));
    let remove = |name: &String| Change { machine: name.clone(), action: Action::Remove };
    changes.extend(unwanted.map(|machine| remove(&machine.name)));
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use tradewind_units::Money;

    use super::super::terraform::Resource;
    use super::*;

    fn order(name: &str, region: &str, machine_type: &str) -> Order {
        Order {
            machine: name.to_owned(),
            region: region.parse().unwrap(),
            machine_type: machine_type.to_owned(),
            image: None,
            usd_per_hour: Money::ZERO,
            price_source: String::new(),
            price_dated: None,
            usd_per_gb: None,
        }
    }

    #[test]
    fn file_and_state_give_the_changes() {
        let record = |machine_type: &str| Record {
            region: "aws:us-east-1".parse().unwrap(),
            machine_type: machine_type.to_owned(),
            invite: String::new(),
            host: None,
            replaces: None,
        };
        let names = ["kept", "larger", "extra"];
        let resource = |name: &&str| Resource {
            kind: "aws_instance".to_owned(),
            name: (*name).to_owned(),
            id: format!("i-{name}"),
        };
        let state = State { resources: names.iter().map(resource).collect(), ..State::default() };
        let all = ["kept", "larger", "extra", "gone"];
        let mut records: BTreeMap<String, Record> =
            all.map(|name| (name.to_owned(), record("aws:c5n.large"))).into();
        let here = |name, kind| order(name, "aws:us-east-1", kind);
        let mut orders = vec![
            here("kept", "aws:c5n.large"),
            here("larger", "aws:m5.8xlarge"),
            here("gone", "aws:c5n.large"),
            here("new", "aws:c5n.large"),
        ];
        let found = |orders: &[Order], records: &BTreeMap<_, _>, forced: &[&str]| {
            let forced = forced.iter().map(|name| (*name).to_owned()).collect();
            let found = changes(orders, &state, records, &forced).unwrap();
            let word = |it: &Change| (it.machine.clone(), it.action.as_str());
            found.iter().map(word).collect::<Vec<_>>()
        };
        let expected = [
            ("kept", "keep"),
            ("larger", "replace"),
            ("gone", "make"),
            ("new", "make"),
            ("extra", "remove"),
        ];
        let expected = expected.map(|(name, action)| (name.to_owned(), action));
        assert_eq!(found(&orders, &records, &[]), expected);
        assert_eq!(found(&orders, &records, &["kept"])[0].1, "replace");
        records.get_mut("kept").unwrap().replaces = Some("i-kept".to_owned());
        assert_eq!(found(&orders, &records, &[])[0].1, "replace");
        records.get_mut("kept").unwrap().replaces = Some("i-before".to_owned());
        assert_eq!(found(&orders, &records, &[])[0].1, "keep");
        orders[0].region = "aws:eu-west-1".parse().unwrap();
        let error = changes(&orders, &state, &records, &BTreeSet::new()).unwrap_err().to_string();
        assert!(error.starts_with("machine `kept` is in aws:us-east-1: give"), "{error}");
    }
}
