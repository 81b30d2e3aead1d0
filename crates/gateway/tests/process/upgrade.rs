//! Upgrades, replays across them, and listeners passed by systemd.

use super::*;

/// Opens short sessions one after the other until stopped; panics when one is refused or lost.
pub(super) fn short_sessions(
    address: SocketAddr,
    over: &Arc<AtomicBool>,
    count: &Arc<AtomicUsize>,
) -> std::thread::JoinHandle<()> {
    let (over, count) = (Arc::clone(over), Arc::clone(count));
    std::thread::spawn(move || {
        while !over.load(Relaxed) {
            let mut stream = connect(address);
            ping(&mut stream).expect("served");
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(digest(&mut stream).expect("ended in order").0, 0);
            count.fetch_add(1, Relaxed);
        }
    })
}

pub(super) fn upgrade_of_a_relay() {
    let process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], echo());
    upgrade_under_load(process, gateway.address(), "tradewind_relay");
}

pub(super) fn upgrade_of_a_gateway() {
    let relay = Running::relay(&relay_config());
    let process = Process::gateway(&relay.hop("relay"), echo());
    let listener = process.hop.address;
    upgrade_under_load(process, listener, "tradewind_gateway");
}

/// Upgrades a process while sessions that it carries begin and end at `listener`.
pub(super) fn upgrade_under_load(mut process: Process, listener: SocketAddr, kind: &str) {
    let mut long = connect(listener);
    ping(&mut long).unwrap();
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..4).map(|_| short_sessions(listener, &over, &count)).collect();
    let so_many_more = |many: usize| {
        let before = count.load(Relaxed);
        let ended = || load.iter().any(std::thread::JoinHandle::is_finished);
        wait_for("sessions", || count.load(Relaxed) >= before + many || ended());
    };
    so_many_more(100);
    process.upgrade();
    so_many_more(200);
    // The old process serves its sessions to their end, and ends then.
    ping(&mut long).unwrap();
    assert!(process.child.try_wait().unwrap().is_none());
    long.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(digest(&mut long).unwrap().0, 0);
    let status = process.child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    so_many_more(100);
    over.store(true, Relaxed);
    load.into_iter().for_each(|load| load.join().unwrap());
    wait_for("the successor's metrics", || {
        process.metric(&format!("{kind}_sessions_total{{outcome=\"ended\"}}")) >= Some(300.0)
    });
}

/// Returns a header for `hop`, sealed now; the key of its reply is not needed.
pub(super) fn sealed(sealer: &mut Sealer, hop: &Hop, nonce: u8) -> Vec<u8> {
    let hop = grant::Hop { address: hop.address, identity: hop.identity };
    let route = grant::Route::new(vec![hop]).unwrap();
    let destination = Destination::address(echo()).unwrap();
    let flow = "test".parse().unwrap();
    let request = Request { flow: &flow, destination: &destination, route: &route };
    sealer.seal(unix_now(), Nonce::from_entropy([nonce; 16]), &request).unwrap().bytes
}

/// Returns the status with which a relay answers `header` on `stream`.
pub(super) fn status_of(mut stream: &TcpStream, header: &[u8]) -> u8 {
    stream.write_all(header).unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    answer[6]
}

pub(super) fn upgrade_and_replays() {
    // The test itself writes its headers.
    set_plain(true);
    let mut process = Process::start();
    let address = process.hop.address;
    let key = identity();
    let grant = grant_for(key.public());
    let mut sealer = Sealer::new(key, grant).unwrap();
    let mut header = |nonce| sealed(&mut sealer, &process.hop, nonce);
    let (before, on_its_way, after, late) = (header(1), header(2), header(3), header(4));
    assert_eq!(status_of(&connect(address), &before), Status::Ok as u8);
    // Connections that the old process has, and whose headers it reads when the new one serves.
    let with_old: Vec<_> = (0..3).map(|_| connect(address)).collect();
    let held = "tradewind_relay_open_sessions";
    wait_for("the old process to have them", || process.metric(held) >= Some(3.0));
    process.upgrade();
    wait_for("the new process", || status_of(&connect(address), &before) == Status::Replayed as u8);
    assert_eq!(
        status_of(&connect(address), &on_its_way),
        Status::Ok as u8,
        "honest, and sealed before"
    );
    assert_eq!(status_of(&connect(address), &after), Status::Ok as u8);
    assert_eq!(status_of(&with_old[0], &after), Status::Replayed as u8, "the new one accepted it");
    assert_eq!(status_of(&with_old[1], &late), Status::Ok as u8);
    assert_eq!(
        status_of(&connect(address), &late),
        Status::Replayed as u8,
        "the old one accepted it"
    );
    assert_eq!(status_of(&with_old[2], &before), Status::Replayed as u8);
}

/// A process that is halted until this is dropped.
pub(super) struct Halted(pub(super) u32);

impl Halted {
    /// Halts the only child of a process.
    pub(super) fn child_of(process: u32) -> Self {
        // A child is listed at the thread that started it, and moves to another's list when that
        // thread ends: one look may miss it.
        let mut child = None;
        wait_for("the child to be listed", || {
            let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
            let children = threads.map(|task| fs::read_to_string(task.path().join("children")));
            let children = children.map(|list| list.unwrap_or_default()).collect::<String>();
            child = children.split_whitespace().next().map(|child| child.parse().unwrap());
            child.is_some()
        });
        let child: u32 = child.unwrap();
        processes::pause(child).unwrap();
        // The signal takes effect later, thread by thread.
        let is_stopped = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.contains(") T ")
        };
        wait_for("the child to stop", || {
            fs::read_dir(format!("/proc/{child}/task")).unwrap().flatten().all(is_stopped)
        });
        Self(child)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        processes::resume(self.0).unwrap();
    }
}

pub(super) fn upgrade_to_one_that_stops() {
    /// The default of `timeouts.header`, and how long a successor is waited for.
    const HEADER: Duration = Duration::from_secs(5);
    const JUDGEMENT: Duration = Duration::from_secs(2);
    // The test itself writes its headers.
    set_plain(true);
    let mut process = Process::start();
    let address = process.hop.address;
    let key = identity();
    let mut sealer = Sealer::new(key.clone(), grant_for(key.public())).unwrap();
    let mut header = |nonce| sealed(&mut sealer, &process.hop, nonce);
    let (before, late) = (header(1), header(2));
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut carried = connect(gateway.address());
    ping(&mut carried).unwrap();
    assert_eq!(status_of(&connect(address), &before), Status::Ok as u8);
    let connected = Instant::now();
    let waiting: Vec<_> = (0..3).map(|_| connect(address)).collect();
    let held = "tradewind_relay_open_sessions";
    wait_for("the old process to have them", || process.metric(held) >= Some(4.0));
    process.upgrade();
    wait_for("the new process", || status_of(&connect(address), &before) == Status::Replayed as u8);
    let halted = Halted::child_of(process.child.id());
    let written = Instant::now();
    (&waiting[0]).write_all(&late).unwrap();
    for _ in 0..5 {
        ping(&mut carried).unwrap();
    }
    // The header waits still, while open sessions went on.
    waiting[0].set_nonblocking(true).unwrap();
    match waiting[0].peek(&mut [0]) {
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        // On a busy machine its time may be over: that of headers, or of the successor's answer.
        Ok(_) => {
            let is_over = connected.elapsed() >= HEADER || written.elapsed() >= JUDGEMENT;
            assert!(is_over, "answered while the successor is halted");
        }
    }
    drop(halted);
}

pub(super) fn upgrade_that_fails() {
    // The program's file is gone when its successor is to be started.
    let copy = std::env::temp_dir().join(format!("tradewind-upgrade-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let process = Process::start_by(Command::new(&copy));
    std::fs::remove_file(&copy).unwrap();
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    process.signal("USR2");
    for _ in 0..20 {
        ping(&mut connect(gateway.address())).unwrap();
    }
    ping(&mut stream).unwrap();
}

pub(super) fn upgrade_that_is_declined() {
    let log = Log::new("declined");
    let process = Process::start_by(log.command());
    let gateway = gateway(vec![process.hop.clone()], echo());
    let bad = process.config.replace(ALL_DESTINATIONS, "destinations = ['192.0.2.1/33:*']");
    fs::write(&process.file, bad).unwrap();
    process.signal("USR2");
    log.wait_for(&["nothing has changed", "the new process says", "policy.destinations"]);
    ping(&mut connect(gateway.address())).unwrap();
}

pub(super) fn passed_by_systemd() {
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    // The shell moves the listener from the log's descriptor to that of systemd.
    let mut command = Command::new("sh");
    let script = "exec 3>&2 2>/dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\"";
    command.args(["-c", script]).arg(std::env::current_exe().unwrap());
    command.stderr(Stdio::from(std::os::fd::OwnedFd::from(listener.try_clone().unwrap())));
    let mut process = Process::start_at(command, address);
    assert_eq!(process.hop.address, address);
    let gateway = gateway(vec![process.hop.clone()], echo());
    ping(&mut connect(gateway.address())).unwrap();
    process.upgrade();
    for _ in 0..20 {
        ping(&mut connect(gateway.address())).unwrap();
    }
}
