//! The scenario file of modelled rates: the places from which tuples are drawn, their number, and
//! the duration of a measurement.

use serde::Deserialize;
use tradewind_model::Catalogue;
use tradewind_units::Duration;
use tradewind_wan::Topology;

use crate::harness::{Runs, ScenarioError, from_toml};
use crate::numeric::formula::{self, Tuple};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub(crate) assumptions: Vec<String>,
    /// `cp-model`'s scenario file, beside it: places, windows and rates.
    pub(crate) places: String,
    /// Number of runs in which tuples are drawn, and their seeds.
    pub(crate) runs: Runs,
    /// Number of labs that run at a time.
    pub(crate) at_once: usize,
    /// Tuples of each setting in each run.
    pub(crate) tuples: usize,
    /// The same in a quick run.
    pub(crate) tuples_quick: usize,
    /// Factor by which the lab's windows and rates are scaled.
    pub(crate) scale: f64,
    /// Time for which a download runs before it is measured, in seconds.
    pub(crate) settle_s: f64,
    /// Time for which it is measured, in seconds.
    pub(crate) measure_s: f64,
}

/// Hosts of a tuple's lab, from the source on.
pub(super) const HOSTS: [&str; 4] = ["source", "relay-1", "relay-2", "destination"];

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub(crate) fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: &str| Err(ScenarioError::Inconsistent { what: what.to_owned() });
        let spans = [scenario.settle_s, scenario.measure_s];
        if !spans.iter().all(|span| (0.1..=3600.0).contains(span)) {
            return wrong("settle_s, measure_s: 0.1 to 3600");
        }
        if !(0.001..=1.0).contains(&scenario.scale) {
            return wrong("scale: 0.001 to 1");
        }
        if scenario.at_once == 0 || scenario.tuples == 0 || scenario.tuples_quick == 0 {
            return wrong("at_once, tuples, tuples_quick: at least 1");
        }
        Ok(scenario)
    }

    /// Returns places, windows and rates, the latter two scaled for the lab.
    pub(super) fn model(&self, text: &str) -> Result<formula::Scenario, ScenarioError> {
        let model = formula::Scenario::parse(text)?;
        Ok(formula::Scenario {
            window: model.window.scaled(self.scale),
            relay_window: model.relay_window.scaled(self.scale),
            relay_per_connection: model.relay_per_connection.scaled(self.scale),
            last_mile: model.last_mile.scaled(self.scale),
            ..model
        })
    }
}

/// Returns a tuple's network: its four hosts, and the formula's round trips.
pub(super) fn topology(
    model: &formula::Scenario,
    tuple: &Tuple,
) -> Result<Topology, ScenarioError> {
    let (window, rate) = (model.window, model.last_mile);
    let mut text = String::from("[default.host]\ncongestion_control = 'cubic'\n");
    text.push_str("receive_buffer = '64 MiB'\nsend_buffer = '64 MiB'\n");
    for host in HOSTS {
        text.push_str(&format!("[[site]]\nid = '{host}'\n"));
        if host.starts_with("relay") {
            let rate = model.relay_per_connection;
            text.push_str(&format!("[[host]]\nsite = '{host}'\nper_connection = '{rate}'\n"));
        } else {
            text.push_str(&format!("window = '{window}'\n"));
            text.push_str(&format!(
                "[[host]]\nsite = '{host}'\negress = '{rate}'\ningress = '{rate}'\n"
            ));
        }
    }
    let mut pair = |from: usize, to: usize, rtt: Duration| {
        let (from, to, ms) = (HOSTS[from], HOSTS[to], rtt.as_secs_f64() * 1e3);
        text.push_str(&format!("[[pair]]\nbetween = ['{from}', '{to}']\nrtt = '{ms:.3} ms'\n"));
    };
    let [direct, one, two] = [0, 1, 2].map(|relays| tuple.path(relays).rtts);
    pair(0, 3, direct[0]);
    pair(0, 1, one[0]);
    pair(1, 3, one[1]);
    pair(1, 2, two[1]);
    pair(2, 3, two[2]);
    // Nothing passes here, but every pair has a round trip.
    pair(0, 2, two[0]);
    Topology::parse(&text, &Catalogue::builtin()).map_err(|error| ScenarioError::Inconsistent {
        what: format!("network of a tuple: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Random;

    const SCENARIO: &str = include_str!("../../scenarios/cp-model-lab.toml");
    const PLACES: &str = include_str!("../../scenarios/cp-model.toml");

    #[test]
    fn every_tuples_network_has_the_formulas_round_trips() {
        let scenario = Scenario::parse(SCENARIO).unwrap();
        let model = scenario.model(PLACES).unwrap();
        let mut random = Random::new(1);
        for setting in &model.settings {
            for _ in 0..20 {
                let tuple = formula::draw(setting, &mut random);
                let topology = topology(&model, &tuple).unwrap();
                let site = |name: &str| topology.sites.iter().position(|s| s.id.as_str() == name);
                assert_eq!(topology.hosts.len(), 4);
                let index = |host: usize| {
                    topology.site(&topology.sites[site(HOSTS[host]).unwrap()].id).unwrap()
                };
                let rtt = |a: usize, b: usize| {
                    let (a, b) = (index(a), index(b));
                    topology.pair(a, b).delay + topology.pair(b, a).delay
                };
                let two = tuple.path(2).rtts;
                for (leg, rtt) in [rtt(0, 1), rtt(1, 2), rtt(2, 3)].into_iter().enumerate() {
                    assert!(rtt.abs_diff(two[leg]) < Duration::from_micros(2));
                }
            }
        }
    }

    #[test]
    fn scale_changes_rates_alike() {
        let scenario = Scenario::parse(SCENARIO).unwrap();
        let whole = formula::Scenario::parse(PLACES).unwrap();
        let model = scenario.model(PLACES).unwrap();
        let mut random = Random::new(3);
        let tuple = formula::draw(&model.settings[1], &mut random);
        for relays in 0..3 {
            let of = |model| formula::predicted(model, &tuple, relays).as_bps() as f64;
            assert!((of(&model) / of(&whole) / scenario.scale - 1.0).abs() < 1e-3);
        }
    }

    #[test]
    fn bad_values_are_refused() {
        for (from, to, what) in [
            ("scale = 0.1", "scale = 2", "scale: 0.001 to 1"),
            ("at_once = 3", "at_once = 0", "at_once"),
            ("measure_s = ", "measure_s = -", "settle_s, measure_s"),
        ] {
            assert!(SCENARIO.contains(from), "{from}");
            let error = Scenario::parse(&SCENARIO.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
