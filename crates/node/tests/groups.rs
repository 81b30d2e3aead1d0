//! Groups: one port, several remote gateways, over loopback. Chosen datagrams of the Internet paths
//! are lost, relays and gateways die.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::world::{GAP, sink};
use nodes::*;
use tradewind_node::status::{Direction, FlowStatus};
use tradewind_node::{Node, NodeConfig, NodeError};

/// More than the size probes, which wires count as well, and far fewer than packets.
const PROBES: usize = 40;
/// A loss rate that loses nothing, but has the wire count.
const COUNT: usize = usize::MAX;

/// A member's gateway behind its wire, and the application behind it.
struct Member {
    remote: Option<Node>,
    wire: Wire,
    to: SocketAddr,
    sink: Arc<Mutex<BTreeSet<u64>>>,
    number: u8,
}

impl Member {
    fn new(number: u8, delay: Duration, fast: Vec<SocketAddr>) -> Self {
        let remote = Node::start(plain(number, loopback(), &[2, 3, 4])).unwrap();
        let wire = Wire::slow(remote.address(), delay, fast);
        let (to, sink) = sink();
        Self { remote: Some(remote), wire, to, sink, number }
    }

    fn has_of(&self, numbers: std::ops::Range<u64>) -> u64 {
        self.sink.lock().unwrap().range(numbers).count() as u64
    }

    /// Ends the gateway, and starts another in its place, without its state.
    fn start_again(&mut self) {
        let address = self.remote.take().unwrap().address();
        self.remote = Some(Node::start(plain(self.number, address, &[2, 3, 4])).unwrap());
    }

    fn recovered(&self) -> u64 {
        self.remote.as_ref().unwrap().snapshot().recovered_cache
    }
}

/// A local gateway with one group, three relays, and members over chosen ones of these.
struct Many {
    near: Node,
    relays: Vec<Node>,
    members: Vec<Member>,
    application: UdpSocket,
    next: u64,
}

impl Many {
    /// Starts all; `over` has the relays of each member, by place.
    fn new(how: &str, over: &[&[usize]]) -> Self {
        Self::with_slow_internet(how, over, Duration::ZERO)
    }

    /// Does the same, where packets take longer over the Internet.
    fn with_slow_internet(how: &str, over: &[&[usize]], delay: Duration) -> Self {
        let relay = |number| Node::start(plain(number, loopback(), &[2])).unwrap();
        let relays: Vec<Node> = (2..5).map(relay).collect();
        let fast: Vec<SocketAddr> = relays.iter().map(Node::address).collect();
        let member = |number| Member::new(number, delay, fast.clone());
        let members: Vec<Member> = (10..).take(over.len()).map(member).collect();
        let hop = |address: SocketAddr, number: u8| {
            format!("{{ address = '{address}', identity = '{}' }}", identity(number).public())
        };
        let group: Vec<String> = (members.iter().zip(over))
            .map(|(member, over)| {
                let over = over.iter().map(|at| hop(relays[*at].address(), 2 + *at as u8));
                let over = over.collect::<Vec<_>>().join(", ");
                let remote = hop(member.wire.address, member.number);
                format!("{{ remote = {remote}, to = '{}', relays = [{over}] }}", member.to)
            })
            .collect();
        let section = format!("listen = '127.0.0.1:0'\ngroup = [{}]\n{how}", group.join(", "));
        let near = Node::start(config(&section).unwrap()).unwrap();
        let application = UdpSocket::bind(loopback()).unwrap();
        application.connect(near.local_addresses()[0]).unwrap();
        application.set_nonblocking(true).unwrap();
        Self { near, relays, members, application, next: 0 }
    }

    fn send(&mut self) {
        let mut packet = [7; 1000];
        packet[..8].copy_from_slice(&self.next.to_be_bytes());
        self.application.send(&packet).unwrap();
        self.next += 1;
        std::thread::sleep(GAP);
    }

    /// Sends until a condition holds.
    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < TEST_TIMEOUT, "{what} did not come:\n{}", self.describe());
            self.send();
        }
    }

    /// Sends `count` and waits until all have arrived everywhere, except for `most_missing` at
    /// each: on a busy machine a relay may run later than a receiver's last request.
    fn all_come(&mut self, count: u64, most_missing: u64) {
        let first = self.next;
        while self.next < first + count {
            self.send();
        }
        self.until("the packets", |many| {
            let has = |member: &Member| member.has_of(first..first + count) + most_missing >= count;
            many.members.iter().all(has)
        });
    }

    /// Returns the flows to all members, once each is in reach of the relays.
    fn in_reach(&mut self) -> Vec<FlowStatus> {
        let in_reach = |many: &Self| {
            let flows = many.sent();
            flows.len() == many.members.len()
                && flows.iter().all(|flow| flow.why == "as configured")
        };
        self.until("members in reach", in_reach);
        self.sent()
    }

    fn sent(&self) -> Vec<FlowStatus> {
        self.flows(Direction::Sent)
    }

    fn flows(&self, direction: Direction) -> Vec<FlowStatus> {
        let flows = self.near.report().flows.into_iter();
        flows.filter(|flow| flow.direction == direction).collect()
    }

    fn describe(&self) -> String {
        let remotes = self.members.iter().flat_map(|member| &member.remote);
        let nodes = [&self.near].into_iter().chain(&self.relays).chain(remotes);
        let snapshots: String = nodes.map(|node| format!("{:?}\n", node.snapshot())).collect();
        format!("{snapshots}{:#?}", self.near.report())
    }

    /// Returns the replies that the application has received, by the number that they reply to.
    fn answers(&self) -> Vec<u64> {
        let mut buffer = [0; 2048];
        let mut answers = Vec::new();
        while let Ok(length) = self.application.recv(&mut buffer) {
            assert_eq!(length, 8);
            answers.push(u64::from_be_bytes(buffer[..8].try_into().unwrap()));
        }
        answers
    }
}

fn config(section: &str) -> Result<NodeConfig, NodeError> {
    let packet: toml::Table = section.parse().unwrap();
    let endpoint: toml::Table = "listen = '127.0.0.1:0'".parse().unwrap();
    let grant = Some(grant(identity(1).public(), "127.0.0.0/8:*"));
    of_gateway(&[packet.into()], Some(&endpoint.into()), identity(1), grant)
}

#[test]
fn group_losses_are_recovered_from_one_copy() {
    let mut many = Many::new("budget = '3 s'", &[&[0, 1], &[0, 1], &[0, 1]]);
    let flows = many.in_reach();
    assert!(flows.iter().all(|flow| flow.service == "caching"), "{}", many.describe());
    let before = (many.near.snapshot().copied, many.relays[1].snapshot().cached);
    let first = many.next;
    for (member, each) in many.members.iter().zip([4, 5, 7]) {
        member.wire.lose_each(many.near.address(), each);
    }
    many.all_come(200, 4);
    let sent = many.next - first;
    let copied = many.near.snapshot().copied - before.0;
    // A copy that is not acknowledged in time on a busy machine is retransmitted.
    assert!((200..sent * 3 / 2).contains(&copied), "{copied} of {sent}: {}", many.describe());
    let cached = many.relays[1].snapshot().cached - before.1;
    // The last packet before these may be counted with them.
    assert!((190..=sent + 1).contains(&cached), "{cached} of {sent}: {}", many.describe());
    for member in &many.members {
        assert!(member.recovered() >= 20, "{}", many.describe());
    }
}

#[test]
fn all_members_reply() {
    let mut many = Many::new("", &[&[0], &[0, 1], &[0, 2]]);
    many.in_reach();
    many.answers();
    let first = many.next;
    many.all_come(50, 0);
    let begun = Instant::now();
    let mut answers = Vec::new();
    let wanted: Vec<u64> = (first..first + 50).flat_map(|number| [number; 3]).collect();
    while answers.len() < wanted.len() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{answers:?}:\n{}", many.describe());
        answers.extend(
            many.answers().into_iter().filter(|number| (first..first + 50).contains(number)),
        );
        std::thread::sleep(GAP);
    }
    answers.sort_unstable();
    assert_eq!(answers, wanted);
    // Replies are carried as the packets that they reply to.
    many.until("answers that relays serve", |many| {
        let came = many.flows(Direction::Received);
        came.len() == 3 && came.iter().all(|flow| flow.service == "caching")
    });
}

#[test]
fn relays_only_group_falls_back_on_failure() {
    let how = "service = 'forwarding'\npaths = 'relays'\nbudget = '3 s'";
    let mut many = Many::new(how, &[&[0], &[0, 1], &[0, 2]]);
    many.in_reach();
    let over_internet = |many: &Many| -> usize {
        many.members.iter().map(|member| member.wire.weather.lock().unwrap().seen).sum()
    };
    let near = many.near.address();
    many.members.iter().for_each(|member| member.wire.lose_each(near, COUNT));
    many.all_come(200, 0);
    assert!(over_internet(&many) < PROBES, "{}", many.describe());
    assert!(many.relays.iter().all(|relay| relay.snapshot().cached >= 200), "{}", many.describe());

    // The second relay has one member behind it: that one gets its packets over the Internet, the
    // others over the relays.
    let relay = many.relays.remove(1);
    let address = relay.address();
    drop(relay);
    let there = |many: &Many| many.members[1].wire.weather.lock().unwrap().seen;
    let before = there(&many);
    many.until("packets over the Internet", |many| there(many) > before + PROBES);
    many.all_come(200, 0);
    let to_others = over_internet(&many) - there(&many);
    assert!(to_others < PROBES && there(&many) > 200, "{to_others}:\n{}", many.describe());
    many.relays.insert(1, Node::start(plain(3, address, &[2])).unwrap());
    many.in_reach();
    let before = there(&many);
    many.all_come(100, 0);
    assert!(there(&many) < before + PROBES, "{}", many.describe());
}

#[test]
fn restarted_member_rejoins() {
    let mut many = Many::new("budget = '3 s'", &[&[0, 1], &[0, 1]]);
    many.in_reach();
    many.members[0].start_again();
    let first = many.next;
    many.until("packets", |many| many.members[0].has_of(first..u64::MAX) > 20);
    many.in_reach();
    many.members[0].wire.lose_each(many.near.address(), 4);
    many.all_come(100, 4);
    assert!(many.members[0].recovered() >= 10, "{}", many.describe());
}

#[test]
fn applications_are_separate_conversations() {
    // Packets over relays arrive first, in a conversation that members do not know.
    let (how, slow) = ("service = 'forwarding'\nbudget = '3 s'", Duration::from_millis(40));
    let mut many = Many::with_slow_internet(how, &[&[0, 1], &[0, 1]], slow);
    many.in_reach();
    let other = UdpSocket::bind(loopback()).unwrap();
    other.connect(many.near.local_addresses()[0]).unwrap();
    let mut number: u64 = 1 << 40;
    let begun = Instant::now();
    while !many.members.iter().all(|member| member.has_of(1 << 40..u64::MAX) > 50) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{}", many.describe());
        let mut packet = [7; 1000];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        other.send(&packet).unwrap();
        number += 1;
        many.send();
    }
    assert_eq!(many.sent().len(), 2, "one flow to each member: {}", many.describe());
}

#[test]
fn invalid_group_is_refused() {
    let hop = |place: u8| {
        format!("{{ address = '192.0.2.{place}:7001', identity = '{}' }}", identity(place).public())
    };
    let member = |remote: u8, relays: &str| {
        format!("{{ remote = {}, to = '10.0.0.7:5004', relays = [{relays}] }}", hop(remote))
    };
    let refusal = |members: &[String], how: &str| {
        let members = members.join(", ");
        let section = format!("listen = '127.0.0.1:0'\n{how}\ngroup = [{members}]");
        match config(&section).map(Node::start) {
            Err(error) | Ok(Err(error)) => error.to_string(),
            Ok(Ok(_)) => panic!("taken: {section}"),
        }
    };
    let (a, b) = (hop(2), hop(3));
    let two = [member(10, &a), member(11, &format!("{a}, {b}"))];
    let expect = |error: String, part: &str| {
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    };
    expect(refusal(&[], ""), "expected 1 to 256 members");
    expect(refusal(&two, "service = 'coding'"), "expected `caching` or `forwarding`");
    expect(refusal(&two, "paths = 'relays'"), "expected only with `service = \"forwarding\"`");
    expect(refusal(&two, "to = '10.0.0.7:5004'"), "expected only without `group`");
    let other_first = [member(10, &a), member(11, &b)];
    expect(refusal(&other_first, ""), "of which the first is the same for all");
    expect(refusal(&[member(10, "")], ""), "one or two `relays`");
    expect(refusal(&[member(10, &a), member(10, &a)], ""), "another remote gateway");
    let nearest = format!("{{ remote = {}, to = '10.0.0.7:5004', relays = 'nearest' }}", hop(12));
    expect(refusal(&[member(10, &a), nearest], ""), "`nearest` for all");
}
