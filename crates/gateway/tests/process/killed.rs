//! Relays that are killed: what clients and destinations see.

use super::*;

pub(super) fn assert_reset<T: std::fmt::Debug>(result: io::Result<T>) {
    use io::ErrorKind as Kind;
    let kind = result.unwrap_err().kind();
    // Reading, writing and shutting a connection that was reset fail with different errors.
    let reset = [Kind::ConnectionReset, Kind::BrokenPipe, Kind::NotConnected].contains(&kind);
    assert!(reset, "{kind}");
}

/// Starts a destination that reads to the end, and signals the first bytes.
pub(super) fn reader()
-> (SocketAddr, std::thread::JoinHandle<io::Result<usize>>, mpsc::Receiver<()>) {
    let (started, has_started) = mpsc::channel();
    let (to, served) = destination(move |mut stream| {
        stream.read_exact(&mut [0; 4]).unwrap();
        started.send(()).unwrap();
        digest(&mut stream).map(|(count, _)| count)
    });
    (to, served, has_started)
}

/// Writes until that fails.
pub(super) fn write_for_ever(stream: &mut TcpStream) -> io::Result<()> {
    let block = content(1 << 16);
    loop {
        stream.write_all(&block)?;
    }
}

pub(super) fn killed_while_data_flows() {
    for _ in 0..10 {
        let (to, served, has_started) = reader();
        let mut process = Process::start();
        let gateway = gateway(vec![process.hop.clone()], to);
        let mut stream = connect(gateway.address());
        let writer = std::thread::spawn(move || write_for_ever(&mut stream));
        has_started.recv().unwrap();
        process.kill();
        assert_reset(served.join().unwrap());
        assert_reset(writer.join().unwrap());
    }
}

pub(super) fn killed_while_silent() {
    let (to, served, has_started) = reader();
    let mut process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], to);
    let mut stream = connect(gateway.address());
    stream.write_all(b"ping").unwrap();
    has_started.recv().unwrap();
    process.kill();
    assert_reset(served.join().unwrap());
    assert_reset(digest(&mut stream));
}

pub(super) fn killed_while_slow() {
    let (release, released) = mpsc::channel::<()>();
    let (to, served) = destination(move |mut stream| {
        released.recv().unwrap();
        digest(&mut stream).map(|(count, _)| count)
    });
    let mut process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], to);
    let mut stream = connect(gateway.address());
    let bytes = content(8_000_000);
    let writer = std::thread::spawn(move || {
        stream.write_all(&bytes)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        digest(&mut stream)
    });
    wait_for("bytes in the relay", || {
        let moved = "tradewind_relay_moved_bytes_total{direction=\"up\"}";
        process.metric(moved).is_some_and(|bytes| bytes > 100_000.0)
    });
    process.kill();
    release.send(()).unwrap();
    assert_reset(served.join().unwrap());
    assert_reset(writer.join().unwrap());
}

pub(super) fn middle_killed() {
    let (to, served, has_started) = reader();
    let (first, last) = (Running::relay(&relay_config()), Running::relay(&relay_config()));
    let mut middle = Process::start();
    let hops = vec![first.hop("first"), middle.hop.clone(), last.hop("last")];
    let gateway = gateway(hops, to);
    let mut stream = connect(gateway.address());
    let writer = std::thread::spawn(move || write_for_ever(&mut stream));
    has_started.recv().unwrap();
    middle.kill();
    assert_reset(served.join().unwrap());
    assert_reset(writer.join().unwrap());
}

pub(super) fn killed_when_half_closed() {
    let (notify, notified) = mpsc::channel::<()>();
    let (release, released) = mpsc::channel::<()>();
    let (to, served) = destination(move |mut stream| {
        let received = digest(&mut stream).unwrap().0;
        notify.send(()).unwrap();
        released.recv().unwrap();
        (received, write_for_ever(&mut stream))
    });
    let mut process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], to);
    let mut stream = connect(gateway.address());
    send(&mut stream, b"all of it");
    notified.recv().unwrap();
    process.kill();
    release.send(()).unwrap();
    assert_reset(digest(&mut stream));
    let (received, answer) = served.join().unwrap();
    assert_eq!(received, 9);
    assert_reset(answer);
}

pub(super) fn ping(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"ping")?;
    stream.read_exact(&mut [0; 4])
}
