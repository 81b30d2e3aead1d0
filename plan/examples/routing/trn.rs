//! TRN: what the best relay brings between data centres, before and after TCP is tuned.

use tradewind_model::leg::DEFAULT_WINDOW;
use tradewind_plan::RelayType;
use tradewind_plan::routing::MinMaxPath;
use tradewind_plan::routing::advice::{LEAST_GAIN, Settings};
use tradewind_units::{Bandwidth, Bytes, RegionId};

use super::{World, mbps, plain, quantile, region, seconds};

/// TRN's eleven EC2 regions: Virginia, California, Oregon, Ireland, Frankfurt, Sao Paulo, Tokyo, Seoul,
/// Singapore, Sydney, Mumbai.
const REGIONS: [&str; 11] = [
    "aws:us-east-1",
    "aws:us-west-1",
    "aws:us-west-2",
    "aws:eu-west-1",
    "aws:eu-central-1",
    "aws:sa-east-1",
    "aws:ap-northeast-1",
    "aws:ap-northeast-2",
    "aws:ap-southeast-1",
    "aws:ap-southeast-2",
    "aws:ap-south-1",
];
/// What is carried: long enough for start-up not to matter.
const VOLUME: u64 = 10_000_000_000;

/// As operators set it for long paths.
const LARGE_WINDOW: Bytes = Bytes::new(64_000_000);

/// How a pair of data centres transfers.
struct Tuning {
    name: &'static str,
    window: Bytes,
    connections: u32,
    /// What a VM sends in all, relays included.
    vm_cap: Bandwidth,
}

impl Tuning {
    fn settings(&self) -> Settings {
        let relay_type =
            RelayType { capacity: self.vm_cap, per_connection: None, ..RelayType::cloudpilot() };
        let (last_mile, connections) = (Some(self.vm_cap), self.connections);
        Settings {
            window: self.window,
            relay_window: self.window,
            last_mile,
            connections,
            relay_type,
            ..plain(VOLUME, 0.0)
        }
    }
}

pub(super) fn report(world: &World) {
    println!("## trn-scope: the best single relay among 11 regions, 110 pairs, 10 GB\n");
    println!(
        "| TCP | VM cap | direct Mbit/s, least | most | median gain | p90 | over 1.5x | worth it |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for vm_gbps in [1.0, 5.0] {
        let vm_cap = mbps(vm_gbps * 1e3);
        let tuning = |name, window, connections| Tuning { name, window, connections, vm_cap };
        let tunings = [
            tuning("default, one connection", DEFAULT_WINDOW, 1),
            tuning("windows of 64 MB", LARGE_WINDOW, 1),
            tuning("10 connections", DEFAULT_WINDOW, 10),
            tuning("64 connections", DEFAULT_WINDOW, 64),
        ];
        for tuning in tunings {
            row(world, &tuning);
        }
    }
    println!();
}

fn row(world: &World, tuning: &Tuning) {
    let regions: Vec<RegionId> = REGIONS.iter().map(|id| region(id)).collect();
    let settings = tuning.settings();
    let (mut rates, mut gains) = (Vec::new(), Vec::new());
    for from in REGIONS {
        for to in REGIONS.iter().filter(|to| **to != from) {
            let router = world.router(from, to, &regions);
            let direct = seconds(&router.best(0, 1)[0], &settings);
            let relayed = router.best(1, usize::MAX);
            let fastest = relayed.iter().map(|path: &MinMaxPath| seconds(path, &settings));
            rates.push(VOLUME as f64 * 8.0 / 1e6 / direct);
            gains.push(direct / fastest.fold(f64::INFINITY, f64::min));
        }
    }
    let above = |least: f64| {
        100.0 * gains.iter().filter(|gain| **gain >= least).count() as f64 / gains.len() as f64
    };
    println!(
        "| {} | {} | {:.0} | {:.0} | {:.2}x | {:.2}x | {:.0} % | {:.0} % |",
        tuning.name,
        tuning.vm_cap,
        quantile(&rates, 0.0),
        quantile(&rates, 1.0),
        quantile(&gains, 0.5),
        quantile(&gains, 0.9),
        above(1.5),
        above(LEAST_GAIN)
    );
}
