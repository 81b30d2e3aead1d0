//! CDD's experiments on the number of relays, and on small files.

use tradewind_plan::routing::MinMaxPath;
use tradewind_plan::routing::advice::{Verdict, advise};

use super::{World, plain, quantile, seconds};

/// Large files from Mumbai, in bytes.
const FROM_MUMBAI: u64 = 3_900_000;
/// Small files, from Mumbai and from New York, in bytes.
const SMALL: [u64; 2] = [17_000, 18_000];
/// Loss ratios in percent, which CDD does not state: they are swept.
const LOSS_PERCENT: [f64; 5] = [0.0, 0.01, 0.05, 0.1, 0.5];

/// Returns ends in another cloud's regions of the cities, so that no relay is an end.
fn mumbai_to_san_francisco(cloud: &str) -> (&'static str, &'static str) {
    match cloud {
        "aws" => ("gcp:asia-south1", "azure:westus"),
        _ => ("aws:ap-south-1", "aws:us-west-1"),
    }
}

/// Returns the ends, with Virginia in place of New York.
fn new_york_to_san_francisco(cloud: &str) -> (&'static str, &'static str) {
    match cloud {
        "aws" => ("gcp:us-east4", "azure:westus"),
        _ => ("aws:us-east-1", "aws:us-west-1"),
    }
}

pub(super) fn report(world: &World) {
    hops(world);
    small(world);
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
