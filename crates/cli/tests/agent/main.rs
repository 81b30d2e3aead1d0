//! `tradewind agent` against a controller that says what the test has it say.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod host;
mod spend;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::{
    Controller, Host, carry, document, document_of_gateway, echo, is_reached, is_ready, key, relay,
    role, signed, until, version,
};
use tradewind_control::learner::JumpArm;
use tradewind_control::message::{
    Arm, Document, Probe, ProbeKind, ProbeOutcome, ProcessState, Report, SessionBatch,
    SignedDocument,
};
use tradewind_control::{Invite, InviteSecret};
use tradewind_grant::IdentityKey;

#[test]
fn agent_runs_what_its_controller_says_and_its_ceiling_allows() {
    let said = Arc::default();
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&said));
    let mut host = Host::new("documents");
    let joined = host.join(controller.address);
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    let again = host.join(controller.address);
    assert_eq!(String::from_utf8_lossy(&again.stdout), "joined as lab:here-1\n");
    let joins = said.lock().unwrap().joins.clone();
    assert_eq!(joins[0], joins[1], "the same identity both times");

    host.run();
    until("a ready line", || host.out().contains("\"ready\":\"agent\"").then_some(()));
    controller.says(signed(&document(1, &[("relay", relay(""))])));
    let report = controller.report("a relay", |r| is_ready(r, 1));
    is_reached(&report);
    let first = host.processes("relay");

    // A changed policy is applied by the running process.
    let policy = "[policy]\ndestinations = ['192.0.2.7:443']\n";
    controller.says(signed(&document(2, &[("relay", relay(policy))])));
    controller.report("a policy", |r| is_ready(r, 2));
    until("the reload", || host.log().contains("relay.toml: taken over").then_some(()));
    assert_eq!(host.processes("relay"), first);

    // Another key takes a new process.
    let more = format!("metrics = '127.0.0.1:0'\n{policy}");
    controller.says(signed(&document(3, &[("relay", relay(&more))])));
    until("a successor", || {
        let now = host.processes("relay");
        (now.len() == 1 && now != first).then_some(())
    });
    is_reached(&controller.report("it again", |r| is_ready(r, 3)));

    // Beyond the ceiling, by another's signature, for another host: nothing changes.
    let second = host.processes("relay");
    let open = relay("[policy]\ndestinations = ['0.0.0.0/0:*']\n");
    controller.says(signed(&document(4, &[("relay", open)])));
    let refused = controller.report("a refusal", |r| r.refused.is_some());
    assert_eq!(refused.applied, Some(version(3)));
    let reason = refused.refused.unwrap().reason;
    assert!(reason.contains("0.0.0.0/0:* is beyond the ceiling"), "{reason}");
    let stranger = IdentityKey::from_entropy([43; 32]).signer();
    let nothing = document(5, &[]);
    controller.says(SignedDocument::sign(&nothing, &stranger).unwrap());
    until("no trust", || host.log().contains("not signed by this controller").then_some(()));
    let of_another = Document { host: "lab:here-2".parse().unwrap(), ..nothing };
    controller.says(signed(&of_another));
    until("no match", || host.log().contains("it is for host `lab:here-2`").then_some(()));
    assert_eq!(host.processes("relay"), second);
    assert_eq!(host.status()["applied"], "1.3");

    // A process that is no longer named ends, another one begins.
    controller.says(signed(&document(6, &[("other", relay(""))])));
    controller.report("another", |r| is_ready(r, 6) && r.processes[0].name == "other");
    until("the end", || host.processes("relay").is_empty().then_some(()));
    until("no leftovers", || (!host.home().join("data/relay.toml").exists()).then_some(()));
}

#[test]
fn relay_outlives_controller_and_agent() {
    let said = Arc::default();
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&said));
    let address = controller.address;
    let mut host = Host::new("outlives");
    assert!(host.join(address).status.success());
    host.run();
    controller.says(signed(&document(1, &[("relay", relay(""))])));
    let before = controller.report("a relay", |r| is_ready(r, 1));
    let process = host.processes("relay");

    drop(controller);
    until("an unreached controller", || (host.status()["is_linked"] == false).then_some(()));
    host.kill();
    is_reached(&before);
    // Without the controller, the agent finds the relay by what it kept.
    host.run();
    until("the relay", || (host.status()["processes"][0]["state"] == "ready").then_some(()));
    assert_eq!(host.processes("relay"), process);
    let second = host.command(&["run"]).output().unwrap();
    let line = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(line.contains("another agent runs here"), "{line}");

    said.lock().unwrap().had.clear();
    let controller = Controller::start(address, said);
    let after = controller.report("it again", |r| is_ready(r, 1));
    assert_eq!(after.processes, before.processes);
    let had = until("a poll", || controller.said.lock().unwrap().had.first().cloned());
    assert_eq!(had, "1.1");

    // A relay that is killed is started again.
    assert!(
        Command::new("kill").args(["-KILL", &process[0].to_string()]).status().unwrap().success()
    );
    let report = controller.report("another", |r| {
        is_ready(r, 1) && r.processes[0].listen != before.processes[0].listen
    });
    assert_ne!(host.processes("relay"), process);
    is_reached(&report);

    // Leaving ends it, once no agent would start it again, and leaves nothing.
    let early = host.command(&["leave"]).output().unwrap();
    let line = String::from_utf8_lossy(&early.stderr).into_owned();
    assert!(line.contains("another agent runs here"), "{line}");
    host.kill();
    for _ in 0..2 {
        assert!(host.command(&["leave"]).status().unwrap().success());
        assert!(host.processes("relay").is_empty() && !host.home().exists());
    }
}

#[test]
fn death_of_a_process_is_reported_at_once() {
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::default());
    let mut host = Host::new("death");
    assert!(host.join(controller.address).status.success());
    host.run();
    // By the clock, the next report would come much later.
    let document = Document { report_every_ms: 60_000, ..document(1, &[("relay", relay(""))]) };
    controller.says(signed(&document));
    controller.report("ready", |report| is_ready(report, 1));
    let process = host.processes("relay")[0];
    let killed = Instant::now();
    Command::new("kill").args(["-KILL", &process.to_string()]).status().unwrap();
    let has_failed = |report: &Report| report.processes[0].state == ProcessState::Failed;
    let report = controller.report("its death", has_failed);
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
    let failure = report.processes[0].failure.clone().unwrap();
    assert!(failure.starts_with("ended with signal: 9"), "{failure}");
    controller.report("another one", |report| is_ready(report, 1));
}

#[test]
fn process_that_hangs_or_runs_by_another_configuration_is_reported() {
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::default());
    let mut host = Host::new("stale");
    assert!(host.join(controller.address).status.success());
    host.run();
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = relay(&format!("metrics = '{metrics}'\n"));
    controller.says(signed(&document(1, &[("relay", config.clone())])));
    controller.report("ready", |report| is_ready(report, 1));
    let fails = |report: &Report| report.processes[0].failure.is_some();
    let is_told = |what: &str| {
        let report = controller.report(what, fails);
        assert_eq!(report.processes[0].state, ProcessState::Ready);
        let failure = report.processes[0].failure.clone().unwrap();
        assert!(failure.starts_with(what), "{failure}");
    };
    let is_well =
        || drop(controller.report("well again", |report| is_ready(report, 1) && !fails(report)));
    // Somebody else writes its file.
    let file = host.home().join("data/relay.toml");
    fs::write(&file, format!("{config}# another\n")).unwrap();
    is_told("it does not run by its newest configuration");
    fs::write(&file, config).unwrap();
    is_well();
    let process = host.processes("relay")[0].to_string();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
    };
    signal("-STOP");
    is_told("it does not answer");
    signal("-CONT");
    is_well();
}

#[test]
fn probes_are_run_and_reported_until_acknowledged() {
    let said = Arc::default();
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&said));
    let mut host = Host::new("probes");
    assert!(host.join(controller.address).status.success());
    host.run();
    // The agent's own responder, on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let document = Document { responder_port: free.port(), ..document(1, &[]) };
    controller.says(signed(&document));
    controller.report("the document", |r| r.applied == Some(version(1)));
    let probe = |id, target, kind| Probe { id, to: "there".parse().unwrap(), target, kind };
    let rate = ProbeKind::Rate { connections: 2, duration_ms: 500, max_rate_mbps: Some(50.0) };
    let silent = "127.0.0.1:1".parse().unwrap();
    said.lock().unwrap().probes = vec![
        probe(1, free, ProbeKind::Rtt { samples: 3, interval_ms: 10 }),
        probe(2, free, rate),
        probe(3, silent, ProbeKind::Rtt { samples: 1, interval_ms: 10 }),
        probe(4, free, ProbeKind::Transfers { sizes: [1000, 50_000, 100_000] }),
    ];
    let mut results = BTreeMap::new();
    until("four results", || {
        for report in said.lock().unwrap().reports.drain(..) {
            results.extend(report.results.into_iter().map(|result| (result.id, result.outcome)));
        }
        (results.len() == 4).then_some(())
    });
    assert!(
        matches!(results[&1], ProbeOutcome::Rtt { samples: 1..=3, min_ms, .. } if min_ms < 1000.0)
    );
    let ProbeOutcome::Rate { rate_mbps, connections: 2, bytes, .. } = results[&2] else {
        panic!("{results:?}")
    };
    assert!(rate_mbps > 0.0 && bytes > 0, "{results:?}");
    assert!(matches!(&results[&3], ProbeOutcome::Failed { reason } if reason.contains("refused")));
    let ProbeOutcome::Transfers { times } = &results[&4] else { panic!("{results:?}") };
    let sizes: Vec<_> = times.iter().map(|time| (time.arm, time.size_bytes)).collect();
    // Nothing was learned, and so nothing jumps.
    let control = [1000, 50_000, 100_000].map(|size| (JumpArm::Control, size));
    assert_eq!(sizes, control);
    controller.report("nothing left", |r| r.results.is_empty());
}

/// The batches of sessions in the reports of an agent.
type Batches = BTreeMap<(u64, u64), SessionBatch>;

/// Adds the batches that were reported since, and returns all sessions; a batch never changes.
fn sessions_in(batches: &mut Batches, controller: &Controller) -> u64 {
    for report in controller.said.lock().unwrap().reports.drain(..) {
        let Some(batch) = report.sessions else { continue };
        let known = batches.entry((batch.run, batch.number)).or_insert_with(|| batch.clone());
        assert_eq!(*known, batch);
    }
    batches.values().flat_map(|batch| &batch.tallies).map(|tally| tally.sessions).sum()
}

#[test]
fn sessions_are_tallied_and_each_counts_once() {
    let said = Arc::default();
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&said));
    let mut host = Host::new("sessions");
    assert!(host.join(controller.address).status.success());
    host.run();
    controller.says(signed(&document_of_gateway(echo())));
    let gateway = controller.report("a gateway", |r| is_ready(r, 1)).processes[0].listen[0];
    let process = host.processes("gateway");

    said.lock().unwrap().loses_answers = true;
    carry(gateway);
    let mut repeats = Vec::new();
    until("the same batch twice", || {
        repeats.extend(said.lock().unwrap().reports.drain(..).filter_map(|r| r.sessions));
        (repeats.len() > 1).then_some(())
    });
    assert_eq!(repeats[0], repeats[1]);
    let first = repeats.remove(0);
    let [tally] = &first.tallies[..] else { panic!("{first:?}") };
    assert_eq!((tally.flow.as_str(), tally.path.len(), tally.arm), ("orders", 0, Arm::Other));
    assert_eq!((tally.sessions, tally.failed, tally.size_class), (1, 0, 7));
    assert_eq!((tally.bytes_up, tally.bytes_down), (100, 100));
    assert!(tally.seconds > 0.0 && tally.log_seconds.is_finite(), "{tally:?}");

    // Those that end meanwhile are of the next batch.
    carry(gateway);
    carry(gateway);
    said.lock().unwrap().loses_answers = false;
    let mut batches = Batches::from([((first.run, first.number), first.clone())]);
    until("all three", || (sessions_in(&mut batches, &controller) == 3).then_some(()));
    controller.report("nothing left", |r| r.sessions.is_none());
    assert_eq!(sessions_in(&mut batches, &controller), 3);
    until("the owner's lines", || (host.access_log().lines().count() == 3).then_some(()));
    for line in host.access_log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["flow"], &line["bytes_up"]), (&"orders".into(), &100.into()), "{line}");
    }

    // A gateway that outlives its agent finds the next one's socket; sessions meanwhile are lost.
    host.kill();
    carry(gateway);
    host.run();
    until("the gateway", || (host.status()["processes"][0]["state"] == "ready").then_some(()));
    assert_eq!(host.processes("gateway"), process);
    let mut again = Batches::new();
    until("a session that is told", || {
        carry(gateway);
        (sessions_in(&mut again, &controller) > 0).then_some(())
    });
    assert!(again.values().all(|batch| batch.run != first.run), "{again:?}");
}

#[test]
fn bad_invites_and_folders_are_refused_in_one_line() {
    let host = Host::new("bad");
    let refuses = |words: &[&str], code: i32, expected: &str| {
        let output = host.command(words).output().unwrap();
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line}");
        assert!(line.contains(expected) && line.lines().count() == 1, "{line}");
    };
    refuses(&["join", "twinvite1_nonsense"], 2, "not an invite");
    refuses(&["run"], 2, "has joined no controller yet");
    refuses(&["status"], 2, "has joined no controller yet");
    let secret = InviteSecret::from_entropy([5; 16]);
    let closed = "127.0.0.1:1".parse().unwrap();
    let invite = Invite { controller: closed, identity: key().public(), role: role(), secret };
    refuses(&["join", &invite.to_string()], 1, "controller 127.0.0.1:1: cannot be reached");
}
