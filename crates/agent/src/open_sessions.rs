//! The number of sessions that a process has open, as its metrics say.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tradewind_config::{GatewayConfig, Kind, RelayConfig};
use tradewind_control::message::Process;
use tradewind_units::Duration;

/// Longest wait for the metrics of a process on this host. Chosen: they take a millisecond.
const LONGEST: Duration = Duration::from_secs(1);
/// Most bytes that are read of them. Chosen: several times what a gateway of 1,000 paths has.
const MOST_BYTES: u64 = 4 << 20;

/// The metrics of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metrics {
    address: SocketAddr,
    kind: Kind,
}

impl Metrics {
    /// Returns the metrics of a process; `None` if its configuration has no address for them.
    pub(crate) fn of(process: &Process) -> Option<Self> {
        let kind = process.kind;
        let address = match kind {
            Kind::Relay => RelayConfig::parse(&process.config).ok()?.metrics,
            Kind::Gateway => GatewayConfig::parse(&process.config).ok()?.metrics,
            Kind::Jumpstart => None,
        };
        address.map(|address| Self { address, kind })
    }

    /// Asks for the number of open sessions; `None` if the process does not say.
    pub(crate) async fn open_sessions(self) -> Option<u64> {
        let read = async {
            let mut stream = TcpStream::connect(self.address).await.ok()?;
            let request = format!("GET /metrics HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.take(MOST_BYTES).read_to_string(&mut answer).await.ok()?;
            self.find(&answer)
        };
        timeout(LONGEST, read).await.ok().flatten()
    }

    fn find(self, text: &str) -> Option<u64> {
        let name = match self.kind {
            Kind::Relay => "tradewind_relay_open_sessions ",
            _ => "tradewind_gateway_open_sessions ",
        };
        let figure = text.lines().find_map(|line| line.strip_prefix(name))?;
        let open: f64 = figure.trim().parse().ok()?;
        (open >= 0.0).then_some(open as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test]
    async fn number_is_that_of_the_process_and_none_where_it_says_nothing() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let process = |metrics: &str| Process {
            name: "gateway".to_owned(),
            kind: Kind::Gateway,
            config: format!(
                "identity_file = 'data.key'\ndirect = true\n{metrics}[[forward]]\n\
                 listen = '127.0.0.1:0'\nto = '192.0.2.1:9'\n"
            ),
            files: BTreeMap::new(),
        };
        assert_eq!(Metrics::of(&process("")), None);
        let metrics = Metrics::of(&process(&format!("metrics = '{address}'\n"))).unwrap();
        let answers = async {
            for body in
                ["tradewind_gateway_open_sessions 12.0\n", "tradewind_relay_open_sessions 3\n"]
            {
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
        let asks = async { [metrics.open_sessions().await, metrics.open_sessions().await] };
        let (found, ()) = tokio::join!(asks, answers);
        assert_eq!(found, [Some(12), None]);
        drop(listener);
        assert_eq!(metrics.open_sessions().await, None);
    }
}
