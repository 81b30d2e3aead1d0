//! Small networks and traffic for the tests.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of these")]

use tradewind_model::Catalogue;
use tradewind_units::{HostId, Timestamp};
use tradewind_wan::{Admission, Bundle, Delivery, Ecn, HostIndex, Topology, TopologyError, Wan};

pub fn parse(text: &str) -> Result<Topology, TopologyError> {
    Topology::parse(text, &Catalogue::builtin())
}

/// Sites `a` and `b`, a host at each, and a pair with `keys`.
pub fn two_sites(keys: &str) -> Topology {
    let text =
        format!("[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[pair]]\nbetween = ['a', 'b']\n{keys}\n");
    parse(&text).expect("a right topology")
}

pub const A: HostIndex = HostIndex(0);
pub const B: HostIndex = HostIndex(1);

pub fn at(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros * 1000)
}

pub fn host(topology: &Topology, name: &str) -> HostIndex {
    topology.host(&HostId::new(name).expect("a right name")).expect("a host of the topology")
}

/// Returns a packet of `bytes` IP bytes that carries `content`.
pub fn packet<P>(source: HostIndex, destination: HostIndex, bytes: u32, content: P) -> Bundle<P> {
    bundle(source, destination, bytes - 40, 1, content)
}

/// Returns a bundle of `segments` segments of `payload` bytes each, with headers of 40 bytes.
pub fn bundle<P>(
    source: HostIndex,
    destination: HostIndex,
    payload: u32,
    segments: u32,
    content: P,
) -> Bundle<P> {
    Bundle {
        source,
        destination,
        connection: 1,
        header_bytes: 40,
        payload_bytes: payload * segments,
        segment_bytes: payload,
        ecn: Ecn::NotCapable,
        content,
    }
}

/// Pushes and expects admission.
pub fn push<P: Clone>(wan: &mut Wan<P>, now: Timestamp, bundle: Bundle<P>) {
    assert_eq!(wan.push(now, bundle), Admission::Accepted);
}

/// Returns all deliveries until nothing is in flight, each taken at the network's next deadline.
pub fn drain<P: Clone>(wan: &mut Wan<P>) -> Vec<Delivery<P>> {
    let mut deliveries = Vec::new();
    while let Some(deadline) = wan.next_deadline() {
        while let Some(delivery) = wan.pop_due(deadline) {
            deliveries.push(delivery);
        }
    }
    deliveries
}

/// Returns every delivered segment with its time, in microseconds: `(content, index, due)`.
pub fn arrivals<P: Clone>(deliveries: &[Delivery<P>]) -> Vec<(P, u32, f64)> {
    deliveries
        .iter()
        .flat_map(|d| {
            let due = d.due.as_nanos() as f64 / 1e3;
            d.segments.clone().map(move |index| (d.content.clone(), index, due))
        })
        .collect()
}
