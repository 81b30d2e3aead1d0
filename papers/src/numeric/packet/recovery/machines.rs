//! The machines at the hosts of a run, as the scenario sets them up.

use tradewind_packet::egress::Egress;
use tradewind_packet::id::{FlowNumber, Genuine, PacketId, Peer};
use tradewind_packet::ingress::{Acknowledging, Coding, InStream, Ingress, IngressConfig};
use tradewind_packet::message::Service;
use tradewind_packet::receiver::{Receiver, ReceiverConfig, ReceiverFlow};
use tradewind_packet::sender::{Arq, Copies, Paths, Sender, SenderConfig, SenderFlow};
use tradewind_units::Timestamp;

use super::Scenario;
use super::paths::Path;

/// Payloads that identify their packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marked {
    pub(super) bytes: usize,
}

impl Marked {
    pub(super) fn payload(self, packet: PacketId, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&packet.flow.0.to_be_bytes());
        out.extend_from_slice(&packet.sequence.to_be_bytes());
        out.resize(self.bytes.max(16), packet.sequence as u8);
    }
}

impl Genuine for Marked {
    fn is_genuine(&self, packet: PacketId, payload: &[u8]) -> bool {
        payload.len() == self.bytes.max(16)
            && payload[..8] == packet.flow.0.to_be_bytes()
            && payload[8..16] == packet.sequence.to_be_bytes()
            && payload[16..].iter().all(|byte| *byte == packet.sequence as u8)
    }
}

/// A machine at a host.
pub(super) enum Node {
    Sender(Box<Sender>),
    Receiver(Box<Receiver>),
    Ingress(Box<Ingress>),
    Egress(Box<Egress>),
}

pub(super) fn ingress_config(scenario: &Scenario, arq: bool) -> IngressConfig {
    let coding = Coding {
        packets: scenario.cross_stream[1],
        repairs: scenario.cross_stream[0],
        ..Coding::default()
    };
    IngressConfig { coding, acknowledging: arq.then(Acknowledging::default), first_block: 0 }
}

pub(super) fn new_sender(number: FlowNumber, receiver: Peer, ingress: Peer, arq: bool) -> Node {
    let arq = arq.then(Arq::default);
    let mut sender = Sender::new(SenderConfig { arq, uplink: None });
    let flow = SenderFlow {
        receiver: Some(receiver),
        ingress: Some(ingress),
        service: Service::Coding,
        paths: Paths::Overlay,
        copies: Copies::All,
        worth: None,
    };
    sender.set_flow(number, flow).expect("few flows");
    Node::Sender(Box::new(sender))
}

pub(super) fn new_receiver(number: FlowNumber, sender: Peer, egress: Peer, path: &Path) -> Node {
    let mut receiver = Receiver::new(Timestamp::ZERO, ReceiverConfig::default());
    let (egress, round_trip) = (Some(egress), path.internet * 2);
    let flow = ReceiverFlow {
        sender,
        egress,
        service: Service::Coding,
        round_trip,
        recovery_deadline: round_trip,
    };
    receiver.add_flow(number, flow).expect("few flows");
    Node::Receiver(Box::new(receiver))
}

/// In-stream coding as the scenario has it.
impl Scenario {
    pub(super) fn in_stream(&self) -> Option<InStream> {
        let [repairs, packets] = self.in_stream;
        (repairs > 0).then_some(InStream { packets, repairs })
    }
}
