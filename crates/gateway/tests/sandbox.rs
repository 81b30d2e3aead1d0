//! A gateway in the sandbox: threads that read untrusted bytes start no programs. Alone in its
//! process, which cannot leave the sandbox again.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod support;

use std::fs;
use std::path::Path;

use tradewind_config::GatewayConfig;
use tradewind_desired::Hop;
use tradewind_gateway::Gateway;
use tradewind_net::sandbox;
use tradewind_stream::Resolver;

use support::names::{NameReply, NameServer};
use support::{Running, gateway_config_text, identity, loopback, skipped, wait_for};

/// Returns the number of filters of the thread with this status file; since Linux 5.9.
fn filters(status: &Path) -> Option<u32> {
    let text = fs::read_to_string(status).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
    number.trim().parse().ok()
}

/// Returns the number of filters of each thread of this process with this name.
fn threads(name: &str) -> Vec<Option<u32>> {
    let all = fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
    let called = |thread: &Path| fs::read_to_string(thread.join("comm")).unwrap_or_default();
    let named = all.filter(|thread| called(thread).trim_end() == name);
    named.map(|thread| filters(&thread.join("status"))).collect()
}

#[test]
fn network_threads_start_no_programs() {
    let names = [("relay.example.com", NameReply::Address([127, 0, 0, 1]))];
    let names = NameServer::new("sandbox", &names);
    // Threads that this one starts from now on are in it as well.
    sandbox::enter(&[], &[]).unwrap();
    let Some(of_all) = filters(Path::new("/proc/thread-self/status")) else {
        return skipped(&"the kernel does not count filters");
    };
    let hop =
        Hop { name: "r".parse().unwrap(), address: loopback(), identity: identity().public() };
    let text = gateway_config_text(&identity(), &hop, "192.0.2.1:9".parse().unwrap());
    let text = text.replace("address = '127.0.0.1:0'", "address = 'relay.example.com:7000'");
    let config = GatewayConfig::parse(&text).unwrap();
    let resolver = Resolver::reading(names.conf.0.clone(), names.hosts.0.clone(), names.port);
    let gateway = Gateway::bind(&config).unwrap().with_resolver(resolver);
    let _gateway = Running::gateway_of(gateway);
    for name in ["worker 0", "prober", "names"] {
        // Started, and restricted by then.
        wait_for(name, || threads(name) == [Some(of_all + 1)]);
    }
}
