//! `jq-cost`: the cost of each packet service for a flow, by its relays' regions, the Internet's
//! loss and the price of ingress [JQ 5.1.1]; and the points that the paper leaves open [JQ 7]: see
//! `open`.

mod open;

use serde::Deserialize;
use tradewind_model::cost::Prices;
use tradewind_model::packet::cost::packet_cost;
use tradewind_model::packet::{
    CodingRates, PacketCost, PacketService, RelayTariff, Stream, Tariff,
};
use tradewind_model::{Continent, Egress};
use tradewind_output::chart::Scale;
use tradewind_units::{Bandwidth, Bytes, Duration, Money, PricePerGb, Ratio, RegionId};

use open::Open;

use super::PARTS;
use crate::harness::{
    Figure, Finding, Job, NumericError, Record, Row, Runs, ScenarioError, Spot, catalogue,
    from_toml, mean,
};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// The relays' cloud, whose list prices count.
    pub relays_of: String,
    /// The pair of the paper's example, ingress and egress relay.
    pub example: [RegionId; 2],
    /// Rate of a flow, for an hour.
    pub rate: Bandwidth,
    /// Size of its packets.
    pub packet: Bytes,
    /// r: cross-stream repair packets for each packet.
    pub cross_stream: f64,
    /// Helpers asked for each packet.
    pub helpers: u32,
    /// A relay's machine, dollars an hour.
    pub vm_usd_per_hour: Money,
    /// Flows that share it.
    pub flows_per_vm: u32,
    /// Losses, in per cent.
    pub loss_percent: Vec<f64>,
    /// The usual loss, in per cent, at which services are compared.
    pub usual_loss_percent: f64,
    /// Prices of ingress that are tried, dollars for each GB.
    pub ingress_usd_per_gb: Vec<f64>,
    /// Points that the paper leaves open.
    pub open: Open,
}

/// Differences from a cloud's list prices for traffic.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// Price of ingress to a relay, dollars for each GB.
    ingress_usd: f64,
    /// Tariff of egress from a relay, where that is not by list.
    egress: Option<Tariff>,
    /// Price of storing a GB for an hour, in dollars, and the time for which packets are stored.
    storage: (f64, Duration),
    /// Tariff of copies on the sender's uplink.
    uplink: Tariff,
}

impl Terms {
    /// No differences.
    const LIST: Self = Self {
        ingress_usd: 0.0,
        egress: None,
        storage: (0.0, Duration::ZERO),
        uplink: Tariff::FREE,
    };
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        let losses = scenario.loss_percent.iter().chain([&scenario.usual_loss_percent]);
        if let Some(loss) = losses.into_iter().find(|loss| !(0.0..=100.0).contains(*loss)) {
            return wrong(format!("loss: {loss} % given, expected 0 to 100"));
        }
        if !(0.0..=10.0).contains(&scenario.cross_stream) {
            let rate = scenario.cross_stream;
            return wrong(format!("cross_stream: {rate} given, expected 0 to 10"));
        }
        if let Some(price) = scenario.ingress_usd_per_gb.iter().find(|p| !(0.0..=10.0).contains(*p))
        {
            return wrong(format!("ingress_usd_per_gb: {price} given, expected 0 to 10"));
        }
        if scenario.packet.as_u64() == 0 || scenario.flows_per_vm == 0 {
            return wrong("packet, flows_per_vm: above zero".to_owned());
        }
        if let Some(id) = scenario.example.iter().find(|id| catalogue().region(id).is_none()) {
            return wrong(format!(
                "example: `{id}` is not in the catalogue{}",
                catalogue().did_you_mean(id.as_str())
            ));
        }
        if regions(&scenario.relays_of).len() < 2 {
            let cloud = &scenario.relays_of;
            return wrong(format!("relays_of: `{cloud}` has not two regions in the catalogue"));
        }
        scenario.open.check()?;
        Ok(scenario)
    }

    fn coding(&self) -> CodingRates {
        CodingRates {
            cross_stream: self.cross_stream,
            helpers: self.helpers,
            ..CodingRates::paper()
        }
    }

    fn stream(&self, loss_percent: f64, terms: &Terms) -> Result<Stream, NumericError> {
        Ok(Stream {
            rate: self.rate,
            span: Duration::from_secs(3600),
            packet: self.packet,
            loss: Ratio::new(loss_percent / 100.0).map_err(nothing)?,
            uplink: terms.uplink,
            retention: terms.storage.1,
        })
    }

    fn tariffs(
        &self,
        ends: [&RegionId; 2],
        terms: &Terms,
    ) -> Result<[RelayTariff; 2], NumericError> {
        let ingress = per_gb(terms.ingress_usd)?;
        let storage_gb_hour = Money::from_usd(terms.storage.0).map_err(nothing)?;
        let relay = |from: &RegionId, to: Egress<'_>| -> Result<RelayTariff, NumericError> {
            let listed = Tariff::PerGb(catalogue().egress_price(from, to)?);
            Ok(RelayTariff {
                ingress,
                egress: terms.egress.unwrap_or(listed),
                vm_hour: self.vm_usd_per_hour,
                flows_per_vm: self.flows_per_vm,
                storage_gb_hour,
            })
        };
        Ok([relay(ends[0], Egress::Region(ends[1]))?, relay(ends[1], Egress::Internet)?])
    }

    fn cost(
        &self,
        service: PacketService,
        ends: [&RegionId; 2],
        loss_percent: f64,
        terms: &Terms,
    ) -> Result<PacketCost, NumericError> {
        let [ingress, egress] = self.tariffs(ends, terms)?;
        let stream = self.stream(loss_percent, terms)?;
        packet_cost(service, &stream, &self.coding(), &ingress, &egress).map_err(nothing)
    }

    /// Returns the loss from which on coding costs more than caching or forwarding, in per cent;
    /// 100 when it never does.
    fn threshold(&self, ends: [&RegionId; 2]) -> Result<f64, NumericError> {
        let is_cheapest = |loss: f64| -> Result<bool, NumericError> {
            let total = |service| {
                Ok::<_, NumericError>(self.cost(service, ends, loss, &Terms::LIST)?.total())
            };
            let coding = total(PacketService::Coding)?;
            Ok(coding <= total(PacketService::Caching)?
                && coding <= total(PacketService::Forwarding)?)
        };
        up_to(100.0, is_cheapest)
    }
}

/// Returns the value up to which something holds, from 0 to `most`; 0 when it never does, `most`
/// when always.
fn up_to(
    most: f64,
    holds: impl Fn(f64) -> Result<bool, NumericError>,
) -> Result<f64, NumericError> {
    let (mut below, mut above) = (0.0, most);
    if holds(above)? {
        return Ok(above);
    }
    if !holds(below)? {
        return Ok(below);
    }
    for _ in 0..30 {
        let middle = (below + above) / 2.0;
        if holds(middle)? { below = middle } else { above = middle }
    }
    Ok(below)
}

fn per_gb(usd: f64) -> Result<Tariff, NumericError> {
    Ok(Tariff::PerGb(PricePerGb::from_usd_per_gb(usd).map_err(nothing)?))
}

fn nothing(error: impl std::fmt::Display) -> NumericError {
    NumericError::Nothing { what: error.to_string() }
}

fn regions(cloud: &str) -> Vec<(RegionId, Continent)> {
    let all = catalogue().regions().filter(|region| region.id.cloud() == cloud);
    all.map(|region| (region.id.clone(), region.continent)).collect()
}

/// Returns the dates of the prices between these regions.
fn dates(regions: &[(RegionId, Continent)]) -> String {
    let regions: Vec<RegionId> = regions.iter().map(|(id, _)| id.clone()).collect();
    let dates = Prices::Catalogue(Box::new(catalogue().clone())).dates(&regions);
    let dates: Vec<String> = dates.into_values().flatten().collect();
    dates.join(" and ")
}

const BOUGHT: [PacketService; 3] =
    [PacketService::Coding, PacketService::Caching, PacketService::Forwarding];

fn cents(money: Money) -> f64 {
    money.as_usd() * 100.0
}

/// Runs the experiment.
///
/// # Errors
/// When the catalogue lacks a price, or the run is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    if job.options.stop.is_set() {
        return Err(NumericError::Stopped);
    }
    let once = Runs { seed: 0, count: 1, quick: 1 };
    let mut record = Record::of_runs(&scenario.name, &scenario.assumptions, &once, job.options);
    // Nothing is drawn: there are no runs to report.
    record.assumptions.pop();
    let all = regions(&scenario.relays_of);
    record.assumptions.push(format!(
        "list prices of {}, as of {}",
        scenario.relays_of,
        dates(&all)
    ));
    example(scenario, &mut record)?;
    let pairs: Vec<[&(RegionId, Continent); 2]> = all
        .iter()
        .flat_map(|from| all.iter().filter(move |to| to.1 != from.1).map(move |to| [from, to]))
        .collect();
    thresholds(scenario, &pairs, &mut record)?;
    ingress(scenario, &pairs, &mut record)?;
    open::add_rows(scenario, &mut record)?;
    Ok(record)
}

/// Adds the paper's Fig. 5: from Oceania to Europe.
fn example(scenario: &Scenario, record: &mut Record) -> Result<(), NumericError> {
    let ends = [&scenario.example[0], &scenario.example[1]];
    let place = format!("{} to {}", ends[0], ends[1]);
    record.figures.push(Figure {
        title: format!("cost of an hour, {place}"),
        x_label: "loss on the Internet".to_owned(),
        y_label: "cents".to_owned(),
        scale: Scale::Names,
    });
    let usual = scenario.usual_loss_percent;
    for (service, paper) in BOUGHT.into_iter().zip([1.32, 6.62, 6.62]) {
        let cost = scenario.cost(service, ends, usual, &Terms::LIST)?;
        let case = format!("{service}: ingress relay's traffic");
        record.rows.push(Row::of(
            &case,
            Some(paper),
            &[cents(cost.ingress_relay)],
            "cents/h",
            &place,
        ));
    }
    for (service, paper) in BOUGHT.into_iter().zip([0.51, 0.19, 0.19]) {
        let cost = scenario.cost(service, ends, usual, &Terms::LIST)?;
        let case = format!("{service}: machines");
        record.rows.push(Row::of(&case, Some(paper), &[cents(cost.compute)], "cents/h", ""));
    }
    for service in BOUGHT {
        for (index, loss) in scenario.loss_percent.iter().enumerate() {
            let cost = scenario.cost(service, ends, *loss, &Terms::LIST)?;
            let spot = Spot {
                figure: 0,
                line: service.to_string(),
                x: index as f64,
                x_name: format!("{loss} %"),
            };
            let case = format!("{service}, {loss} % lost");
            record
                .rows
                .push(Row::of(&case, None, &[cents(cost.total())], "cents/h", "").drawn_at(spot));
        }
    }
    let total =
        |service| Ok::<_, NumericError>(scenario.cost(service, ends, usual, &Terms::LIST)?.total());
    let [coding, caching, forwarding] = [total(BOUGHT[0])?, total(BOUGHT[1])?, total(BOUGHT[2])?];
    record.findings.push(Finding::new(
        "coding is the cheapest, caching next, and traffic dwarfs machines",
        coding < caching && caching < forwarding,
        format!("{:.2}, {:.2} and {:.2} cents", cents(coding), cents(caching), cents(forwarding)),
    ));
    Ok(())
}

fn thresholds(
    scenario: &Scenario,
    pairs: &[[&(RegionId, Continent); 2]],
    record: &mut Record,
) -> Result<(), NumericError> {
    let mut least = f64::INFINITY;
    for (from, from_part) in PARTS {
        for (to, to_part) in PARTS {
            let between = pairs.iter().filter(|[a, b]| a.1 == from_part && b.1 == to_part);
            let values: Result<Vec<f64>, NumericError> =
                between.map(|[a, b]| scenario.threshold([&a.0, &b.0])).collect();
            let values = values?;
            let Some(lowest) = values.iter().copied().reduce(f64::min) else { continue };
            least = least.min(lowest);
            let case = format!("{from} to {to}: coding is cheapest up to a loss of");
            let note = format!("the least of {} pairs of regions", values.len());
            record.rows.push(Row::of(&case, None, &[lowest], "%", &note));
        }
    }
    let usual = scenario.usual_loss_percent;
    record.findings.push(Finding::new(
        "at usual losses (below 1 %) coding is cheapest everywhere; the threshold is 10 to 50 % \
         where the ingress relay is cheap or the egress one dear",
        least > usual.max(1.0),
        format!("the least threshold of all pairs is {least:.0} %"),
    ));
    Ok(())
}

/// Adds the costs of services if clouds charged for ingress.
fn ingress(
    scenario: &Scenario,
    pairs: &[[&(RegionId, Continent); 2]],
    record: &mut Record,
) -> Result<(), NumericError> {
    let usual = scenario.usual_loss_percent;
    let average = |service, price: f64| -> Result<f64, NumericError> {
        let terms = Terms { ingress_usd: price, ..Terms::LIST };
        let costs: Result<Vec<f64>, NumericError> = pairs
            .iter()
            .map(|[a, b]| Ok(cents(scenario.cost(service, [&a.0, &b.0], usual, &terms)?.total())))
            .collect();
        Ok(mean(&costs?))
    };
    let free = average(PacketService::Forwarding, 0.0)?;
    let mut last = (0.0, 0.0);
    for price in &scenario.ingress_usd_per_gb {
        for service in BOUGHT {
            let value = average(service, *price)?;
            let case = format!("{service}, ingress at {price} dollars a GB");
            record.rows.push(Row::of(&case, None, &[value], "cents/h", "mean of all pairs"));
        }
        last =
            (average(PacketService::Coding, *price)?, average(PacketService::Forwarding, *price)?);
    }
    let (coding, forwarding) = last;
    let (rise, part) = (forwarding / free, coding / forwarding);
    record.findings.push(Finding::new(
        "at the dearest ingress forwarding costs double, and coding about 40 % of that",
        rise > 1.5 && part < 0.6,
        format!("forwarding {rise:.1} times what it was, coding {:.0} % of it", part * 100.0),
    ));
    Ok(())
}
