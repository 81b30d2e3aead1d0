//! Messages to bytes.

use super::{Message, Source, VERSION};
use crate::id::PacketId;

/// The second byte of each message.
pub(super) mod kind {
    pub(crate) const SOURCE: u8 = 1;
    pub(crate) const COPY: u8 = 2;
    pub(crate) const REPAIR: u8 = 3;
    pub(crate) const NACK: u8 = 4;
    pub(crate) const HELP_REQUEST: u8 = 5;
    pub(crate) const HELP_ANSWER: u8 = 6;
    pub(crate) const RECOVERED: u8 = 7;
    pub(crate) const ACKNOWLEDGEMENT: u8 = 8;
    pub(crate) const FEEDBACK: u8 = 9;
    pub(crate) const PRESENCE: u8 = 10;
    pub(crate) const KEEPALIVE: u8 = 11;
}

impl Message<'_> {
    /// Appends the message to `out`.
    ///
    /// The caller keeps the bounds that the parser checks: payloads of 1 to [`MOST_PAYLOAD_BYTES`](super::MOST_PAYLOAD_BYTES) bytes,
    /// lists that are in order.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[VERSION, self.kind()]);
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
            Self::Acknowledgement(seen) => {
                put(out, &[seen.next]);
                put(out, &seen.beyond);
            }
            Self::Feedback(told) => {
                put(out, &[told.flow.0, told.expected, told.in_time, told.lost_by_internet]);
            }
            Self::Presence { flow, is_online } => {
                put(out, &[flow.0]);
                out.push(u8::from(*is_online));
            }
            Self::Keepalive { is_answer, nonce } => {
                out.push(u8::from(*is_answer));
                put(out, &[*nonce]);
            }
        }
    }

    fn kind(&self) -> u8 {
        match self {
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

fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn put_packet(out: &mut Vec<u8>, packet: PacketId) {
    put(out, &[packet.flow.0, packet.sequence]);
}

fn write_source(source: &Source<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&[source.service as u8, source.class as u8]);
    put_packet(out, source.packet);
    out.extend_from_slice(source.payload);
}
