//! Messages that no honest peer sends: of each kind, about existing flows and packets, or nearly
//! existing ones.

use tradewind_packet::id::{FlowNumber, PacketId};
use tradewind_packet::message::{
    Acknowledgement, Class, Feedback, HelpRequest, MemberList, Message, Nack, Ranges,
    RecoverySource, Report, Service, Source, write_ranges,
};

use super::World;
use crate::flows::payload;
use crate::script::Script;

/// Returns a packet of an existing flow, or of the next one; its sequence is near those that were
/// sent, or far.
fn packet(script: &mut Script<'_>, world: &World) -> PacketId {
    let flow = FlowNumber(script.below(world.setting.flows as usize + 1) as u64);
    let last = world.cast.sealed.iter().rfind(|packet| packet.flow == flow);
    let next = last.map_or(0, |packet| packet.sequence + 1);
    let sequence = match script.byte() as u64 {
        255 => (1 << 63) - 1,
        254 => next + 5_000,
        ahead @ 200.. => next + ahead - 200,
        back => next.saturating_sub(back),
    };
    PacketId { flow, sequence }
}

/// Returns the payload that the packet's sender has sealed, or would seal; or another one.
fn content(script: &mut Script<'_>, packet: PacketId) -> Vec<u8> {
    match script.byte() {
        0..160 => payload(packet),
        160..200 => {
            let mut altered = payload(packet);
            let place = script.below(altered.len());
            altered[place] ^= 1;
            altered
        }
        200..220 => vec![7; 9_000],
        length => vec![7; length - 219],
    }
}

/// Returns a message, or nearly one.
pub(super) fn message(script: &mut Script<'_>, world: &World) -> Vec<u8> {
    let mut bytes = Vec::new();
    let kind = script.below(14);
    let about = packet(script, world);
    let (bits, flow) = (script.byte(), about.flow);
    let is_odd = bits & 1 == 1;
    let service = Service::ALL[bits / 2 % 4];
    let request = HelpRequest { recovery: (bits / 8) as u64, packet: about };
    match kind {
        0 | 1 => {
            let (class, content) = (Class::Normal, content(script, about));
            let source = Source { packet: about, service, class, payload: &content };
            let number = script.byte() as u64;
            match kind {
                0 => Message::Source(source).write(&mut bytes),
                _ => Message::Copy { number, source }.write(&mut bytes),
            }
        }
        2 | 3 => repair(script, world, about, &mut bytes),
        4 | 5 => {
            let (mut ranges, mut sequences) = (Vec::new(), vec![about.sequence]);
            for _ in 0..bits % 64 {
                let beyond = sequences[sequences.len() - 1] + 1 + (script.byte() % 3) as u64;
                sequences.push(beyond.min((1 << 63) - 1));
            }
            sequences.dedup();
            write_ranges(&sequences, &mut ranges);
            Message::Nack(Nack { flow, ranges: Ranges::of(&ranges) }).write(&mut bytes);
        }
        6 => Message::HelpRequest(request).write(&mut bytes),
        7 => {
            let content = content(script, about);
            Message::HelpAnswer { request, payload: &content }.write(&mut bytes);
        }
        8 => {
            let means = if is_odd { RecoverySource::Cache } else { RecoverySource::CrossStream };
            let content = content(script, about);
            Message::Recovered { packet: about, means, payload: &content }.write(&mut bytes);
        }
        9 => {
            let beyond = [(); 4].map(|()| script.byte() as u64);
            let next = about.sequence;
            Message::Acknowledgement(Acknowledgement { next, beyond }).write(&mut bytes);
        }
        10 => {
            let expected = about.sequence;
            let (in_time, late) = (expected / 2, expected / 4);
            let recovered = [expected / 8; 3];
            let lost_by_internet = expected;
            let sums = Feedback { flow, expected, in_time, late, lost_by_internet, recovered };
            Message::Feedback(Report { begun: expected % 2, sums }).write(&mut bytes);
        }
        11 => Message::Presence { flow, is_online: is_odd }.write(&mut bytes),
        12 => {
            let nonce = world.cast.now.as_nanos().wrapping_add(about.sequence);
            Message::Keepalive { is_answer: is_odd, nonce }.write(&mut bytes);
        }
        _ => other_families(bits, about, &mut bytes),
    }
    bytes
}

/// Writes a repair packet, byte by byte, so that its fields may contradict each other.
fn repair(script: &mut Script<'_>, world: &World, first: PacketId, bytes: &mut Vec<u8>) {
    let (is_in_stream, count) = (script.byte() % 2, 1 + script.below(4));
    let mut members = vec![first];
    for place in 1..count as u64 {
        members.push(match is_in_stream {
            0 => PacketId { flow: FlowNumber(first.flow.0 + place), ..packet(script, world) },
            _ => PacketId { sequence: first.sequence.saturating_add(place), ..first },
        });
    }
    let (rows, row) = (1 + script.below(3) as u8, script.below(3) as u8);
    bytes.extend_from_slice(&[0x43, is_in_stream as u8, row, rows]);
    // The first columns, or every other one.
    let columns = if script.byte().is_multiple_of(2) {
        (1_u32 << count) - 1
    } else {
        0x55 >> (8 - 2 * count)
    };
    bytes.extend_from_slice(&columns.to_be_bytes());
    bytes.extend_from_slice(&(7 + script.byte() as u64).to_be_bytes());
    MemberList::write(members.into_iter(), bytes);
    let length = script.byte();
    bytes.extend_from_slice(&[0, length as u8]);
    bytes.extend((0..length + 1).map(|place| (place * 3) as u8));
}

/// Writes messages of other families.
fn other_families(bits: usize, about: PacketId, bytes: &mut Vec<u8>) {
    let (label, conversation, flow) = (bits as u32, bits as u32, about.flow);
    match bits % 6 {
        0 => Message::OnPath { label, datagram: b"any" },
        1 => Message::Serve { label, flow, service: Service::Coding },
        2 => Message::Datagram { conversation, payload: b"any" },
        3 => Message::Known { conversation },
        4 => Message::Registered { seconds: 60 },
        _ => Message::Numbered { packet: about, message: b"any" },
    }
    .write(bytes);
}
