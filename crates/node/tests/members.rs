//! Members: a gateway with a list of relays and endpoints finds the relay near it by itself, and
//! follows changes of the list.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::*;
use tradewind_node::{Node, NodeConfig, RelayServices};

/// The additional delay of the remote relay.
const FARTHER: Duration = Duration::from_millis(60);

/// A file that is removed with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let name = format!("tradewind-members-{name}-{}.toml", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Writes relays, and one endpoint, `berlin`, with the relay near it.
    fn write(&self, relays: &[(SocketAddr, u8)], berlin: (SocketAddr, u8), near: (SocketAddr, u8)) {
        let relays: String =
            relays.iter().map(|relay| format!("[[relay]]\n{}\n", lines(*relay))).collect();
        let near = lines(near).replace('\n', ", ");
        let text = format!(
            "{relays}[[endpoint]]\nid = 'berlin'\n{}\nrelays = [{{ {near}, round_trip = '1 ms' \
             }}]\n",
            lines(berlin)
        );
        // Nobody must read half of it.
        let whole = self.0.with_extension("new");
        std::fs::write(&whole, text).unwrap();
        std::fs::rename(whole, &self.0).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn lines((address, number): (SocketAddr, u8)) -> String {
    format!("address = '{address}'\nidentity = '{}'", identity(number).public())
}

/// A gateway with one `[[packet]]` to `berlin` over the nearest relays, and an application in front
/// of it.
struct Near {
    node: Node,
    application: UdpSocket,
}

fn near(file: &File, echo: SocketAddr) -> Near {
    let section = format!(
        "listen = '127.0.0.1:0'\nto = '{echo}'\nremote = 'berlin'\nrelays = 'nearest'\n\
         paths = 'relays'"
    );
    Near::start(config(&section, Some(file)).unwrap())
}

fn config(packet: &str, file: Option<&File>) -> Result<NodeConfig, tradewind_node::NodeError> {
    let packet: toml::Table = packet.parse().unwrap();
    let members = file.map(|file| format!("members = '{}'", file.0.display()));
    let endpoint = format!("listen = '127.0.0.1:0'\n{}", members.unwrap_or_default());
    let endpoint: toml::Table = endpoint.parse().unwrap();
    let grant = Some(grant(identity(1).public(), "127.0.0.0/8:*"));
    of_gateway(&[packet.into()], Some(&endpoint.into()), identity(1), grant)
}

impl Near {
    fn start(config: NodeConfig) -> Self {
        let node = Node::start(config).unwrap();
        let application = UdpSocket::bind(loopback()).unwrap();
        application.connect(node.local_addresses()[0]).unwrap();
        application.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Self { node, application }
    }

    /// Sends, and receives the replies, until `holds` does.
    fn until(&self, what: &str, mut holds: impl FnMut(bool) -> bool) {
        let (begun, mut buffer) = (Instant::now(), [0; 64]);
        loop {
            let state = (self.node.report(), self.node.snapshot());
            assert!(begun.elapsed() < TEST_TIMEOUT, "{what} did not come:\n{state:?}");
            self.application.send(b"any").unwrap();
            let has_answer = self.application.recv(&mut buffer).is_ok();
            if holds(has_answer) {
                return;
            }
        }
    }
}

fn relay(number: u8) -> Node {
    Node::start(plain(number, loopback(), &[2, 3])).unwrap()
}

#[test]
fn nearest_relays_are_used() {
    let remote = Node::start(plain(4, loopback(), &[2, 3, 5])).unwrap();
    let (distant, close, there) = (relay(2), relay(3), relay(5));
    let wire = Wire::slow(distant.address(), FARTHER, Vec::new());
    let file = File::new("nearest");
    let relays = [(wire.address, 2), (close.address(), 3)];
    file.write(&relays, (remote.address(), 4), (there.address(), 5));
    let near = near(&file, echo());
    near.until("answers over the near relay", |has_answer| {
        has_answer && [&close, &there].iter().all(|relay| relay.snapshot().forwarded > 10)
    });
    assert_eq!(distant.snapshot().forwarded, 0);
    near.until("the report", |_| near.node.report().relays.iter().any(|relay| relay.is_nearest));
    let report = near.node.report();
    let [distant_status, close_status] = &report.relays[..] else { panic!("{report:?}") };
    assert!(close_status.is_nearest && !distant_status.is_nearest, "{report:?}");
    assert!(distant_status.round_trip_ms.unwrap() >= FARTHER.as_secs_f64() * 1e3, "{report:?}");
    assert_eq!(report.endpoints[0].id, "berlin");
    drop(close);
    near.until("answers over the other relay", |has_answer| {
        has_answer && distant.snapshot().forwarded > 10
    });
}

/// The first address of relay and endpoint is one where nobody is.
#[test]
fn members_use_answering_address() {
    let remote = Node::start(plain(4, loopback(), &[2])).unwrap();
    let relay = relay(2);
    let silent = UdpSocket::bind(loopback()).unwrap().local_addr().unwrap();
    let several = |node: &Node, number: u8| {
        let identity = identity(number).public();
        format!("address = ['{silent}', '{}']\nidentity = '{identity}'\n", node.address())
    };
    let file = File::new("several");
    let (relay_lines, remote_lines) = (several(&relay, 2), several(&remote, 4));
    let text = format!("[[relay]]\n{relay_lines}[[endpoint]]\nid = 'berlin'\n{remote_lines}");
    std::fs::write(&file.0, text).unwrap();
    let section =
        format!("listen = '127.0.0.1:0'\nto = '{}'\nremote = 'berlin'\nrelays = 'nearest'", echo());
    let near = Near::start(config(&section, Some(&file)).unwrap());
    near.until("answers", |has_answer| has_answer && remote.snapshot().delivered > 10);
    near.until("the relay", |_| near.node.report().relays[0].round_trip_ms.is_some());
}

#[test]
fn changed_members_file_moves_member() {
    let [first, second] =
        [4, 6].map(|number| Node::start(plain(number, loopback(), &[2])).unwrap());
    let relay = relay(2);
    let file = File::new("moves");
    let at = (relay.address(), 2);
    file.write(&[at], (first.address(), 4), at);
    let near = near(&file, echo());
    near.until("answers", |has_answer| has_answer && first.snapshot().delivered > 10);
    file.write(&[at], (second.address(), 6), at);
    near.until("answers from the other place", |has_answer| {
        has_answer && second.snapshot().delivered > 10 && relay.snapshot().forwarded > 10
    });
    // None of these datagrams goes to the first one any more.
    let before = first.snapshot().received;
    let sent = second.snapshot().delivered;
    near.until("more", |_| second.snapshot().delivered > sent + 20);
    let more = first.snapshot().received - before;
    assert!(more < 20, "{more} more came to where the member was");
}

/// Returns a gateway to which others send, behind the relay near it; it reports its address to the
/// registry.
fn remote(listen: SocketAddr, file: &File) -> Node {
    let endpoint = format!(
        "listen = '{listen}'\noperators = ['{}']\nrelays = ['{}']\ndestinations = \
         ['127.0.0.0/8:*']\nallow_loopback = true\nmembers = '{}'",
        operator().public(),
        identity(5).public(),
        file.0.display()
    );
    let endpoint: toml::Table = endpoint.parse().unwrap();
    let grant = Some(grant(identity(4).public(), "127.0.0.0/8:*"));
    let config = of_gateway(&[], Some(&endpoint.into()), identity(4), grant).unwrap();
    Node::start(config).unwrap()
}

/// Writes a file with a registry and one relay.
fn with_registry(name: &str, registry: SocketAddr, relay: (SocketAddr, u8)) -> File {
    let file = File::new(name);
    let registry = lines((registry, 3)).replace('\n', ", ");
    let text = format!("registry = {{ {registry} }}\n[[relay]]\n{}\n", lines(relay));
    std::fs::write(&file.0, text).unwrap();
    file
}

#[test]
fn registry_finds_moved_endpoint() {
    let services = RelayServices { is_registry: true, ..RelayServices::default() };
    // Each session of a relay with several threads may be on another one.
    let registry = NodeConfig { services, workers: 2, ..plain(3, loopback(), &[]) };
    let registry = Node::start(registry).unwrap();
    let (here, there) = (relay(2), relay(5));
    let near_file = with_registry("asks", registry.address(), (here.address(), 2));
    let remote_file = with_registry("tells", registry.address(), (there.address(), 5));
    let section = format!(
        "listen = '127.0.0.1:0'\nto = '{}'\nremote = '{}'\nrelays = 'nearest'\npaths = 'relays'",
        echo(),
        identity(4).public()
    );
    let near = Near::start(config(&section, Some(&near_file)).unwrap());
    let first = remote(loopback(), &remote_file);
    near.until("answers over both relays", |has_answer| {
        has_answer && [&here, &there].iter().all(|relay| relay.snapshot().forwarded > 10)
    });
    drop(first);
    let second = remote(loopback(), &remote_file);
    near.until("answers from the other place", |has_answer| {
        has_answer && second.snapshot().delivered > 10
    });
    let report = near.node.report();
    assert_eq!(report.endpoints[0].id, identity(4).public().to_string());
}

#[test]
fn missing_members_are_refused() {
    let file = File::new("missing");
    let at = ("127.0.0.1:7001".parse().unwrap(), 2);
    file.write(&[at], at, at);
    let refused = |remote: &str, relays: &str, file: Option<&File>| {
        let section = format!(
            "listen = '127.0.0.1:0'\nto = '127.0.0.1:9'\nremote = {remote}\nrelays = {relays}\n\
             service = 'forwarding'"
        );
        config(&section, file).and_then(Node::start).unwrap_err().to_string()
    };
    assert_eq!(
        refused("'paris'", "'nearest'", Some(&file)),
        "packet[0].remote: no endpoint among the members has the id `paris`"
    );
    assert_eq!(
        refused("'berlin'", "[]", Some(&file)),
        "packet[0].relays: missing; expected at least one, or `service = \"direct\"`"
    );
    let address = format!("{{ {} }}", lines(at).replace('\n', ", "));
    for (remote, relays, expected) in [
        ("'berlin'", &*format!("[{address}]"), "remote: `berlin` is an id of `members`"),
        (&*address, "'nearest'", "relays: `nearest` takes the relays of `members`"),
    ] {
        let line = refused(remote, relays, None);
        assert!(line.starts_with(&format!("packet[0].{expected}")), "{line}");
    }
    let odd = refused("'berlin'", "'next'", Some(&file));
    assert!(odd.contains("expected a list of relays, or `nearest`"), "{odd}");
    std::fs::write(&file.0, "[[relay]]\naddress = 'here'").unwrap();
    let unread = refused("'berlin'", "'nearest'", Some(&file));
    assert!(unread.starts_with("members: /") && unread.lines().count() == 1, "{unread}");
}
