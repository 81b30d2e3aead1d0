//! The sessions that a process has open, the bytes that it has sent, the configuration that it runs
//! by, and whether it is alive, as it says on its metrics port.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tradewind_config::{GatewayConfig, Kind, RelayConfig};
use tradewind_control::message::Process;
use tradewind_units::{Duration, FlowId};

/// Longest wait for the metrics of a process on this host. Chosen: they take a millisecond.
const MAX: Duration = Duration::from_secs(1);
/// Most bytes that are read of them. Chosen: several times what a gateway of 1,000 paths has.
const MAX_BYTES: u64 = 4 << 20;

/// The metric of a gateway's open sessions by flow.
const FLOW_SESSIONS: &str = "tradewind_gateway_flow_open_sessions";

/// The figures of a process.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counted {
    /// The sessions that it has open.
    pub(crate) open: Option<u64>,
    /// Those of each flow that has some, if a gateway says.
    pub(crate) flows: Option<BTreeMap<FlowId, u64>>,
    /// Its start, in seconds, and the bytes that it has sent since.
    pub(crate) sent: Option<(f64, u64)>,
    /// The hash of the configuration that is in force there.
    pub(crate) config_hash: Option<i64>,
}

/// The metrics of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metrics {
    address: SocketAddr,
    kind: Kind,
    /// True if what it carries back leaves the host, too.
    sends_back: bool,
}

impl Metrics {
    /// Returns the metrics of a process; `None` if its configuration has no fixed address for them.
    pub(crate) fn of(process: &Process) -> Option<Self> {
        let kind = process.kind;
        let (address, sends_back) = match kind {
            Kind::Relay => (RelayConfig::parse(&process.config).ok()?.metrics, true),
            Kind::Gateway => {
                let config = GatewayConfig::parse(&process.config).ok()?;
                (config.metrics, config.serves_others())
            }
            Kind::Jumpstart => return None,
        };
        let address = address.filter(|address| address.port() != 0)?;
        Some(Self { address, kind, sends_back })
    }

    /// Asks the process; nothing is counted where it does not say.
    pub(crate) async fn counted(self) -> Counted {
        let answer = self.get("/metrics").await;
        answer.map_or_else(Counted::default, |answer| self.find(&answer))
    }

    /// Asks the process whether it is alive.
    ///
    /// # Errors
    /// Why it is not: the reason that it gives, or that it does not answer.
    pub(crate) async fn alive(self) -> Result<(), String> {
        let answer = self.get("/healthz").await;
        let answer = answer.ok_or_else(|| "it does not answer on its metrics port".to_owned())?;
        let (head, reason) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let is_alive = head.split(' ').nth(1) == Some("200");
        if is_alive { Ok(()) } else { Err(format!("it is not alive: {}", reason.trim())) }
    }

    /// Returns the answer to a request, with its head; `None` if there is none in time.
    async fn get(self, path: &str) -> Option<String> {
        let read = async {
            let mut stream = TcpStream::connect(self.address).await.ok()?;
            let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.take(MAX_BYTES).read_to_string(&mut answer).await.ok()?;
            Some(answer)
        };
        timeout(MAX, read).await.ok().flatten()
    }

    fn find(self, text: &str) -> Counted {
        let is_relay = self.kind == Kind::Relay;
        let program = if is_relay { "tradewind_relay" } else { "tradewind_gateway" };
        let figure = |name: &str| {
            let figure = text.lines().find_map(|line| line.strip_prefix(name))?;
            figure.trim().parse::<f64>().ok().filter(|figure| *figure >= 0.0)
        };
        let own = |name: &str| figure(&format!("{program}_{name} ")).map(|figure| figure as u64);
        let up = own("moved_bytes_total{direction=\"up\"}");
        // The other direction of a gateway for this host alone comes from the network.
        let down = own("moved_bytes_total{direction=\"down\"}");
        let down = if self.sends_back { down } else { Some(0) };
        let moved = up.zip(down).map(|(up, down)| up.saturating_add(down));
        Counted {
            open: own("open_sessions"),
            flows: text
                .contains(&format!("# TYPE {FLOW_SESSIONS} "))
                .then(|| text.lines().filter_map(open_of_flow).collect()),
            sent: figure("process_start_time_seconds ").zip(moved),
            config_hash: own("config_hash").and_then(|hash| hash.try_into().ok()),
        }
    }
}

/// Returns a flow and its open sessions, if a line of metrics says so.
fn open_of_flow(line: &str) -> Option<(FlowId, u64)> {
    let line = line.strip_prefix(FLOW_SESSIONS)?.strip_prefix("{flow=\"")?;
    let (flow, sessions) = line.split_once("\"} ")?;
    let sessions = sessions.trim().parse::<f64>().ok().filter(|sessions| *sessions > 0.0)?;
    Some((FlowId::new(flow).ok()?, sessions as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn number_is_that_of_the_process_and_none_where_it_says_nothing() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let process = |metrics: &str, listen: &str| Process {
            name: "gateway".to_owned(),
            kind: Kind::Gateway,
            config: format!(
                "identity_file = 'data.key'\ndirect = true\n{metrics}[[forward]]\n\
                 listen = '{listen}'\nto = '192.0.2.1:9'\n"
            ),
            files: BTreeMap::new(),
        };
        assert_eq!(Metrics::of(&process("", "127.0.0.1:0")), None);
        assert_eq!(Metrics::of(&process("metrics = '127.0.0.1:0'\n", "127.0.0.1:0")), None);
        let with_metrics = format!("metrics = '{address}'\n");
        let at = |listen| Metrics::of(&process(&with_metrics, listen)).unwrap();
        let (metrics, of_others) = (at("127.0.0.1:0"), at("0.0.0.0:0"));
        let answers = async {
            let whole = "tradewind_gateway_open_sessions 12.0\nprocess_start_time_seconds 1.5\n\
                 tradewind_gateway_config_hash 5\n\
                 tradewind_gateway_moved_bytes_total{direction=\"up\"} 7\n\
                 tradewind_gateway_moved_bytes_total{direction=\"down\"} 9\n\
                 # TYPE tradewind_gateway_flow_open_sessions gauge\n\
                 tradewind_gateway_flow_open_sessions{flow=\"nightly\"} 11.0\n\
                 tradewind_gateway_flow_open_sessions{flow=\"?\"} 1\n";
            for body in [whole, whole, "tradewind_relay_open_sessions 3\n"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    assert!(stream.read_buf(&mut request).await.unwrap() > 0);
                }
                assert!(request.starts_with(b"GET /metrics HTTP/"));
                let answer = format!("HTTP/1.0 200 OK\r\n\r\n# HELP it\n{body}# EOF\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let asks =
            async { [metrics.counted().await, of_others.counted().await, metrics.counted().await] };
        let (found, ()) = tokio::join!(asks, answers);
        let flows = Some(BTreeMap::from([("nightly".parse().unwrap(), 11)]));
        let whole = |sent| Counted {
            open: Some(12),
            flows: flows.clone(),
            sent: Some((1.5, sent)),
            config_hash: Some(5),
        };
        assert_eq!(found, [whole(7), whole(16), Counted::default()]);
        let health = async |answer: &str| {
            let answers = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 256];
                let read = stream.read(&mut request).await.unwrap();
                assert!(request[..read].starts_with(b"GET /healthz HTTP/"));
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            tokio::join!(metrics.alive(), answers).0
        };
        assert_eq!(health("HTTP/1.0 200 OK\r\n\r\nalive\n").await, Ok(()));
        let ill = health("HTTP/1.0 503 no\r\n\r\nworker 1 is stuck\n").await;
        assert_eq!(ill, Err("it is not alive: worker 1 is stuck".to_owned()));
        drop(listener);
        assert_eq!(metrics.counted().await, Counted::default());
        assert!(metrics.alive().await.is_err());
    }
}
