//! Leg profiles, as the kernel shows them of a relay's sockets.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;

use tradewind_desired::LegProfile;
use tradewind_net::first_window::FirstWindows;
use tradewind_relay::config::LegTo;

use crate::support::{
    Chain, Running, content, destination, echo, forward, gateway_config, relay_config, route_over,
    wait_for,
};

fn profile(text: &str) -> LegProfile {
    toml::from_str(text).unwrap()
}

/// What `ss` tells of the connections to `address`, one line each.
pub(crate) fn told_of(address: SocketAddr) -> Vec<String> {
    let filter = format!("dst {address}");
    let output = Command::new("ss").args(["-tinHO", "state", "established", &filter]).output();
    let output = output.expect("ss, of iproute2, is there");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn each_leg_gets_the_first_window_of_its_profile() {
    if let Err(error) = FirstWindows::attach() {
        crate::support::skipped(&error);
        return;
    }
    let to = echo();
    let mut last = relay_config();
    last.leg.dial = profile("congestion_control = 'reno'\ninitial_window = 77");
    let last = Running::relay(&last);
    let mut first = relay_config();
    first.leg.to =
        vec![LegTo { address: last.address(), dial: profile("profile = 'quick-start'") }];
    let chain = Chain::of(vec![Running::relay(&first), last], to);
    let mut stream = chain.connect();
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    for (address, expected) in [(chain.relays[1].address(), " cwnd:2800 "), (to, " cwnd:77 ")] {
        let told = told_of(address);
        assert!(told.iter().any(|line| line.contains(expected)), "{expected}: {told:?}");
    }
}

#[test]
fn a_pacing_cap_is_lifted_after_its_round_trips_and_stays_without_them() {
    let bytes = content(3_000_000);
    for (rtts, lifted) in [("", false), ("\npacing_rtts = 1", true)] {
        let (to, served) = destination(|mut stream| {
            let mut received = vec![0; 3_000_000];
            stream.read_exact(&mut received).unwrap();
            stream.write_all(b"!").unwrap();
            let _end = stream.read(&mut [0]);
            received
        });
        let mut config = gateway_config(route_over(&[]));
        config.forward = vec![forward(to)];
        config.leg.dial = profile(&format!("pacing_rate = '400 Mbit/s'{rtts}"));
        let gateway = Running::gateway(&config);
        let mut stream = crate::support::connect(gateway.address());
        stream.write_all(&bytes).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        let is_capped = || told_of(to).iter().any(|line| line.contains("bps/400000000bps"));
        if lifted {
            wait_for("the cap to be lifted", || !is_capped());
        } else {
            assert!(is_capped(), "{:?}", told_of(to));
        }
        drop(stream);
        assert!(served.join().unwrap() == bytes, "other content arrived than was sent");
    }
}
