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
use tradewind_grant::{
    self as grant, Destination, Nonce, PublicIdentity, Request, RevocationList, Sealer, Status,
};
use tradewind_net::processes;
use tradewind_relay::{Gateway, Handle, Relay, RelayError, Reloads, Shutdown};
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
    ("a_relay_killed_while_data_flows_shows_as_a_reset", killed_while_data_flows),
    ("a_relay_killed_while_its_session_is_silent_shows_as_a_reset", killed_while_silent),
    ("a_relay_killed_while_the_destination_is_slow_shows_as_a_reset", killed_while_slow),
    ("the_middle_of_three_relays_killed_shows_as_a_reset_at_both_ends", middle_killed),
    ("a_relay_killed_after_the_source_has_ended_shows_as_a_reset", killed_when_half_closed),
    ("a_relay_with_few_descriptors_admits_what_it_can_carry", few_descriptors),
    ("a_relay_out_of_descriptors_turns_clients_away_and_recovers", out_of_descriptors),
    ("a_gateway_leaves_a_relay_that_is_stopped_and_takes_it_again", stopped),
    ("a_gateway_leaves_a_path_whose_second_relay_is_killed", second_killed),
    ("sigterm_drains_and_a_second_one_stops", signals),
    ("a_stalled_reader_of_standard_error_stops_no_session", stalled_standard_error),
    ("an_upgrade_under_load_refuses_and_loses_nothing", upgrade_of_a_relay),
    ("an_upgrade_of_a_gateway_under_load_refuses_and_loses_nothing", upgrade_of_a_gateway),
    ("what_one_process_accepted_is_a_replay_to_the_next", upgrade_and_replays),
    (
        "a_successor_that_stands_still_keeps_headers_waiting_and_no_session",
        upgrade_to_one_that_stops,
    ),
    ("a_successor_that_fails_changes_nothing", upgrade_that_fails),
    ("a_successor_that_declines_is_told_in_its_own_words", upgrade_that_is_declined),
    ("a_listener_that_systemd_passes_is_served_and_handed_on", passed_by_systemd),
    ("sighup_takes_a_policy_over_and_ends_what_it_allows_no_more", reload_of_a_policy),
    ("sighup_takes_operators_over_and_ends_what_others_granted", reload_of_operators),
    ("a_file_that_cannot_be_taken_over_changes_nothing_and_is_told", reload_that_fails),
    ("sighup_takes_a_gateways_routes_over", reload_of_a_gateway),
    ("a_revocation_ends_sessions_and_refuses_new_ones_with_its_own_cause", revocation),
    ("signals_without_a_meaning_are_ignored_with_a_line", signals_without_meaning),
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
