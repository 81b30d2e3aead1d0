//! The bounds of a host's owner on rate and spend, kept by its agent.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::host::{
    Controller, Host, carry, document, document_of_gateway, echo, is_ready, relay, signed, until,
    version,
};
use serde_json::Value;
use tradewind_control::message::{
    Document, Probe, ProbeKind, ProbeOutcome, ProcessState, ProcessStatus, Report, SESSIONS_SOCKET,
};

/// Returns an address that nobody listens on.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Returns a configuration with metrics.
fn with_metrics(config: &str) -> String {
    format!("metrics = '{}'\n{config}", free_address())
}

#[test]
fn spend_of_the_owner_closes_the_relay_whatever_the_controller_says_and_outlives_the_agent() {
    // A thousand bytes.
    let spend = "rate = '50 Mbit/s'\nspend = '0.0000001 usd/day'\negress_usd_per_gb = 0.1\n";
    let (controller, mut host) = host_with("spend", spend);
    let log = format!("access_log = {{ to = 'unix:{SESSIONS_SOCKET}' }}\n");
    let mut wanted = document_of_gateway(echo());
    wanted.processes[0].config = with_metrics(&wanted.processes[0].config);
    wanted.processes.extend(document(1, &[("relay", with_metrics(&relay(&log)))]).processes);
    controller.says(signed(&wanted));
    let report = controller.report("both", |r| is_ready(r, 1) && r.processes.len() == 2);
    assert_eq!(report.bounds.unwrap().rate, Some("50 Mbit/s".parse().unwrap()));
    assert!(!is_used_up(&report));
    let config = fs::read_to_string(host.home().join("data/relay.toml")).unwrap();
    assert!(config.contains("25 Mbit/s"), "half of it: {config}");

    let gateway = report.processes.iter().find(|it| it.name == "gateway").unwrap().listen[0];
    for _ in 0..12 {
        carry(gateway);
    }
    controller.report("the end of the spend", is_used_up);
    until("no relay", || host.processes("relay").is_empty().then_some(()));
    carry(gateway);

    // Neither a newer document nor a new agent opens it again.
    controller.says(signed(&Document { version: version(2), ..wanted.clone() }));
    controller.report("the next document", |r| is_ready(r, 2) && is_used_up(r));
    host.kill();
    // The killed one has not seen this.
    controller.says(signed(&Document { version: version(3), ..wanted }));
    host.run();
    controller.report("another agent", |r| is_ready(r, 3) && is_used_up(r));
    assert!(host.processes("relay").is_empty());
}

/// Returns a host that runs with these lines more in its ceiling, and its controller.
fn host_with(name: &str, lines: &str) -> (Controller, Host) {
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::default());
    let mut host = Host::new(name);
    assert!(host.join(controller.address).status.success());
    let file = host.home().join("ceiling.toml");
    let ceiling = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{lines}{ceiling}")).unwrap();
    host.run();
    (controller, host)
}

/// Returns a host whose owner bounds its spend to so many bytes, and its controller.
fn host_with_spend(name: &str, bytes: u64) -> (Controller, Host) {
    let usd = bytes as f64 / 1e9;
    host_with(name, &format!("spend = '{usd:.9} usd/day'\negress_usd_per_gb = 1.0\n"))
}

/// Returns whether the spend of a report's host is used up.
fn is_used_up(report: &Report) -> bool {
    report.bounds.unwrap().spend.unwrap().is_used_up
}

/// Sends so many bytes over an open session, and waits until they come back.
fn send(stream: &mut std::net::TcpStream, bytes: usize) {
    stream.write_all(&vec![7; bytes]).unwrap();
    stream.read_exact(&mut vec![0; bytes]).unwrap();
}

#[test]
fn all_processes_end_where_a_used_up_spend_cannot_be_put_into_effect() {
    let (controller, host) = host_with_spend("unable", 1000);
    let mut wanted = document_of_gateway(echo());
    wanted.processes[0].config = with_metrics(&wanted.processes[0].config);
    controller.says(signed(&wanted));
    let gateway = controller.report("a gateway", |r| is_ready(r, 1)).processes[0].listen[0];
    // What runs is beyond it from now on, in whatever form.
    let file = host.home().join("ceiling.toml");
    let ceiling = fs::read_to_string(&file).unwrap();
    fs::write(&file, ceiling.replace("127.0.0.1/32", "192.0.2.1/32")).unwrap();
    for _ in 0..12 {
        carry(gateway);
    }
    controller.report("the end of the spend", is_used_up);
    until("no gateway", || host.processes("gateway").is_empty().then_some(()));
}

#[test]
fn process_that_drains_counts_beside_the_next_one_and_has_further_documents_wait() {
    let (controller, _host) = host_with_spend("drains", 1000);
    // Each destination serves one session at a time.
    let says = |number: u64, name: &str| {
        let mut wanted = Document { version: version(number), ..document_of_gateway(echo()) };
        wanted.processes[0].name = name.to_owned();
        wanted.processes[0].config = with_metrics(&wanted.processes[0].config);
        controller.says(signed(&wanted));
    };
    let open = |name: &str| {
        let is_ready = |it: &&ProcessStatus| it.name == name && it.state == ProcessState::Ready;
        let report = controller.report(name, |r| r.processes.iter().any(|it| is_ready(&it)));
        let process = report.processes.iter().find(is_ready).unwrap();
        std::net::TcpStream::connect(process.listen[0]).unwrap()
    };
    says(1, "gateway");
    let mut old = open("gateway");
    send(&mut old, 100);
    says(2, "gateway-2");
    let mut new = open("gateway-2");
    says(3, "gateway-3");
    thread::sleep(Duration::from_secs(2));
    let waits = controller.report("no news", |_| true);
    assert_eq!((waits.applied, waits.refused), (Some(version(2)), None));

    // So much over the second one hides what the first one sends, if the larger sum counts.
    send(&mut new, 600);
    send(&mut old, 500);
    drop(old);
    controller.report("both", is_used_up);
    controller.report("the third document", |r| r.applied == Some(version(3)));
}

#[test]
fn rate_tests_run_one_at_a_time_and_count_even_if_they_fail() {
    // It takes connections, and is no responder.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (controller, host) = host_with_spend("rate-tests", 20_000_000);
    let probe = |id, max_rate_mbps| Probe {
        id,
        to: "there".parse().unwrap(),
        target: silent.local_addr().unwrap(),
        kind: ProbeKind::Rate { connections: 1, duration_ms: 8000, max_rate_mbps },
    };
    controller.said.lock().unwrap().probes =
        vec![probe(1, None), probe(2, Some(8.0)), probe(3, Some(8.0)), probe(4, Some(1.0))];
    let failure = |id: u64| {
        until("a failure", || {
            let said = controller.said.lock().unwrap();
            let result = said.reports.iter().flat_map(|r| &r.results).find(|it| it.id == id)?;
            let ProbeOutcome::Failed { reason } = &result.outcome else { panic!("{result:?}") };
            Some(reason.clone())
        })
    };
    for (id, expected) in [(1, "greatest rate"), (3, "one rate test"), (4, "one rate test")] {
        let reason = failure(id);
        assert!(reason.contains(expected), "{id}: {reason}");
    }
    let reason = failure(2);
    assert!(!reason.contains("ceiling"), "{reason}");
    let spent: Value =
        serde_json::from_str(&fs::read_to_string(host.home().join("spent.json")).unwrap()).unwrap();
    assert_eq!(spent["tests"], 8_000_000 + (4 << 20), "the second alone, in full");

    // Another one would go beyond the spend.
    controller.said.lock().unwrap().probes = vec![probe(5, Some(8.0))];
    assert!(failure(5).contains("`spend`"));
}
