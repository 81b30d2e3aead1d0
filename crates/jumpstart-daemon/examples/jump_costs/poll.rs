//! Sampling of all connections, by their number.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tradewind_jumpstart::{Config, Learner};
use tradewind_jumpstart_daemon::observe::{Observer as _, SocketTable};
use tradewind_net::clock::monotonic;
use tradewind_net::descriptors::raise_limit;
use tradewind_net::iproute::{Tool, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::sock_diag::{Filter, SockDiag};

use super::{median, millis, timed};

/// Argument of a child that holds connections.
pub(crate) const HOLD: &str = "hold";
/// Numbers of sockets that are sampled.
const SIZES: [usize; 5] = [100, 1000, 5000, 10_000, 20_000];
/// The same in quick runs.
const QUICK_SIZES: [usize; 2] = [100, 2000];
/// Connections that a child holds: each takes two descriptors of the 10,000 and more that hard
/// limits usually allow.
const PAIRS_EACH: usize = 2500;
/// Addresses that the connections go to, so that the learner has destinations to tell apart.
const ADDRESSES: usize = 250;
/// The bar: sampling so many sockets takes no longer than this.
const BAR: (usize, Duration) = (20_000, Duration::from_millis(40));

/// Prints the table.
pub(crate) fn print(rounds: usize, quick: bool) {
    println!(
        "\nA look at all connections, ms (ours: sock_diag; round: with the learner's; \
         ss: `ss -tin` and its text parsed)"
    );
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    batch(&namespace, Tool::Ip, &["link set lo up".to_owned()]).expect("loopback comes up");
    println!("{:>8} | {:>8} | {:>8} | {:>8} | ss / ours", "sockets", "ours", "round", "ss");
    let sizes: &[usize] = if quick { &QUICK_SIZES } else { &SIZES };
    let mut holders = Vec::new();
    let mut held = 0;
    for &sockets in sizes {
        while held < sockets / 2 {
            let pairs = PAIRS_EACH.min(sockets / 2 - held);
            holders.push(Holder::start(&namespace, pairs));
            held += pairs;
        }
        let [ours, round, ss] = namespace.run(|| look(rounds, sockets)).expect("it is entered");
        println!(
            "{sockets:>8} | {:>8.2} | {:>8.2} | {:>8.2} | {:>9.1}",
            millis(ours),
            millis(round),
            millis(ss),
            ss.as_secs_f64() / ours.as_secs_f64()
        );
        if sockets == BAR.0 {
            let verdict = if ours <= BAR.1 { "holds" } else { "MISSED" };
            println!("bar: {sockets} sockets within {:.0} ms: {verdict}", millis(BAR.1));
        }
    }
}

/// Returns the median time of sampling by each method.
fn look(rounds: usize, sockets: usize) -> [Duration; 3] {
    let mut diag = SockDiag::open().expect("this kernel has sock_diag");
    let mut table = SocketTable::open(Filter::default()).expect("this kernel has sock_diag");
    let mut learner = Learner::new(Config::default());
    let ours = median(rounds, || {
        timed(|| {
            let (mut seen, mut windows) = (0, 0_u64);
            let each = diag.each(&Filter::default(), |connection| {
                seen += 1;
                let window = connection.info.congestion_window;
                windows += window.map_or(0, |window| window.as_u32().into());
            });
            each.expect("the table is read");
            std::hint::black_box(windows);
            assert_eq!(seen, sockets, "sock_diag shows all");
        })
    });
    let round = median(rounds, || {
        timed(|| {
            table.round(&mut |sample| learner.observe(sample)).expect("the table is read");
            std::hint::black_box(learner.decide(monotonic()));
        })
    });
    let ss = median(rounds, || timed(|| assert_eq!(by_ss(), sockets, "ss shows all")));
    [ours, round, ss]
}

/// Reads the same figures from the output of `ss`; returns the number of connections in it.
fn by_ss() -> usize {
    let output = Command::new("ss").args(["-tinHO"]).stdin(Stdio::null()).output();
    let output = output.expect("ss is installed (iproute2)");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut seen = 0;
    for line in text.lines() {
        std::hint::black_box(Row::parse(line).expect("a row of ss"));
        seen += 1;
    }
    seen
}

/// Fields of a row that the learner needs.
#[derive(Debug)]
struct Row {
    _remote: SocketAddr,
    _window: u32,
    _figures: [Option<f64>; 5],
    _application_limited: bool,
}

impl Row {
    /// Parses `ESTAB 0 0 127.0.0.1:1 127.0.0.2:2 cubic ... cwnd:10 ... delivery_rate 1bps ...`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let remote = words.nth(4)?.parse().ok()?;
        let (mut window, mut figures, mut limited, mut rate_next) = (None, [None; 5], false, false);
        for word in words {
            if std::mem::take(&mut rate_next) {
                figures[4] = word.strip_suffix("bps").and_then(|rate| rate.parse().ok());
                continue;
            }
            let Some((key, value)) = word.split_once(':') else {
                rate_next = word == "delivery_rate";
                limited |= word == "app_limited";
                continue;
            };
            let number = || value.split('/').next_back().and_then(|text| text.parse().ok());
            match key {
                "cwnd" => window = value.parse().ok(),
                "mss" => figures[0] = number(),
                "minrtt" => figures[1] = number(),
                "bytes_acked" => figures[2] = number(),
                "retrans" => figures[3] = number(),
                _ => {}
            }
        }
        let (_figures, _application_limited) = (figures, limited);
        Some(Self { _remote: remote, _window: window?, _figures, _application_limited })
    }
}

/// A child that holds connections until it is dropped.
struct Holder(Child);

impl Holder {
    fn start(namespace: &Namespace, pairs: usize) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args([HOLD, &pairs.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = namespace
            .run(|| command.spawn())
            .expect("the namespace is entered")
            .expect("a copy of this program starts");
        let mut ready = String::new();
        let out = child.stdout.take().expect("its output is a pipe");
        BufReader::new(out).read_line(&mut ready).expect("its output is read");
        assert_eq!(ready, "ready\n", "it holds its connections");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

/// Runs as a child: holds so many connections, both ends of each, until its input ends.
pub(crate) fn hold(pairs: &str) {
    raise_limit().expect("the limit of descriptors is read");
    let pairs: usize = pairs.parse().expect("a number of connections");
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let mut ends = Vec::with_capacity(2 * pairs);
    for number in 0..pairs {
        let last = u8::try_from(1 + number % ADDRESSES).expect("below 256");
        let address = Ipv4Addr::new(127, 0, 1, last);
        let mut near = TcpStream::connect((address, port)).expect("loopback connects");
        let (mut remote, _) = listener.accept().expect("it is accepted");
        // Gives the connection a rate and a round-trip time.
        near.write_all(&[7; 1000]).expect("it takes some bytes");
        remote.read_exact(&mut [0; 1000]).expect("they come");
        ends.push((near, remote));
    }
    println!("ready");
    std::io::stdout().flush().expect("somebody listens");
    let _ended = std::io::stdin().read_to_end(&mut Vec::new());
}
