//! Port forwards, and their PROXY headers.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use tradewind_grant::{Destination, DestinationRule};
use tradewind_units::{FlowId, address};

use crate::checks::range_problem;

/// Most ports of one forward. Chosen: each takes descriptors in every worker.
const MAX_PORTS: usize = 1000;

const LISTEN_EXPECTED: &str =
    "IP:PORT such as `127.0.0.1:8000`, or several ports such as `127.0.0.1:8000-8010`";
const TO_EXPECTED: &str =
    "HOST:PORT such as `db.example.com:9000`, or several ports such as `db.example.com:9000-9010`";

/// A port whose connections all go to one destination.
#[derive(Debug, Clone)]
pub struct Forward {
    /// The index of its `[[forward]]` in the file, from 0.
    pub section: usize,
    /// The address that it listens on for applications.
    pub listen: SocketAddr,
    /// The destination of its connections.
    pub to: Destination,
    /// The flow that they belong to, for logs.
    pub flow: FlowId,
    /// The version of the PROXY header that is sent to the destination; none is sent when absent.
    pub send_proxy: Option<ProxyVersion>,
    /// Sources whose connections always begin with a PROXY header; their ports do not count.
    /// Connections of other sources begin with data.
    pub accept_proxy: Vec<DestinationRule>,
}

impl Forward {
    /// Returns the key of its listening address.
    pub(crate) fn key(&self) -> String {
        format!("forward[{}].listen", self.section)
    }
}

/// A version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyVersion {
    /// The binary one.
    V2,
}

/// A port, or several consecutive ones, whose connections all go to one destination.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Text {
    /// The address that it listens on for applications; with several ports, at most 1000, it is one
    /// forward for each.
    listen: Listen,
    /// The destination of its connections: one, or as many ports as `listen` has.
    to: To,
    /// The flow that they belong to, for logs.
    #[serde(default = "flow")]
    flow: FlowId,
    /// The version of the PROXY header that is sent to the destination; none is sent when absent.
    #[serde(default)]
    send_proxy: Option<ProxyVersion>,
    /// Sources whose connections always begin with a PROXY header; their ports do not count.
    /// Connections of other sources begin with data.
    #[serde(default)]
    accept_proxy: Vec<DestinationRule>,
}

fn flow() -> FlowId {
    FlowId::new("forward").expect("a short word")
}

/// The forwards of one section, one for each port.
#[derive(Deserialize)]
#[serde(try_from = "Text")]
struct Section(Vec<Forward>);

/// Parses all sections.
pub(crate) fn list<'de, D: Deserializer<'de>>(sections: D) -> Result<Vec<Forward>, D::Error> {
    let sections = Vec::<Section>::deserialize(sections)?;
    let numbered = |(section, Section(forwards)): (usize, Section)| {
        forwards.into_iter().map(move |forward| Forward { section, ..forward })
    };
    Ok(sections.into_iter().enumerate().flat_map(numbered).collect())
}

impl TryFrom<Text> for Section {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        let Text { listen, to, flow, send_proxy, accept_proxy } = text;
        if let Some(problem) = range_problem(&accept_proxy) {
            return Err(format!("accept_proxy: {problem}"));
        }
        let (count, goals) = (listen.ports.clone().count(), to.ports.clone().count());
        if goals != 1 && goals != count {
            return Err(format!(
                "`listen` has {count} ports and `to` has {goals}; expected as many, or one in `to`"
            ));
        }
        if count > MAX_PORTS {
            return Err(format!("`listen` has {count} ports; expected at most {MAX_PORTS}"));
        }
        let forwards = listen.ports.enumerate().map(|(index, port)| {
            let goal = if goals == 1 { 0 } else { index };
            let goal = to.ports.clone().nth(goal).expect("as many as ports to listen on");
            Ok(Forward {
                section: 0,
                listen: with_port(listen.first, port),
                to: Destination::new(&to.host, goal).map_err(|error| error.to_string())?,
                flow: flow.clone(),
                send_proxy,
                accept_proxy: accept_proxy.clone(),
            })
        });
        forwards.collect::<Result<_, _>>().map(Self)
    }
}

/// An address with one port or several.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Listen {
    /// The first of them.
    first: SocketAddr,
    ports: RangeInclusive<u16>,
}

tradewind_units::text_schema!(
    Listen,
    "IP:PORT or IP:PORT-PORT",
    r"^(\[.+\]|[0-9.]+):[0-9]+(-[0-9]+)?$",
    "127.0.0.1:8000-8010"
);

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused = || format!("socket address: {LISTEN_EXPECTED}, not `{text}`");
        let (first, ports) = match text.parse::<SocketAddr>() {
            Ok(address) => (address, address.port()..=address.port()),
            Err(_) => {
                let (host, ports) = split(&text).ok_or_else(refused)?;
                let first = format!("{host}:{}", ports.start());
                (first.parse().map_err(|_| refused())?, ports)
            }
        };
        // A link-local address may lack its zone.
        address::parse(&first.to_string()).map_err(|error| error.to_string())?;
        Ok(Self { first, ports })
    }
}

/// Returns the same address, zone included, with another port.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// A host with one port or several.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct To {
    host: String,
    ports: RangeInclusive<u16>,
}

tradewind_units::text_schema!(
    To,
    "HOST:PORT or HOST:PORT-PORT",
    "^.+:[0-9]+(-[0-9]+)?$",
    "db.example.com:9000-9010"
);

impl TryFrom<String> for To {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let Some((host, ports)) = split(&text) else {
            let problem = text.parse::<Destination>().err();
            let problem = problem.map_or_else(|| text.clone(), |problem| problem.to_string());
            return if text.rsplit_once(':').is_some_and(|(_, port)| port.contains('-')) {
                Err(format!("`{text}`: expected {TO_EXPECTED}"))
            } else {
                Err(problem)
            };
        };
        // An invalid host is reported here, with the key.
        let text = format!("{host}:{}", ports.start());
        text.parse::<Destination>().map_err(|error| error.to_string())?;
        Ok(Self { host: host.to_owned(), ports })
    }
}

/// Splits a text into host and ports; the ports ascend, and none is 0.
fn split(text: &str) -> Option<(&str, RangeInclusive<u16>)> {
    let port = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| is_number && *port != 0)
    };
    let (host, ports) = text.rsplit_once(':')?;
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some((host, first..=last))
}

#[cfg(test)]
mod tests {
    use crate::GatewayConfig;

    fn forwards(rest: &str) -> Result<Vec<(String, String)>, String> {
        let config = GatewayConfig::parse(&format!("[[forward]]\n{rest}"));
        let config = config.map_err(|error| error.to_string())?;
        let one = |forward: &super::Forward| (forward.listen.to_string(), forward.to.to_string());
        Ok(config.forward.iter().map(one).collect())
    }

    #[test]
    fn port_range_is_one_forward_each() {
        let of = |listen: &str, to: &str| forwards(&format!("listen = '{listen}'\nto = '{to}'"));
        let found = of("127.0.0.1:8000-8002", "db.example.com:9000-9002").unwrap();
        let expected = [(8000, 9000), (8001, 9001), (8002, 9002)]
            .map(|(from, to)| (format!("127.0.0.1:{from}"), format!("db.example.com:{to}")));
        assert_eq!(found, expected);
        let found = of("[::1]:8000-8001", "[2001:db8::1]:9").unwrap();
        let expected = [8000, 8001].map(|from| (format!("[::1]:{from}"), "[2001:db8::1]:9".into()));
        assert_eq!(found, expected);
        let found = of("[fe80::1%2]:8000-8001", "192.0.2.1:9").unwrap();
        let expected = [8000, 8001].map(|from| format!("[fe80::1%2]:{from}"));
        assert_eq!(found.into_iter().map(|one| one.0).collect::<Vec<_>>(), expected);
        assert_eq!(of("127.0.0.1:0", "192.0.2.1:1").unwrap().len(), 1);
        assert_eq!(of("127.0.0.1:7-7", "192.0.2.1:1-1").unwrap().len(), 1);
    }

    #[test]
    fn invalid_port_ranges_are_refused() {
        for (listen, to, expected) in [
            (
                "127.0.0.1:8000-8010",
                "a.example:9000-9009",
                "`listen` has 11 ports and `to` has 10; expected as many, or one in `to`",
            ),
            ("127.0.0.1:8000", "a.example:1-2", "`listen` has 1 ports and `to` has 2"),
            ("127.0.0.1:1-2000", "a.example:1", "has 2000 ports; expected at most 1000"),
            ("127.0.0.1:8010-8000", "a.example:1", "not `127.0.0.1:8010-8000`"),
            ("127.0.0.1:0-1", "a.example:1", "not `127.0.0.1:0-1`"),
            ("127.0.0.1:1-65536", "a.example:1", "not `127.0.0.1:1-65536`"),
            ("127.0.0.1:1-2-3", "a.example:1", "not `127.0.0.1:1-2-3`"),
            ("localhost:1-2", "a.example:1", "not `localhost:1-2`"),
            ("[fe80::1]:1-2", "a.example:1", "for a link-local IP the number of its interface"),
            ("[fe80::1]:1", "a.example:1", "for a link-local IP the number of its interface"),
            ("127.0.0.1:1", "a.example:9-8", "`a.example:9-8`: expected HOST:PORT"),
            ("127.0.0.1:1", "a..example:8", "destination `a..example:8`"),
            ("127.0.0.1:1", "localhost:8-9", "destination `localhost:8`"),
        ] {
            let line = forwards(&format!("listen = '{listen}'\nto = '{to}'")).unwrap_err();
            assert!(
                line.starts_with("configuration, `forward[0]") && line.contains(expected),
                "{line}"
            );
        }
    }
}
