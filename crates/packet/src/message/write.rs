//! Writes messages.

use std::net::{IpAddr, SocketAddr};

use super::{Acknowledgement, Carriage, Message, Report, Source};
use crate::id::PacketId;

/// The first byte of each message; the high half is its family.
pub(super) mod kind {
    pub(crate) const ON_PATH: u8 = 0x21;
    pub(crate) const OPEN: u8 = 0x22;
    pub(crate) const OPENED: u8 = 0x23;
    pub(crate) const SERVE: u8 = 0x24;
    pub(crate) const BILL: u8 = 0x25;
    pub(crate) const JOIN: u8 = 0x26;
    pub(crate) const REFUSED: u8 = 0x27;

    pub(crate) const DATAGRAM: u8 = 0x31;
    pub(crate) const FIRST: u8 = 0x32;
    pub(crate) const KNOWN: u8 = 0x33;
    pub(crate) const NUMBERED: u8 = 0x34;
    pub(crate) const FIRST_FROM: u8 = 0x35;
    pub(crate) const GROUP_KEY: u8 = 0x36;
    pub(crate) const GROUP_KNOWN: u8 = 0x37;
    pub(crate) const UNKNOWN: u8 = 0x38;
    pub(crate) const DENIED: u8 = 0x39;
    pub(crate) const BEGIN: u8 = 0x3a;
    pub(crate) const BEGIN_FROM: u8 = 0x3b;
    pub(crate) const FRAGMENT: u8 = 0x3c;
    pub(crate) const OVER: u8 = 0x3d;

    pub(crate) const REGISTER: u8 = 0x51;
    pub(crate) const REGISTERED: u8 = 0x52;
    pub(crate) const LOOK_UP: u8 = 0x53;
    pub(crate) const MEMBER: u8 = 0x54;

    pub(crate) const DEPOSIT: u8 = 0x61;
    pub(crate) const DEPOSITED: u8 = 0x62;
    pub(crate) const COLLECT: u8 = 0x63;
    pub(crate) const STORED_MESSAGE: u8 = 0x64;
    pub(crate) const REMAINING: u8 = 0x65;

    pub(crate) const SOURCE: u8 = 0x41;
    pub(crate) const COPY: u8 = 0x42;
    pub(crate) const REPAIR: u8 = 0x43;
    pub(crate) const NACK: u8 = 0x44;
    pub(crate) const HELP_REQUEST: u8 = 0x45;
    pub(crate) const HELP_ANSWER: u8 = 0x46;
    pub(crate) const RECOVERED: u8 = 0x47;
    pub(crate) const ACKNOWLEDGEMENT: u8 = 0x48;
    pub(crate) const FEEDBACK: u8 = 0x49;
    pub(crate) const PRESENCE: u8 = 0x4a;
    pub(crate) const KEEPALIVE: u8 = 0x4b;
}

impl Message<'_> {
    /// Appends the message to `out`.
    ///
    /// The caller keeps the bounds that the parser checks: payloads of 1 to
    /// [`MAX_PAYLOAD_BYTES`](super::MAX_PAYLOAD_BYTES) bytes, lists that are in order.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        match self {
            Self::OnPath { .. }
            | Self::Open { .. }
            | Self::Opened { .. }
            | Self::Refused { .. }
            | Self::Serve { .. }
            | Self::Join { .. }
            | Self::Bill { .. } => self.write_path(out),
            Self::Datagram { .. }
            | Self::Fragment { .. }
            | Self::First { .. }
            | Self::Begin { .. }
            | Self::Known { .. }
            | Self::Unknown { .. }
            | Self::Over { .. }
            | Self::Denied { .. }
            | Self::Numbered { .. }
            | Self::GroupKey { .. }
            | Self::GroupKnown { .. } => {
                self.write_conversation(out);
            }
            Self::Register { .. }
            | Self::Registered { .. }
            | Self::LookUp { .. }
            | Self::Member { .. } => self.write_membership(out),
            Self::Deposit(_)
            | Self::Deposited(_)
            | Self::Collect(_)
            | Self::StoredMessage(_)
            | Self::Remaining(_) => self.write_rendezvous(out),
            _ => self.write_service(out),
        }
    }

    fn write_membership(&self, out: &mut Vec<u8>) {
        match self {
            Self::Register { near } => out.extend_from_slice(near.as_bytes()),
            Self::Registered { seconds } => out.extend_from_slice(&seconds.to_be_bytes()),
            Self::LookUp { identity } => out.extend_from_slice(identity.as_bytes()),
            Self::Member { identity, address, near } => {
                out.extend_from_slice(identity.as_bytes());
                put_address(out, *address);
                out.extend_from_slice(near.as_bytes());
            }
            _ => {}
        }
    }

    fn write_rendezvous(&self, out: &mut Vec<u8>) {
        match self {
            Self::Deposit(deposit) => {
                put(out, &[deposit.stream]);
                out.push(u8::from(deposit.begins));
                put(out, &[deposit.number]);
                out.extend_from_slice(&deposit.keep_s.to_be_bytes());
                out.extend_from_slice(deposit.to.as_bytes());
                out.extend_from_slice(deposit.stored_message);
            }
            Self::Deposited(deposited) => {
                put(out, &[deposited.epoch, deposited.stream]);
                out.push(u8::from(deposited.is_known));
                put_seen(out, &deposited.seen);
            }
            Self::Collect(collect) => {
                put(out, &[collect.epoch, collect.ask]);
                out.extend_from_slice(&collect.credit.to_be_bytes());
                put_seen(out, &collect.seen);
            }
            Self::StoredMessage(stored_message) => {
                put(out, &[stored_message.epoch, stored_message.since, stored_message.position]);
                out.extend_from_slice(stored_message.stored_message);
            }
            Self::Remaining(remaining) => {
                put(out, &[remaining.epoch, remaining.ask]);
                out.extend_from_slice(&remaining.left.to_be_bytes());
            }
            _ => {}
        }
    }

    fn write_path(&self, out: &mut Vec<u8>) {
        match self {
            Self::OnPath { label, datagram: rest } | Self::Open { label, header: rest } => {
                out.extend_from_slice(&label.to_be_bytes());
                out.extend_from_slice(rest);
            }
            Self::Opened { label, next } => {
                out.extend_from_slice(&label.to_be_bytes());
                out.extend_from_slice(&next.to_be_bytes());
            }
            Self::Refused { label, by, reason } => {
                out.extend_from_slice(&label.to_be_bytes());
                out.extend_from_slice(by.as_bytes());
                out.push(*reason as u8);
            }
            Self::Serve { label, flow, service } | Self::Join { label, flow, service } => {
                out.extend_from_slice(&label.to_be_bytes());
                put(out, &[flow.0]);
                out.push(*service as u8);
            }
            Self::Bill { label, flow, is_egress, bytes, nano_usd } => {
                out.extend_from_slice(&label.to_be_bytes());
                put(out, &[flow.0]);
                out.push(u8::from(*is_egress));
                put(out, &[*bytes, *nano_usd]);
            }
            _ => {}
        }
    }

    fn write_conversation(&self, out: &mut Vec<u8>) {
        match self {
            Self::Datagram { conversation, payload } => {
                out.extend_from_slice(&conversation.to_be_bytes());
                out.extend_from_slice(payload);
            }
            Self::Fragment { conversation, piece } => {
                out.extend_from_slice(&conversation.to_be_bytes());
                out.extend_from_slice(&piece.datagram.to_be_bytes());
                out.extend_from_slice(&[piece.index, piece.count]);
                out.extend_from_slice(piece.bytes);
            }
            Self::First { conversation, carriage, to, from, payload } => {
                put_beginning(out, *conversation, *carriage, (*to, *from));
                out.extend_from_slice(payload);
            }
            Self::Begin { conversation, carriage, to, from } => {
                put_beginning(out, *conversation, *carriage, (*to, *from));
            }
            Self::Known { conversation }
            | Self::Unknown { conversation }
            | Self::Over { conversation } => {
                out.extend_from_slice(&conversation.to_be_bytes());
            }
            Self::Denied { conversation, reason } => {
                out.extend_from_slice(&conversation.to_be_bytes());
                out.push(*reason as u8);
            }
            Self::Numbered { packet, message } => {
                put_packet(out, *packet);
                out.extend_from_slice(message);
            }
            Self::GroupKey { flow, epoch, key } => {
                put(out, &[flow.0]);
                out.push(*epoch);
                out.extend_from_slice(key.0);
            }
            Self::GroupKnown { flow, epoch, is_served } => {
                put(out, &[flow.0]);
                out.extend_from_slice(&[*epoch, u8::from(*is_served)]);
            }
            _ => {}
        }
    }

    fn write_service(&self, out: &mut Vec<u8>) {
        match self {
            Self::Source(source) => write_source(source, out),
            Self::Copy { number, source } => {
                put(out, &[*number]);
                write_source(source, out);
            }
            Self::Repair(repair) => {
                out.extend_from_slice(&[repair.scope as u8, repair.row, repair.rows]);
                out.extend_from_slice(&repair.members.columns().bits().to_be_bytes());
                put(out, &[repair.block]);
                out.extend_from_slice(repair.members.as_bytes());
                out.extend_from_slice(repair.symbol);
            }
            Self::Nack(nack) => {
                put(out, &[nack.flow.0]);
                out.extend_from_slice(nack.ranges.as_bytes());
            }
            Self::HelpRequest(request) => {
                put(out, &[request.recovery]);
                put_packet(out, request.packet);
            }
            Self::HelpAnswer { request, payload } => {
                put(out, &[request.recovery]);
                put_packet(out, request.packet);
                out.extend_from_slice(payload);
            }
            Self::Recovered { packet, means, payload } => {
                out.push(*means as u8);
                put_packet(out, *packet);
                out.extend_from_slice(payload);
            }
            Self::Acknowledgement(seen) => put_seen(out, seen),
            Self::Feedback(Report { begun, sums }) => {
                put(out, &[sums.flow.0, *begun, sums.expected, sums.in_time, sums.late]);
                put(out, &[sums.lost_by_internet]);
                put(out, &sums.recovered);
            }
            Self::Presence { flow, is_online } => {
                put(out, &[flow.0]);
                out.push(u8::from(*is_online));
            }
            Self::Keepalive { is_answer, nonce } => {
                out.push(u8::from(*is_answer));
                put(out, &[*nonce]);
            }
            _ => {}
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Self::OnPath { .. } => kind::ON_PATH,
            Self::Open { .. } => kind::OPEN,
            Self::Opened { .. } => kind::OPENED,
            Self::Refused { .. } => kind::REFUSED,
            Self::Serve { .. } => kind::SERVE,
            Self::Join { .. } => kind::JOIN,
            Self::Bill { .. } => kind::BILL,
            Self::Datagram { .. } => kind::DATAGRAM,
            Self::Fragment { .. } => kind::FRAGMENT,
            Self::First { from: None, .. } => kind::FIRST,
            Self::First { from: Some(_), .. } => kind::FIRST_FROM,
            Self::Begin { from: None, .. } => kind::BEGIN,
            Self::Begin { from: Some(_), .. } => kind::BEGIN_FROM,
            Self::Known { .. } => kind::KNOWN,
            Self::Unknown { .. } => kind::UNKNOWN,
            Self::Over { .. } => kind::OVER,
            Self::Denied { .. } => kind::DENIED,
            Self::Numbered { .. } => kind::NUMBERED,
            Self::GroupKey { .. } => kind::GROUP_KEY,
            Self::GroupKnown { .. } => kind::GROUP_KNOWN,
            Self::Register { .. } => kind::REGISTER,
            Self::Registered { .. } => kind::REGISTERED,
            Self::LookUp { .. } => kind::LOOK_UP,
            Self::Member { .. } => kind::MEMBER,
            Self::Deposit(_) => kind::DEPOSIT,
            Self::Deposited(_) => kind::DEPOSITED,
            Self::Collect(_) => kind::COLLECT,
            Self::StoredMessage(_) => kind::STORED_MESSAGE,
            Self::Remaining(_) => kind::REMAINING,
            Self::Source(_) => kind::SOURCE,
            Self::Copy { .. } => kind::COPY,
            Self::Repair(_) => kind::REPAIR,
            Self::Nack(_) => kind::NACK,
            Self::HelpRequest(_) => kind::HELP_REQUEST,
            Self::HelpAnswer { .. } => kind::HELP_ANSWER,
            Self::Recovered { .. } => kind::RECOVERED,
            Self::Acknowledgement(_) => kind::ACKNOWLEDGEMENT,
            Self::Feedback(_) => kind::FEEDBACK,
            Self::Presence { .. } => kind::PRESENCE,
            Self::Keepalive { .. } => kind::KEEPALIVE,
        }
    }
}

fn put_beginning(
    out: &mut Vec<u8>,
    conversation: u32,
    carriage: Carriage,
    (to, from): (SocketAddr, Option<SocketAddr>),
) {
    out.extend_from_slice(&conversation.to_be_bytes());
    out.extend_from_slice(&[carriage.service as u8, carriage.flags()]);
    out.extend_from_slice(&carriage.budget_ms.to_be_bytes());
    put_address(out, to);
    from.iter().for_each(|from| put_address(out, *from));
}

fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn put_seen(out: &mut Vec<u8>, seen: &Acknowledgement) {
    put(out, &[seen.next]);
    put(out, &seen.beyond);
}

pub(crate) fn put_address(out: &mut Vec<u8>, to: SocketAddr) {
    let ip = match to.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    out.extend_from_slice(&ip.octets());
    out.extend_from_slice(&to.port().to_be_bytes());
}

pub(super) fn put_packet(out: &mut Vec<u8>, packet: PacketId) {
    put(out, &[packet.flow.0, packet.sequence]);
}

fn write_source(source: &Source<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&[source.service as u8, source.class as u8]);
    put_packet(out, source.packet);
    out.extend_from_slice(source.payload);
}
