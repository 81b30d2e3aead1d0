//! Points that the paper's costs leave open [JQ 7]: billing by the 95th percentile, storage, the
//! sender's access link, and relays of two clouds.

use serde::Deserialize;
use tradewind_model::packet::{PacketService, Tariff};
use tradewind_units::{Duration, Money, RegionId};

use super::{BOUGHT, Scenario, Terms, cents, per_gb, up_to};
use crate::harness::{Finding, NumericError, Record, Row, ScenarioError, catalogue, within};

/// The open points, as the scenario's file states them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Prices of carriers, dollars a month for each Mbit/s that leaves a relay.
    pub percentile_usd_per_mbps: Vec<f64>,
    /// Price of storing a GB for an hour, in dollars.
    pub storage_usd_per_gb_hour: f64,
    /// Times for which the egress relay keeps packets, in seconds.
    pub retention_s: Vec<f64>,
    /// Prices of the sender's own access link, dollars for each GB.
    pub uplink_usd_per_gb: Vec<f64>,
    /// Ingress and egress relays, of one cloud or of two.
    pub pairs: Vec<[RegionId; 2]>,
}

/// Highest prices that are tried: dollars a month for each Mbit/s, and for each GB.
const MAX_PER_MBPS: f64 = 1000.0;
const MAX_PER_GB: f64 = 10.0;

impl Open {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let all = |name, values: &[f64], most| -> Vec<(&'static str, f64, f64, f64)> {
            values.iter().map(|value| (name, *value, 0.0, most)).collect()
        };
        let ranges = [
            all("open.percentile_usd_per_mbps", &self.percentile_usd_per_mbps, MAX_PER_MBPS),
            all("open.storage_usd_per_gb_hour", &[self.storage_usd_per_gb_hour], MAX_PER_GB),
            all("open.retention_s", &self.retention_s, 86_400.0),
            all("open.uplink_usd_per_gb", &self.uplink_usd_per_gb, MAX_PER_GB),
        ];
        within(ranges.into_iter().flatten())?;
        let unknown = self.pairs.iter().flatten().find(|id| catalogue().region(id).is_none());
        unknown.map_or(Ok(()), |id| {
            let what = format!(
                "open.pairs: `{id}` is not in the catalogue{}",
                catalogue().did_you_mean(id.as_str())
            );
            Err(ScenarioError::Inconsistent { what })
        })
    }
}

/// Adds the rows and findings of the open points.
///
/// # Errors
/// When the catalogue lacks a price.
pub(super) fn add_rows(scenario: &Scenario, record: &mut Record) -> Result<(), NumericError> {
    percentiles(scenario, record)?;
    storage(scenario, record)?;
    uplinks(scenario, record)?;
    clouds(scenario, record)
}

fn percentile(usd_per_mbps: f64) -> Terms {
    Terms { egress: Some(Tariff::Percentile { usd_per_mbps }), ..Terms::LIST }
}

/// Returns the example's cost at the usual loss.
fn total(
    scenario: &Scenario,
    service: PacketService,
    terms: &Terms,
) -> Result<Money, NumericError> {
    let ends = [&scenario.example[0], &scenario.example[1]];
    Ok(scenario.cost(service, ends, scenario.usual_loss_percent, terms)?.total())
}

fn push(record: &mut Record, case: &str, value: f64, unit: &str, note: &str) {
    record.rows.push(Row::of(case, None, &[value], unit, note));
}

/// Adds the costs when relays' egress is billed by the 95th percentile, as carriers do.
fn percentiles(scenario: &Scenario, record: &mut Record) -> Result<(), NumericError> {
    for usd_per_mbps in &scenario.open.percentile_usd_per_mbps {
        let terms = percentile(*usd_per_mbps);
        for service in BOUGHT {
            let case = format!("{service}, by 95th percentile at {usd_per_mbps} dollars a Mbit/s");
            let value = cents(total(scenario, service, &terms)?);
            push(record, &case, value, "cents/h", "");
        }
    }
    let cheaper_than_list = |service| {
        up_to(MAX_PER_MBPS, |price| {
            let listed = total(scenario, service, &Terms::LIST)?;
            Ok(total(scenario, service, &percentile(price))? <= listed)
        })
    };
    for service in BOUGHT {
        let case = format!("{service}: by 95th percentile is cheaper than by volume up to");
        push(record, &case, cheaper_than_list(service)?, "dollars a Mbit/s", "a month");
    }
    let turn = up_to(MAX_PER_MBPS, |price| {
        let [coding, caching] = [PacketService::Coding, PacketService::Caching]
            .map(|service| total(scenario, service, &percentile(price)));
        Ok(caching? <= coding?)
    })?;
    push(
        record,
        "caching is cheaper than coding up to",
        turn,
        "dollars a Mbit/s",
        "95th percentile",
    );
    record.findings.push(Finding::new(
        "by 95th percentile coding is the cheapest only where carriers are dear: else machines \
         count (ours)",
        turn > 0.0,
        format!("caching is cheaper up to {turn:.2} dollars a month for each Mbit/s"),
    ));
    Ok(())
}

/// Adds the costs when storage at the egress relay is paid for.
fn storage(scenario: &Scenario, record: &mut Record) -> Result<(), NumericError> {
    let price = scenario.open.storage_usd_per_gb_hour;
    let ends = [&scenario.example[0], &scenario.example[1]];
    let stored = |service, retention_s: f64| -> Result<f64, NumericError> {
        let terms = Terms { storage: (price, Duration::from_secs_f64(retention_s)), ..Terms::LIST };
        let cost = scenario.cost(service, ends, scenario.usual_loss_percent, &terms)?;
        Ok(cents(cost.storage))
    };
    for retention_s in &scenario.open.retention_s {
        for service in [PacketService::Coding, PacketService::Caching] {
            let case = format!("{service}: storage of packets kept for {retention_s} s");
            let note = format!("at {price} dollars for a GB and hour");
            push(record, &case, stored(service, *retention_s)?, "cents/h", &note);
        }
    }
    let storage_times = &scenario.open.retention_s;
    let (Some(shortest), Some(longest)) = (
        storage_times.iter().copied().reduce(f64::min),
        storage_times.iter().copied().reduce(f64::max),
    ) else {
        return Ok(());
    };
    let [least, most] =
        [shortest, longest].map(|retention_s| stored(PacketService::Caching, retention_s));
    let (least, most) = (least?, most?);
    let all = cents(total(scenario, PacketService::Caching, &Terms::LIST)?);
    record.findings.push(Finding::new(
        "storage may be left out of the costs of recovery",
        least < 0.01 * all,
        format!(
            "caching's is {least:.4} cents of {all:.2} for packets kept for {shortest} s, and \
             {most:.2} more for {longest} s"
        ),
    ));
    Ok(())
}

/// Adds the costs when the copies that leave the sender are paid for.
fn uplinks(scenario: &Scenario, record: &mut Record) -> Result<(), NumericError> {
    let with = |usd| Ok::<_, NumericError>(Terms { uplink: per_gb(usd)?, ..Terms::LIST });
    for usd in &scenario.open.uplink_usd_per_gb {
        for service in BOUGHT {
            let case = format!("{service}, access link at {usd} dollars a GB");
            let value = cents(total(scenario, service, &with(*usd)?)?);
            push(record, &case, value, "cents/h", "");
        }
    }
    let turn = up_to(MAX_PER_GB, |usd| {
        let [coding, forwarding] = [PacketService::Coding, PacketService::Forwarding]
            .map(|service| total(scenario, service, &with(usd)?));
        Ok(coding? <= forwarding?)
    })?;
    push(
        record,
        "coding is cheaper than forwarding up to an access link at",
        turn,
        "dollars a GB",
        "",
    );
    record.findings.push(Finding::new(
        "where the access link is dear, forwarding, which sends no copy, is the cheapest (ours)",
        turn < MAX_PER_GB,
        format!("from {turn:.3} dollars a GB on"),
    ));
    Ok(())
}

/// Adds the costs over relays of one cloud and of two.
fn clouds(scenario: &Scenario, record: &mut Record) -> Result<(), NumericError> {
    let (mut is_cheapest, mut dearest) = (true, (f64::NEG_INFINITY, String::new()));
    for [from, to] in &scenario.open.pairs {
        let cost = |service| {
            let usual = scenario.usual_loss_percent;
            Ok::<_, NumericError>(cents(
                scenario.cost(service, [from, to], usual, &Terms::LIST)?.total(),
            ))
        };
        let all = [cost(BOUGHT[0])?, cost(BOUGHT[1])?, cost(BOUGHT[2])?];
        for (service, value) in BOUGHT.into_iter().zip(all) {
            push(record, &format!("{service}, {from} to {to}"), value, "cents/h", "");
        }
        is_cheapest &= all[0] < all[1] && all[1] < all[2];
        if all[0] > dearest.0 {
            dearest = (all[0], format!("{from} to {to}"));
        }
    }
    if !scenario.open.pairs.is_empty() {
        record.findings.push(Finding::new(
            "over relays of two clouds coding is the cheapest, too (ours)",
            is_cheapest,
            format!("at most {:.2} cents with coding, {}", dearest.0, dearest.1),
        ));
    }
    Ok(())
}
