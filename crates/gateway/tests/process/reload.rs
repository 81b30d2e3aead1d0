//! Reloads of policies, operators and revocation lists.

use super::*;

/// The rule of a relay's policy that covers all of loopback, and one for a single destination.
pub(super) const ALL_DESTINATIONS: &str =
    "destinations = ['127.0.0.0/8:*', '[::1]/128:*', '*.example.com:*', '*.invalid:*']";

pub(super) fn only(to: SocketAddr) -> String {
    format!("destinations = ['{}/32:{}']", to.ip(), to.port())
}

/// Waits until `stream` is reset, and returns the time taken.
pub(super) fn reset_after(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    assert_reset(stream.read_exact(&mut [0; 1]));
    begun.elapsed()
}

pub(super) fn reload_of_a_policy() {
    let (allowed, dropped) = (echo(), echo());
    let log = Log::new("policy");
    let process = Process::start_by(log.command());
    let to_allowed = gateway(vec![process.hop.clone()], allowed);
    let to_dropped = gateway(vec![process.hop.clone()], dropped);
    let (mut stays, mut goes) = (connect(to_allowed.address()), connect(to_dropped.address()));
    ping(&mut stays).unwrap();
    ping(&mut goes).unwrap();
    process.reload(&process.config.replace(ALL_DESTINATIONS, &only(allowed)));
    print!("ended {} ms after SIGHUP ... ", reset_after(&mut goes).as_millis());
    ping(&mut stays).unwrap();
    ping(&mut connect(to_allowed.address())).unwrap();
    assert_reset(ping(&mut connect(to_dropped.address())));
    log.wait_for(&["taken over", "1 session ended"]);
    assert_eq!(process.metric("tradewind_relay_sessions_total{outcome=\"revoked\"}"), Some(1.0));
    process.reload(&process.config);
    wait_for("the old policy", || ping(&mut connect(to_dropped.address())).is_ok());
    ping(&mut stays).unwrap();
}

pub(super) fn reload_of_operators() {
    let process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    let ours = support::operator().public().to_string();
    let other = grant::OperatorKey::from_entropy([8; 32]).public().to_string();
    let both = format!("{ours}', '{other}");
    process.reload(&process.config.replace(&ours, &both));
    process.reload(&process.config.replace(&ours, &both));
    ping(&mut stream).unwrap();
    process.reload(&process.config.replace(&ours, &other));
    reset_after(&mut stream);
    assert_reset(ping(&mut connect(gateway.address())));
    process.reload(&process.config);
    wait_for("the operator", || ping(&mut connect(gateway.address())).is_ok());
}

pub(super) fn reload_that_fails() {
    let log = Log::new("fails");
    let process = Process::start_by(log.command());
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    // Its valid parts are not applied either.
    let nothing = process.config.replace(ALL_DESTINATIONS, "destinations = ['192.0.2.1/33:*']");
    process.reload(&nothing);
    log.wait_for(&["policy.destinations", "nothing of it is taken over"]);
    ping(&mut stream).unwrap();
    ping(&mut connect(gateway.address())).unwrap();
    let restart = process.config.replace("workers = 1", "workers = 2");
    process.reload(&restart);
    log.wait_for(&["`workers`: takes effect after an upgrade (SIGUSR2) or a restart"]);
    // Limits are applied, except those of listeners.
    let limits = "[limits]\nsessions = 1\nbacklog = 7\neach_gateway = { sessions = 1 }\n";
    process.reload(&process.config.replace("[policy]", &format!("{limits}[policy]")));
    log.wait_for(&["`limits.backlog`: takes effect after an upgrade (SIGUSR2) or a restart"]);
    assert!(ping(&mut connect(gateway.address())).is_err(), "there are more than one already");
    process.reload(&restart);
    wait_for("room", || ping(&mut connect(gateway.address())).is_ok());
    let text = fs::read_to_string(&log.0).unwrap();
    let refused = text.lines().find(|line| line.contains("nothing of it")).unwrap();
    assert!(!refused.contains("restart"), "{refused}");
    ping(&mut stream).unwrap();
}

pub(super) fn reload_of_a_gateway() {
    let relays = [Running::relay(&relay_config()), Running::relay(&relay_config())];
    let (first, second) = (relays[0].hop("first"), relays[1].hop("second"));
    let process = Process::gateway(&first, echo());
    let mut stream = connect(process.hop.address);
    ping(&mut stream).unwrap();
    let moved = process.config.replace(&first.address.to_string(), &second.address.to_string());
    let moved = moved.replace(&first.identity.to_string(), &second.identity.to_string());
    process.reload(&moved);
    wait_for("the second relay", || {
        ping(&mut connect(process.hop.address)).unwrap();
        relays[1].handle.snapshot().accepted > 0
    });
    ping(&mut stream).unwrap();
}

/// A file of the tests, which is removed with this.
pub(super) struct Scratch(pub(super) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

pub(super) fn revocation() {
    let list = |version, gateways: &[PublicIdentity]| {
        let gateways = gateways.iter().copied().collect();
        let list = RevocationList { version, gateways, ..RevocationList::default() };
        format!("# of the tests\n{}\n", list.sign(&support::operator()).unwrap())
    };
    let name = format!("tradewind-revoked-{}", std::process::id());
    let (file, log) = (Scratch(std::env::temp_dir().join(name)), Log::new("revoked"));
    fs::write(&file.0, list(1, &[])).unwrap();
    let key = identity();
    let config = relay_config_text(&key);
    let config = format!("revocations = '{}'\n{config}", file.0.display());
    let process = Process::start_as((RELAY_CONFIG, &config), key.public(), log.command());
    let gateways = [0, 1].map(|_| gateway(vec![process.hop.clone()], echo()));
    let [mut stays, mut goes] = [0, 1].map(|at| connect(gateways[at].address()));
    ping(&mut stays).unwrap();
    ping(&mut goes).unwrap();
    // The process gets no signal.
    let revoked = gateways[1].identity();
    fs::write(&file.0, list(3, &[revoked])).unwrap();
    print!("ended {} ms after the list ... ", reset_after(&mut goes).as_millis());
    log.wait_for(&["revocations: taken over", "1 session ended"]);
    assert_reset(ping(&mut connect(gateways[1].address())));
    log.wait_for(&["refused: ", &format!("gateway {revoked} was revoked by operator key")]);
    wait_for("the count", || {
        let name = "tradewind_relay_sessions_total{outcome=\"grant_revoked\"}";
        process.metric(name).is_some_and(|count| count >= 1.0)
    });
    // An older list, by itself and at a reload.
    fs::write(&file.0, list(2, &[])).unwrap();
    log.wait_for(&["version 2 of the revocation list", "version 3, which is in force"]);
    process.reload(&process.config);
    log.wait_for(&["version 2 of the revocation list", "what was in force before stays"]);
    assert_reset(ping(&mut connect(gateways[1].address())));
    fs::write(&file.0, "nonsense").unwrap();
    log.wait_for(&["line 1: revocation list: it does not begin with its prefix"]);
    ping(&mut stays).unwrap();
    fs::write(&file.0, list(4, &[])).unwrap();
    wait_for("the gateway", || ping(&mut connect(gateways[1].address())).is_ok());
    ping(&mut stays).unwrap();
}
