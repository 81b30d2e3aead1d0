//! CDD: how many relays, small files, and what RTTs predict.

use tradewind_plan::routing::advice::{Settings, Verdict, advise};
use tradewind_plan::routing::{MinMaxPath, Router};

use super::{World, plain, quantile, seconds};

/// Large files from Mumbai and from New York, in bytes.
const FROM_MUMBAI: u64 = 3_900_000;
/// Small ones.
const SMALL: [u64; 2] = [17_000, 18_000];
/// Losses of which CDD tells nothing: swept.
const LOSS_PERCENT: [f64; 5] = [0.0, 0.01, 0.05, 0.1, 0.5];

/// Ends in another cloud's regions of the cities, so that no relay is an end.
fn mumbai_to_san_francisco(cloud: &str) -> (&'static str, &'static str) {
    match cloud {
        "aws" => ("gcp:asia-south1", "azure:westus"),
        _ => ("aws:ap-south-1", "aws:us-west-1"),
    }
}

/// Virginia stands for New York.
fn new_york_to_san_francisco(cloud: &str) -> (&'static str, &'static str) {
    match cloud {
        "aws" => ("gcp:us-east4", "azure:westus"),
        _ => ("aws:us-east-1", "aws:us-west-1"),
    }
}

pub(super) fn report(world: &World) {
    hops(world);
    small(world);
    estimates(world);
}

fn hops(world: &World) {
    println!("## cdd-hops, cdd-four: Mumbai to San Francisco, 3.9 MB, gain over direct\n");
    println!("| relays of | loss | direct s | best single | median single | two | three | four |");
    println!("|---|---|---|---|---|---|---|---|");
    for cloud in ["aws", "azure"] {
        let (from, to) = mumbai_to_san_francisco(cloud);
        let router = world.router(from, to, &world.cloud(cloud));
        for loss in LOSS_PERCENT {
            let settings = plain(FROM_MUMBAI, loss);
            let direct = seconds(&router.best(0, 1)[0], &settings);
            let gain = |path: &MinMaxPath| direct / seconds(path, &settings);
            let singles: Vec<f64> = router.best(1, usize::MAX).iter().map(gain).collect();
            let chains = [2, 3, 4].map(|relays| gain(&router.cloudified(relays, 1)[0]));
            println!(
                "| {cloud} | {loss} % | {direct:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
                quantile(&singles, 1.0),
                quantile(&singles, 0.5),
                chains[0],
                chains[1],
                chains[2]
            );
        }
    }
    println!("| paper, aws | | | 6.64 | 1.99 | 5.89 | 8.64 | |");
    println!("| paper, azure | | | | | | 7.38 | 8.57 |\n");
    println!("Largest inner leg, ms:\n");
    println!("| relays of | two | three | four |");
    println!("|---|---|---|---|");
    for cloud in ["aws", "azure"] {
        let (from, to) = mumbai_to_san_francisco(cloud);
        let router = world.router(from, to, &world.cloud(cloud));
        let largest = [2, 3, 4].map(|relays| {
            let path = router.cloudified(relays, 1).remove(0);
            let inner = path.rtts[1..path.rtts.len() - 1].iter().max().copied();
            inner.unwrap_or_default().as_secs_f64() * 1e3
        });
        println!("| {cloud} | {:.0} | {:.0} | {:.0} |", largest[0], largest[1], largest[2]);
    }
    println!();
}

fn small(world: &World) {
    println!("## cdd-small: 17 and 18 KB, no loss\n");
    println!("| pair | relays of | volume | direct ms | fastest relayed ms | verdict |");
    println!("|---|---|---|---|---|---|");
    for cloud in ["aws", "azure", "gcp"] {
        let pairs = [
            ("Mumbai - San Francisco", mumbai_to_san_francisco(cloud)),
            ("Virginia - San Francisco", new_york_to_san_francisco(cloud)),
        ];
        for ((name, (from, to)), volume) in pairs.into_iter().zip(SMALL) {
            let regions = world.cloud(cloud);
            let router = world.router(from, to, &regions);
            let settings = plain(volume, 0.0);
            let advice = advise(&router, &regions, &settings, 10).expect("the price is flat");
            let millis = |relayed: bool| {
                let routes = advice.routes.iter();
                let routes = routes.filter(|route| route.path.relays.is_empty() != relayed);
                routes.map(|route| route.fct().as_secs_f64() * 1e3).fold(f64::INFINITY, f64::min)
            };
            let verdict = match advice.verdict {
                Verdict::Direct(_) => "direct",
                Verdict::Relay(_) => "relay",
                Verdict::NoPath => "no path",
            };
            println!(
                "| {name} | {cloud} | {volume} B | {:.0} | {:.0} | {verdict} |",
                millis(false),
                millis(true)
            );
        }
    }
    println!();
}

/// Estimates from RTTs and gains by the model, side by side.
#[derive(Default)]
struct Estimates {
    estimated: Vec<f64>,
    modelled: Vec<f64>,
}

impl Estimates {
    fn push(&mut self, estimated: f64, modelled: f64) {
        self.estimated.push(estimated);
        self.modelled.push(modelled);
    }

    /// Pearson's coefficient.
    fn correlation(&self) -> f64 {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (x, y) = (mean(&self.estimated), mean(&self.modelled));
        let pairs = || self.estimated.iter().zip(&self.modelled);
        let covariance: f64 = pairs().map(|(a, b)| (a - x) * (b - y)).sum();
        let spread = |values: &[f64], mean: f64| -> f64 {
            values.iter().map(|value| (value - mean).powi(2)).sum()
        };
        covariance / (spread(&self.estimated, x) * spread(&self.modelled, y)).sqrt()
    }

    fn row(&self, name: &str, loss: f64) {
        let pairs = self.estimated.iter().zip(&self.modelled);
        let off: Vec<f64> = pairs.map(|(a, b)| (a / b - 1.0).abs() * 100.0).collect();
        println!(
            "| {name} | {loss} % | {} | {:.2} | {:.0} % | {:.0} % |",
            off.len(),
            self.correlation(),
            quantile(&off, 0.5),
            quantile(&off, 0.9)
        );
    }
}

fn estimates(world: &World) {
    println!("## cdd-rtt: gains estimated from RTTs against the model's, 3.9 MB\n");
    println!("| estimate | loss | paths | correlation | off by (median) | off by (p90) |");
    println!("|---|---|---|---|---|---|");
    for loss in [0.0, 0.01, 0.1] {
        let settings = plain(FROM_MUMBAI, loss);
        let (mut forwarded, mut third) = (Estimates::default(), Estimates::default());
        let mut single = Estimates::default();
        for cloud in ["aws", "azure", "gcp"] {
            for (from, to) in [mumbai_to_san_francisco(cloud), new_york_to_san_francisco(cloud)] {
                let router = world.router(from, to, &world.cloud(cloud));
                add(&router, &settings, &mut forwarded, &mut single, &mut third);
            }
        }
        forwarded.row("one forwarding relay, over direct", loss);
        third.row("three split relays, over two", loss);
        single.row("one split relay, over direct", loss);
    }
    println!();
}

fn add(
    router: &Router,
    settings: &Settings,
    forwarded: &mut Estimates,
    single: &mut Estimates,
    third: &mut Estimates,
) {
    let direct = router.best(0, 1).remove(0);
    let direct_s = seconds(&direct, settings);
    for path in router.best(1, usize::MAX) {
        let whole = MinMaxPath { relays: Vec::new(), rtts: vec![path.total_rtt()] };
        let ratio = direct.total_rtt().as_secs_f64() / whole.total_rtt().as_secs_f64();
        forwarded.push(ratio, direct_s / seconds(&whole, settings));
        let ratio = direct.total_rtt().as_secs_f64() / path.largest_leg().as_secs_f64();
        single.push(ratio, direct_s / seconds(&path, settings));
    }
    let two_s = seconds(&router.cloudified(2, 1)[0], settings);
    for path in router.cloudified(3, usize::MAX) {
        let estimated = router.gain_over_two(&path).expect("it has three relays");
        third.push(estimated, two_s / seconds(&path, settings));
    }
}
