//! Probe and responder over loopback: counts, totals, limits, and failures.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tradewind_probe::protocol::{self, Answer, Hello, MAX_CONNECTIONS, Preface, Request};
use tradewind_probe::rate::{self, Ended};
use tradewind_probe::steady::StabilityRule;
use tradewind_probe::{
    Direction, ProbeError, RateOptions, Responder, ResponderConfig, RttOptions, Secret, rtt,
};
use tradewind_units::{Bytes, Ratio};

const ANY_PORT: &str = "127.0.0.1:0";
const MEGABYTE: u64 = 1_000_000;

struct Running {
    target: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn responder(adjust: impl FnOnce(&mut ResponderConfig)) -> Running {
    let mut config = ResponderConfig::new(ANY_PORT.parse().unwrap());
    adjust(&mut config);
    let responder = Responder::bind(config).await.unwrap();
    let target = responder.local_addr().to_string();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(responder.run(async { drop(stopped.await) }));
    Running { target, stop, task }
}

fn volume(direction: Direction, connections: u32, bytes: u64) -> RateOptions {
    let volume = Some(Bytes::new(bytes));
    RateOptions { direction, connections, volume, stop_when_stable: None, ..RateOptions::default() }
}

fn without_end(direction: Direction) -> RateOptions {
    let duration = Duration::from_secs(30);
    RateOptions { direction, duration, stop_when_stable: None, ..RateOptions::default() }
}

fn quick_rtt(samples: u32) -> RttOptions {
    RttOptions { samples, interval: Duration::from_millis(5), ..RttOptions::default() }
}

/// Returns the address of a port without a listener.
async fn closed_port() -> SocketAddr {
    let listener = TcpListener::bind(ANY_PORT).await.unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn round_trip_report_holds_the_asked_samples() {
    let listener = TcpListener::bind(ANY_PORT).await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let report = rtt::measure(&target, &quick_rtt(7)).await.unwrap();
    assert_eq!((report.attempts, report.samples, report.failures), (7, 7, 0));
    assert_eq!(report.target, target);
    assert!(report.rtt_min_ms > 0.0 && report.rtt_min_ms <= report.rtt_median_ms);
    assert!(report.rtt_median_ms <= report.rtt_max_ms && report.rtt_spread_ms >= 0.0);
    assert!(report.rtt_min_ms <= report.connect_min_ms);
}

#[tokio::test]
async fn refused_port_is_named_with_its_cause() {
    let target = closed_port().await.to_string();
    let error = rtt::measure(&target, &quick_rtt(3)).await.unwrap_err();
    assert_eq!(error.to_string(), format!("probe of {target}: connection refused (3 of 3)"));
    let error = rate::measure(&target, &RateOptions::default()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("probe of {target}: connection refused"));
}

#[tokio::test]
async fn many_targets_keep_their_order_despite_a_failure() {
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let open = listener.local_addr().unwrap().to_string();
    let closed = closed_port().await.to_string();
    let targets = vec![open.clone(), closed, "no-port".to_owned(), open.clone()];
    let options = RttOptions { concurrency: 2, ..quick_rtt(2) };
    let reports = rtt::measure_all(&targets, &options).await;
    assert_eq!(reports[0].as_ref().unwrap().target, open);
    assert!(matches!(reports[1], Err(ProbeError::Connect { .. })));
    assert!(matches!(reports[2], Err(ProbeError::Target { .. })));
    assert_eq!(reports[3].as_ref().unwrap().samples, 2);
}

#[tokio::test]
async fn volume_arrives_to_the_byte_in_both_directions() {
    let running = responder(|_| {}).await;
    for direction in [Direction::Upload, Direction::Download] {
        let bytes = 30 * MEGABYTE + 1;
        let report = rate::measure(&running.target, &volume(direction, 3, bytes)).await.unwrap();
        assert_eq!(report.ended, Ended::Volume);
        assert_eq!(report.total_bytes, bytes, "{direction:?}");
        let in_intervals: u64 = report.intervals.iter().map(|interval| interval.bytes).sum();
        assert_eq!(in_intervals, bytes, "{direction:?}");
        assert_eq!(report.connections.len(), 3);
        assert!(report.connections.iter().all(|c| c.bytes.abs_diff(bytes / 3) <= 1));
        assert!(report.rate_mbps > 0.0 && report.rate_ip_mbps > report.rate_mbps);
        assert!(report.rate().is_some() && report.rtt_min().unwrap() > Duration::ZERO);
    }
}

#[tokio::test]
async fn test_ends_with_its_time_and_its_totals_agree() {
    let running = responder(|_| {}).await;
    for direction in [Direction::Upload, Direction::Download] {
        let duration = Duration::from_millis(700);
        let options = RateOptions { duration, ..without_end(direction) };
        let report = rate::measure(&running.target, &options).await.unwrap();
        assert_eq!(report.ended, Ended::Duration);
        let in_intervals: u64 = report.intervals.iter().map(|interval| interval.bytes).sum();
        assert_eq!(in_intervals, report.total_bytes);
        assert!(report.total_bytes > 0 && report.discarded_s < report.duration_s);
        assert!(report.window.window > Bytes::ZERO, "{report:?}");
        assert!(report.intervals.iter().any(|interval| interval.in_flight_max_bytes.is_some()));
    }
}

#[tokio::test]
async fn stable_rate_ends_the_test_early() {
    let running = responder(|_| {}).await;
    let rule = StabilityRule { intervals: 3, span: Duration::ZERO, tolerance: Ratio::ONE };
    let options = RateOptions { stop_when_stable: Some(rule), ..without_end(Direction::Download) };
    let report = rate::measure(&running.target, &options).await.unwrap();
    assert_eq!(report.ended, Ended::Stable);
    assert!(report.settled);
}

#[tokio::test]
async fn congestion_control_of_sender_is_reported() {
    let running = responder(|_| {}).await;
    for direction in [Direction::Upload, Direction::Download] {
        let mut options = volume(direction, 1, MEGABYTE);
        options.congestion_control = Some("reno".to_owned());
        let report = rate::measure(&running.target, &options).await.unwrap();
        assert_eq!(report.congestion_control, "reno");
        options.congestion_control = Some("no-such-one".to_owned());
        let error = rate::measure(&running.target, &options).await.unwrap_err().to_string();
        assert!(error.contains("`no-such-one`") && error.contains(&running.target), "{error}");
    }
}

#[tokio::test]
async fn exceeded_limits_are_reported() {
    let running = responder(|config| {
        config.max_connections = 2;
        config.max_duration = Duration::from_secs(5);
        config.max_bytes = Bytes::new(MEGABYTE);
    })
    .await;
    let refused = async |options: RateOptions| {
        rate::measure(&running.target, &options).await.unwrap_err().to_string()
    };
    let short = RateOptions { duration: Duration::from_secs(2), ..RateOptions::default() };
    let error = refused(RateOptions { connections: 3, ..short.clone() }).await;
    assert!(error.ends_with("refused: 1 to 2 connections, not 3"), "{error}");
    let error = refused(RateOptions { duration: Duration::from_secs(6), ..short.clone() }).await;
    assert!(error.contains("at most 5s, not 6s"), "{error}");
    let too_much = RateOptions { volume: Some(Bytes::new(2 * MEGABYTE)), ..short.clone() };
    let error = refused(too_much).await;
    assert!(error.contains("1 MB"), "{error}");
    let report = rate::measure(&running.target, &short).await.unwrap();
    assert_eq!((report.ended, report.total_bytes), (Ended::ResponderLimit, MEGABYTE));
}

#[tokio::test]
async fn secret_is_asked_for_and_never_bypassed() {
    let secret = |text| Some(Secret::new(text).unwrap());
    let running = responder(|config| config.secret = secret("the right secret")).await;
    let mut options = volume(Direction::Upload, 1, MEGABYTE);
    for wrong in [None, secret("a wrong secret, too")] {
        options.secret = wrong;
        let error = rate::measure(&running.target, &options).await.unwrap_err();
        assert!(matches!(error, ProbeError::Refused { .. }), "{error}");
    }
    options.secret = secret("the right secret");
    assert_eq!(rate::measure(&running.target, &options).await.unwrap().total_bytes, MEGABYTE);
}

/// Negotiates a test by hand and opens no data connections for it.
async fn take_a_place(target: &str) -> TcpStream {
    let mut control = TcpStream::connect(target).await.unwrap();
    control.write_all(&Preface::Control.to_bytes()).await.unwrap();
    let _: Hello = read(&mut control).await;
    let request = Request {
        direction: Direction::Upload,
        connections: 1,
        duration_ms: 1000,
        volume_bytes: None,
        interval_us: 100_000,
        congestion_control: None,
    };
    let frame = [&[0; protocol::PROOF_BYTES][..], &protocol::to_json(&request)].concat();
    control.write_all(&protocol::frame(&frame)).await.unwrap();
    assert!(matches!(read(&mut control).await, Answer::Accepted { .. }));
    control
}

async fn read<M: for<'de> serde::Deserialize<'de>>(stream: &mut TcpStream) -> M {
    let length = stream.read_u32().await.unwrap() as usize;
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await.unwrap();
    protocol::from_json("message", &frame).unwrap()
}

#[tokio::test]
async fn concurrent_tests_are_limited_and_places_freed() {
    let running = responder(|config| config.max_tests = 1).await;
    let in_use = take_a_place(&running.target).await;
    let options = volume(Direction::Upload, 1, MEGABYTE);
    let error = rate::measure(&running.target, &options).await.unwrap_err().to_string();
    assert!(error.ends_with("busy: 1 tests are running, the limit"), "{error}");
    drop(in_use);
    loop {
        match rate::measure(&running.target, &options).await {
            Ok(report) => break assert_eq!(report.total_bytes, MEGABYTE),
            Err(ProbeError::Refused { .. }) => tokio::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn idle_connections_do_not_block_other_sources() {
    let running = responder(|_| {}).await;
    let target = running.target.parse().unwrap();
    let mut idle = Vec::new();
    for _ in 0..300 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        idle.push(socket.connect(target).await.unwrap());
    }
    let options = volume(Direction::Upload, 4, MEGABYTE);
    assert_eq!(rate::measure(&running.target, &options).await.unwrap().total_bytes, MEGABYTE);
    // The oldest was closed for others, and the newest was not.
    assert_eq!(idle[0].read(&mut [0]).await.unwrap(), 0);
    let newest = idle.last_mut().unwrap();
    let read = tokio::time::timeout(Duration::from_millis(100), newest.read(&mut [0])).await;
    assert!(read.is_err(), "{read:?}");
}

#[tokio::test]
async fn garbage_does_not_harm_the_responder() {
    let running = responder(|_| {}).await;
    let control = Preface::Control.to_bytes();
    let data = Preface::Data { index: 0, test: protocol::TestId([7; 16]) }.to_bytes();
    let pieces: [&[u8]; 7] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: there\r\n\r\n",
        &[0xff; 4096],
        &control[..20],
        &data,
        &[&control[..], &[0xff; 64]].concat(),
        &[&control[..], &[0, 0, 0, 40], &[b'{'; 40]].concat(),
    ];
    let mut open = Vec::new();
    for piece in pieces {
        let mut stream = TcpStream::connect(&running.target).await.unwrap();
        stream.write_all(piece).await.unwrap();
        open.push(stream);
    }
    let options = volume(Direction::Download, 2, MEGABYTE);
    assert_eq!(rate::measure(&running.target, &options).await.unwrap().total_bytes, MEGABYTE);
    drop(open);
    running.stop.send(()).unwrap();
    running.task.await.unwrap();
}

#[tokio::test]
async fn responder_killed_midway_gives_a_clear_error() {
    for direction in [Direction::Upload, Direction::Download] {
        let running = responder(|_| {}).await;
        let (target, options) = (running.target.clone(), without_end(direction));
        let test = tokio::spawn(async move { rate::measure(&target, &options).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        running.task.abort();
        let error = test.await.unwrap().unwrap_err();
        assert!(matches!(error, ProbeError::BrokeOff { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&running.target) && text.contains("connection"), "{text}");
        assert!(!text.contains('\n'));
    }
}

#[tokio::test]
async fn responder_reports_its_shutdown() {
    let running = responder(|_| {}).await;
    let (target, options) = (running.target.clone(), without_end(Direction::Download));
    let test = tokio::spawn(async move { rate::measure(&target, &options).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    running.stop.send(()).unwrap();
    let error = test.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("shutting down"), "{error}");
    running.task.await.unwrap();
}

#[tokio::test]
async fn other_services_are_not_mistaken_for_responder() {
    let listener = TcpListener::bind(ANY_PORT).await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let answers: [&[u8]; 3] = [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\0\0\x02{}"];
    let server = tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(answer).await.unwrap();
            let mut preface = [0; protocol::PREFACE_BYTES];
            stream.read_exact(&mut preface).await.unwrap();
        }
        listener
    });
    let interval = Some(Duration::from_millis(100));
    let one_connection = RateOptions { interval, ..RateOptions::default() };
    for _ in answers {
        let error = rate::measure(&target, &one_connection).await.unwrap_err();
        assert!(matches!(error, ProbeError::Protocol { .. }), "{error:?}");
        assert!(error.to_string().contains(&target));
    }
    let _silent = server.await.unwrap();
    let timeout = Duration::from_millis(50);
    let options = RateOptions { timeout, ..one_connection };
    let error = rate::measure(&target, &options).await.unwrap_err().to_string();
    assert!(error.contains("says nothing"), "{error}");
}

#[tokio::test]
async fn invalid_options_are_refused_before_sending() {
    for options in [
        RateOptions { connections: 0, ..RateOptions::default() },
        RateOptions { connections: MAX_CONNECTIONS + 1, ..RateOptions::default() },
        RateOptions { volume: Some(Bytes::ZERO), ..RateOptions::default() },
        RateOptions { congestion_control: Some("a b".to_owned()), ..RateOptions::default() },
        RateOptions { interval: Some(Duration::ZERO), ..RateOptions::default() },
    ] {
        let error = rate::measure("192.0.2.1:1", &options).await.unwrap_err();
        assert!(matches!(error, ProbeError::Option { .. }), "{error:?}");
    }
    let error = rtt::measure("192.0.2.1:1", &quick_rtt(0)).await.unwrap_err();
    assert!(matches!(error, ProbeError::Option { .. }));
    let mut config = ResponderConfig::new(ANY_PORT.parse().unwrap());
    config.max_connections = MAX_CONNECTIONS + 1;
    let expected = format!("1 to {MAX_CONNECTIONS}");
    let error = Responder::bind(config).await.unwrap_err().to_string();
    assert!(error.contains(&expected), "{error}");
}

#[tokio::test]
async fn connections_up_to_the_responders_limit_are_allowed() {
    let running = responder(|_| {}).await;
    let duration = Duration::from_millis(100);
    let most = RateOptions { connections: MAX_CONNECTIONS, duration, ..RateOptions::default() };
    let report = rate::measure(&running.target, &most).await.unwrap();
    assert_eq!(report.connections.len(), MAX_CONNECTIONS as usize);
}

#[tokio::test]
async fn target_without_a_port_is_refused() {
    for target in ["10.200.0.2", "example", "10.200.0.2:http", ":7100", "::1:7100", "a:70000", ""] {
        let error = rtt::measure(target, &quick_rtt(1)).await.unwrap_err().to_string();
        assert!(error.contains("expected HOST:PORT"), "{error}");
    }
    let running = responder(|_| {}).await;
    let port = running.target.rsplit(':').next().unwrap();
    rtt::measure(&format!("localhost:{port}"), &quick_rtt(1)).await.unwrap();
}

#[tokio::test]
async fn port_in_use_is_named() {
    let running = responder(|_| {}).await;
    let config = ResponderConfig::new(running.target.parse().unwrap());
    let error = Responder::bind(config).await.unwrap_err();
    assert!(error.to_string().contains(&running.target), "{error}");
}
