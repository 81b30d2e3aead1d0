//! A change of each kind, through routes and through the program in the kernel.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use tradewind_net::clock::monotonic;
use tradewind_net::iproute::{Tool, batch};
use tradewind_net::jumpstart::{JumpStarts, Options, Values};
use tradewind_net::netns::Namespace;
use tradewind_net::route::{Placed, Routes, Windows};
use tradewind_units::{Bandwidth, Segments};

use super::{median, timed};

/// Number of routes that are set: the paper's PoP knows 34 others; a relay may know thousands of
/// hosts.
const ROUTES: u32 = 2000;
/// Number of destinations that the program in the kernel knows: as many as are stored by default.
const VALUES: u32 = 100_000;

/// Prints both tables.
pub(crate) fn print(rounds: usize) {
    println!("\nA change, microseconds each");
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let lines = ["link set lo up", "route add 10.0.0.0/8 dev lo"].map(str::to_owned);
    batch(&namespace, Tool::Ip, &lines).expect("loopback comes up");
    println!("{:<24} | {:>9} | new | other | gone | all swept", "through", "number");
    namespace.run(|| routes(rounds)).expect("the namespace is entered");
    namespace.run(|| values(rounds)).expect("the namespace is entered");
}

fn prefix(number: u32) -> IpNet {
    let address = Ipv4Addr::from(0x0a00_0000 + number);
    Ipv4Net::new(address, 32).expect("a host's prefix").into()
}

fn segments(count: u32) -> Segments {
    Segments::new(count).expect("above zero")
}

fn row(through: &str, number: u32, spans: [Duration; 4]) {
    let [new, other, gone, swept] = spans.map(|span| span.as_secs_f64() * 1e6 / f64::from(number));
    println!("{through:<24} | {number:>9} | {new:.2} | {other:.2} | {gone:.2} | {swept:.2}");
}

fn routes(rounds: usize) {
    let mut routes = Routes::open().expect("this kernel has netlink");
    let set = |routes: &mut Routes, window| {
        timed(|| {
            for number in 0..ROUTES {
                let windows = Windows { congestion: segments(window), receive: None };
                let placed = routes.set(prefix(number), windows).expect("it is set");
                assert_eq!(placed, Placed::Set, "a route leads there");
            }
        })
    };
    let mut spans = [Duration::ZERO; 4];
    spans[0] = median(rounds, || {
        let span = set(&mut routes, 50);
        routes.sweep().expect("they are swept");
        span
    });
    set(&mut routes, 50);
    let mut window = 50;
    spans[1] = median(rounds, || {
        window += 1;
        set(&mut routes, window)
    });
    spans[2] = median(rounds, || {
        let span = timed(|| {
            (0..ROUTES).for_each(|number| routes.remove(prefix(number)).expect("it is removed"));
        });
        set(&mut routes, 50);
        span
    });
    spans[3] = median(rounds, || {
        set(&mut routes, 50);
        timed(|| assert_eq!(routes.sweep().expect("they are swept"), ROUTES as usize, "all"))
    });
    row("routes", ROUTES, spans);
}

fn values(rounds: usize) {
    let mut starts = match JumpStarts::attach(&Options { most: VALUES, ..Options::default() }) {
        Ok(starts) => starts,
        Err(error) => return println!("SKIPPED the program in the kernel: {error}"),
    };
    let set = |starts: &mut JumpStarts, window| {
        let values = Values {
            window: segments(window),
            rate: Bandwidth::from_mbps(50.0).ok(),
            rtt: Some(Duration::from_millis(40)),
            expires: monotonic() + Duration::from_secs(90),
        };
        timed(|| (0..VALUES).for_each(|n| starts.set(prefix(n), values).expect("it is set")))
    };
    let mut spans = [Duration::ZERO; 4];
    spans[0] = median(rounds, || {
        starts.clear().expect("they are removed");
        set(&mut starts, 50)
    });
    let mut window = 50;
    spans[1] = median(rounds, || {
        window += 1;
        set(&mut starts, window)
    });
    spans[2] = median(rounds, || {
        let remove = |n| starts.remove(&prefix(n)).expect("it is removed");
        let span = timed(|| (0..VALUES).for_each(remove));
        set(&mut starts, 50);
        span
    });
    spans[3] = median(rounds, || {
        set(&mut starts, 50);
        timed(|| assert_eq!(starts.clear().expect("they are removed"), VALUES as usize, "all"))
    });
    row("the program (eBPF maps)", VALUES, spans);
}
