//! Relays out of descriptors, signals, and a reader of standard error that stops.

use super::*;

pub(super) fn few_descriptors() {
    const LIMIT: usize = 256;
    const CLIENTS: usize = 96;
    let log = Log::new("descriptors");
    let mut command = log.command_of("sh");
    command.args(["-c", &format!("ulimit -n {LIMIT}; exec \"$0\"")]);
    command.arg(std::env::current_exe().unwrap());
    let process = Process::start_by(command);
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut streams: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(gateway.address())).collect();
    let served: Vec<bool> = streams.iter_mut().map(|stream| ping(stream).is_ok()).collect();
    let count = served.iter().filter(|served| **served).count();
    // Half of the sessions that it logs as its limit, which are the share of one gateway.
    let line = log.wait_for(&[&format!("{LIMIT} descriptors, "), " sessions, not "]);
    let (_, rest) = line.split_once(" allow ").unwrap();
    let affordable: usize = rest.split(' ').next().unwrap().parse().unwrap();
    assert!(affordable < CLIENTS, "fewer than what asks for them: {line}");
    assert_eq!(count, affordable.div_ceil(2), "{line}");
    assert_eq!(process.metric("tradewind_relay_shed_total"), Some(0.0));
    for (mut stream, served) in streams.into_iter().zip(served) {
        assert!(!served || ping(&mut stream).is_ok(), "a session that is open goes on");
    }
    wait_for("room", || ping(&mut connect(gateway.address())).is_ok());
}

pub(super) fn out_of_descriptors() {
    let process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut open: Vec<TcpStream> = (0..8).map(|_| connect(gateway.address())).collect();
    open.iter_mut().for_each(|stream| ping(stream).unwrap());
    // From now on no more descriptors than it has.
    let limit = |descriptors: &str| {
        let pid = process.child.id().to_string();
        let limit = format!("--nofile={descriptors}:");
        let mut command = Command::new("prlimit");
        assert!(command.args(["--pid", &pid, &limit]).status().unwrap().success());
    };
    let in_use = |number: &u32| {
        let path = format!("/proc/{}/fd/{number}", process.child.id());
        std::fs::symlink_metadata(path).is_ok()
    };
    let lowest_free = (0..).find(|number| !in_use(number)).unwrap();
    limit(&lowest_free.to_string());
    let waiting: Vec<TcpStream> = (0..20).map(|_| connect(process.hop.address)).collect();
    for mut stream in waiting {
        assert!(digest(&mut stream).is_err(), "turned away at once");
    }
    assert!(ping(&mut connect(gateway.address())).is_err());
    open.iter_mut().for_each(|stream| ping(stream).unwrap());
    limit("1024");
    wait_for("recovery", || ping(&mut connect(gateway.address())).is_ok());
    let shed = process.metric("tradewind_relay_shed_total").unwrap();
    assert!(shed >= 20.0, "{shed} of 20 were turned away for want of a descriptor");
}

pub(super) fn signals() {
    let mut process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    process.terminate();
    wait_for("the listener to close", || TcpStream::connect(process.hop.address).is_err());
    ping(&mut stream).unwrap();
    process.terminate();
    let status = process.child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    assert_reset(ping(&mut stream));
}

/// Checks a process whose log's reader reads nothing, like a terminal after Ctrl-S.
pub(super) fn stalled_standard_error() {
    /// Causes of one line each, which exceed a pipe several times.
    const CAUSES_OF_LINES: usize = 3000;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(LOGS, "1").env(FILTER_VARIABLE, "debug").stderr(Stdio::piped());
    let mut process = Process::start_by(command);
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut old = connect(gateway.address());
    ping(&mut old).unwrap();
    for _ in 0..CAUSES_OF_LINES {
        let _reset = connect(process.hop.address).write_all(&[0x55; 64]);
    }
    wait_for("a line for each", || {
        process.metric("tradewind_relay_accepted_total") >= Some(CAUSES_OF_LINES as f64)
    });
    ping(&mut old).unwrap();
    let mut stream = connect(gateway.address());
    let bytes = content(20_000_000);
    let (mut writing, sent) = (stream.try_clone().unwrap(), bytes.clone());
    let writer = std::thread::spawn(move || send(&mut writing, &sent));
    assert_eq!(digest(&mut stream).unwrap(), digest(&mut &bytes[..]).unwrap());
    writer.join().unwrap();
    drop(old);
    process.terminate();
    let status = process.child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
}

pub(super) fn signals_without_meaning() {
    let log = Log::new("signals");
    let process = Process::start_by(log.command());
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    for name in ["USR1", "ALRM", "VTALRM", "PROF", "IO", "PWR", "XCPU", "XFSZ", "RTMIN+3"] {
        process.signal(name);
        log.wait_for(&[&format!("SIG{name} has no meaning here and is ignored")]);
    }
    process.signal("PIPE");
    ping(&mut stream).unwrap();
    ping(&mut connect(gateway.address())).unwrap();
}
