//! A relay or gateway as a process of its own: killed, out of descriptors, ended by signals,
//! upgraded.
//!
//! This program is its own child: called with a configuration it is a relay or a gateway, otherwise
//! it runs the tests one after the other.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod bounds;
mod child;
mod killed;
mod paths;
mod reload;
#[path = "../support/mod.rs"]
mod support;
mod upgrade;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bounds::*;
use child::*;
use killed::*;
use paths::*;
use reload::*;
use support::{
    Running, connect, content, destination, digest, echo, forward, gateway_config,
    gateway_config_text, grant_for, identity, loopback, relay_config, relay_config_text,
    relay_loopback, send, set_plain, unix_now, wait_for,
};
use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_desired::{Hop, Route, RouteTable};
use tradewind_gateway::Gateway;
use tradewind_grant::{
    self as grant, Destination, Nonce, PublicIdentity, Request, RevocationList, Sealer, Status,
};
use tradewind_net::processes;
use tradewind_relay::Relay;
use tradewind_stream::{Handle, Reloads, Shutdown, StreamError};
use tradewind_telemetry::logs::FILTER_VARIABLE;
use tradewind_telemetry::{LogFormat, init_logs};
use upgrade::*;

/// The file of a relay's configuration, and of a gateway's.
const RELAY_CONFIG: &str = "TRADEWIND_TEST_RELAY_CONFIG";
const GATEWAY_CONFIG: &str = "TRADEWIND_TEST_GATEWAY_CONFIG";
/// The variable that is set if the process is to log.
const LOGS: &str = "TRADEWIND_TEST_LOGS";

type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    ("relay_kill_with_data_is_a_reset", killed_while_data_flows),
    ("relay_kill_while_silent_is_a_reset", killed_while_silent),
    ("relay_kill_with_slow_destination_is_a_reset", killed_while_slow),
    ("middle_relay_kill_resets_both_ends", middle_killed),
    ("relay_kill_when_half_closed_is_a_reset", killed_when_half_closed),
    ("few_descriptors_limit_admission", few_descriptors),
    ("exhausted_descriptors_recover", out_of_descriptors),
    ("stopped_relay_is_left_and_used_again", stopped),
    ("killed_second_relay_fails_over", second_killed),
    ("sigterm_drains_then_stops", signals),
    ("stalled_stderr_stops_no_session", stalled_standard_error),
    ("relay_upgrade_under_load", upgrade_of_a_relay),
    ("gateway_upgrade_under_load", upgrade_of_a_gateway),
    ("upgrade_keeps_the_replay_table", upgrade_and_replays),
    ("stalled_successor_delays_only_headers", upgrade_to_one_that_stops),
    ("failed_successor_changes_nothing", upgrade_that_fails),
    ("declining_successor_is_quoted", upgrade_that_is_declined),
    ("systemd_listener_is_served_and_passed_on", passed_by_systemd),
    ("sighup_reloads_the_policy", reload_of_a_policy),
    ("sighup_reloads_the_operators", reload_of_operators),
    ("invalid_file_changes_nothing_at_reload", reload_that_fails),
    ("sighup_reloads_gateway_routes", reload_of_a_gateway),
    ("revocation_ends_and_refuses_sessions", revocation),
    ("other_signals_are_logged_and_ignored", signals_without_meaning),
];

fn main() {
    if let Ok(config) = std::env::var(RELAY_CONFIG) {
        return be_a_relay(&config);
    }
    if let Ok(config) = std::env::var(GATEWAY_CONFIG) {
        return be_a_gateway(&config);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|word| name.contains(*word));
    for (plain, legs) in [(false, "encrypted"), (true, "plain")] {
        set_plain(plain);
        for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
            if arguments.iter().any(|word| word == "--list") {
                println!("{name}, {legs}: test");
                continue;
            }
            print!("test {name}, {legs} ... ");
            io::stdout().flush().unwrap();
            test();
            println!("ok");
        }
    }
}

fn gateway(hops: Vec<Hop>, to: SocketAddr) -> Running {
    let mut config = gateway_config(Route::Relays(hops));
    config.forward = vec![forward(to)];
    Running::gateway(&config)
}
