//! Round trips through writer and parser, and refusals.

use std::net::IpAddr;

use super::*;
use crate::fragment::Piece;
use crate::group::KEY_BYTES;
use crate::sender::Paths;
use proptest::prelude::*;
use tradewind_fec::Members;

fn written(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.write(&mut bytes);
    bytes
}

fn id() -> impl Strategy<Value = PacketId> {
    (any::<u64>(), 0..1_u64 << 63)
        .prop_map(|(flow, sequence)| PacketId { flow: FlowNumber(flow), sequence })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..100)
}

fn assert_round_trip(message: &Message<'_>) {
    let bytes = written(message);
    assert_eq!(Message::parse(&bytes).as_ref(), Ok(message));
    for cut in (0..bytes.len()).step_by(1 + bytes.len() / 24) {
        if let Ok(shorter) = Message::parse(&bytes[..cut]) {
            assert_eq!(written(&shorter), &bytes[..cut], "a cut message is one, or is refused");
        }
    }
}

proptest! {
    #[test]
    fn packets_survive_a_round_trip(
        packet in id(), payload in payload(), service in 0..4_usize, is_high: bool,
        number in 0..1_u64 << 63, recovery: u64, cache: bool,
    ) {
        let service = Service::ALL[service];
        let class = if is_high { Class::High } else { Class::Normal };
        let payload = &payload[..];
        let source = Source { packet, service, class, payload };
        let request = HelpRequest { recovery, packet };
        let means = if cache { RecoverySource::Cache } else { RecoverySource::CrossStream };
        assert_round_trip(&Message::Source(source));
        assert_round_trip(&Message::Copy { number, source });
        assert_round_trip(&Message::HelpRequest(request));
        assert_round_trip(&Message::HelpAnswer { request, payload });
        assert_round_trip(&Message::Recovered { packet, means, payload });
    }

    #[test]
    fn control_survives_a_round_trip(
        next in 0..1_u64 << 63, beyond: [u64; ACKNOWLEDGED_WORDS], flow: u64, flag: bool,
            expected: u32,
    ) {
        let flow = FlowNumber(flow);
        let expected = u64::from(expected);
        let (in_time, late, third) = (expected / 2, expected / 3, expected / 3);
        let recovered = [third, 0, third];
        let lost_by_internet = expected;
        let sums = Feedback { flow, expected, in_time, late, lost_by_internet, recovered };
        assert_round_trip(&Message::Acknowledgement(Acknowledgement { next, beyond }));
        assert_round_trip(&Message::Feedback(Report { begun: next, sums }));
        assert_round_trip(&Message::Presence { flow, is_online: flag });
        assert_round_trip(&Message::Keepalive { is_answer: flag, nonce: next });
    }

    #[test]
    fn membership_messages_survive_a_round_trip(
        seed: u8, ip: u128, port: u16,
            round_trips in prop::collection::vec(any::<u32>(), 0..=MAX_NEAR),
    ) {
        let identity = |number: u8| PublicIdentity::from_bytes([number; 32]);
        let address = SocketAddr::new(IpAddr::V6(ip.into()).to_canonical(), port);
        let relays: Vec<NearRelay> = round_trips.iter().zip(seed.wrapping_add(1)..=u8::MAX)
            .map(|(micros, number)| {
                let round_trip = tradewind_units::Duration::from_micros((*micros).into());
                NearRelay { identity: identity(number), address, round_trip }
            })
            .collect();
        let mut entries = Vec::new();
        NearList::write(relays.iter().copied(), &mut entries);
        let near = NearList::of(&entries).unwrap();
        prop_assert_eq!(near.relays().collect::<Vec<_>>(), relays);
        assert_round_trip(&Message::Register { near });
        assert_round_trip(&Message::Registered { seconds: port });
        assert_round_trip(&Message::LookUp { identity: identity(seed) });
        assert_round_trip(&Message::Member { identity: identity(seed), address, near });
    }

    #[test]
    fn stored_messages_survive_a_round_trip(
        stream: u64, begins: bool, number in 0..1_u64 << 63, span in 0..1000_u64, keep_s: u32,
            credit: u16,
        beyond: [u64; ACKNOWLEDGED_WORDS], stored_message in payload(),
    ) {
        let (to, stored_message) =
            (PublicIdentity::from_bytes([credit as u8; 32]), &stored_message[..]);
        let seen = Acknowledgement { next: number, beyond };
        let (epoch, ask, since) = (stream, stream ^ number, number.saturating_sub(span));
        assert_round_trip(&Message::Deposit(Deposit { stream, begins, number, keep_s, to,
            stored_message }));
        assert_round_trip(&Message::Deposited(Deposited { epoch, stream, is_known: begins, seen }));
        assert_round_trip(&Message::Collect(Collect { epoch, ask, credit, seen }));
        assert_round_trip(&Message::StoredMessage(StoredMessage { epoch, since, position: number,
            stored_message }));
        assert_round_trip(&Message::Remaining(Remaining { epoch, ask, left: keep_s }));
    }

    #[test]
    fn repair_packets_survive_a_round_trip(
        columns in 1..=u32::MAX, first: u32, in_stream: bool, row in 0..8_u8,
            symbol in prop::collection::vec(any::<u8>(), 3..80),
    ) {
        let columns = Members::from_bits(columns);
        let packets = (0..columns.len() as u64).map(|n| PacketId {
            flow: FlowNumber(if in_stream { 7 } else { n }),
            sequence: u64::from(first) + n,
        });
        let mut entries = Vec::new();
        MemberList::write(packets, &mut entries);
        let scope = if in_stream { Scope::InStream } else { Scope::CrossStream };
        let members = MemberList::of(columns, &entries).unwrap();
        let repair = Repair { scope, row, rows: 8, block: 3, members, symbol: &symbol };
        assert_round_trip(&Message::Repair(repair));
    }

    #[test]
    fn requests_survive_a_round_trip(steps in prop::collection::vec(1..5_u64, 1..150), first: u32) {
        let mut sequences = vec![u64::from(first)];
        for step in steps {
            sequences.push(sequences.last().unwrap() + step);
        }
        let mut rest = &sequences[..];
        let mut asked = Vec::new();
        while !rest.is_empty() {
            let mut bytes = Vec::new();
            let count = write_ranges(rest, &mut bytes);
            let nack = Nack { flow: FlowNumber(1), ranges: Ranges::of(&bytes) };
            assert_round_trip(&Message::Nack(nack));
            asked.extend(nack.ranges.sequences());
            rest = &rest[count..];
        }
        prop_assert_eq!(asked, sequences);
    }

    #[test]
    fn paths_and_conversations_survive_a_round_trip(
        label: u32, next: u32, flow: u64, service in 0..4_usize, both: bool, budget_ms: u16,
            ip: u128, port: u16,
        rest in prop::collection::vec(any::<u8>(), 0..60), packet in id(),
    ) {
        let (service, flow) = (Service::ALL[service], FlowNumber(flow));
        let paths = if both { Paths::Both } else { Paths::Overlay };
        let to = SocketAddr::new(IpAddr::V6(ip.into()).to_canonical(), port);
        let carriage = Carriage { service, paths, budget_ms, in_order: label % 2 == 0,
            fragment: next % 2 == 0 };
        let first = Message::First { conversation: next, carriage, to, from: None, payload: &rest };
        let from = Some(SocketAddr::new(to.ip(), port ^ 1));
        assert_round_trip(&Message::First { conversation: next, carriage, to, from,
            payload: &rest });
        assert_round_trip(&Message::Begin { conversation: next, carriage, to, from: None });
        assert_round_trip(&Message::Begin { conversation: next, carriage, to, from });
        assert_round_trip(&Message::OnPath { label, datagram: &rest });
        assert_round_trip(&Message::Open { label, header: &rest });
        assert_round_trip(&Message::Opened { label, next });
        assert_round_trip(&Message::Serve { label, flow, service });
        assert_round_trip(&Message::Join { label, flow, service });
        let (epoch, key) = (label as u8, [port as u8; KEY_BYTES]);
        assert_round_trip(&Message::GroupKey { flow, epoch, key: Secret(&key) });
        assert_round_trip(&Message::GroupKnown { flow, epoch, is_served: both });
        let (bytes, nano_usd) = (flow.0 / 2, flow.0 / 3);
        assert_round_trip(&Message::Bill { label, flow, is_egress: both, bytes, nano_usd });
        assert_round_trip(&Message::Datagram { conversation: next, payload: &rest });
        assert_round_trip(&first);
        if !rest.is_empty() {
            let (index, count) = (port as u8 % 64, 64.min(2 + port as u8 % 63));
            let piece = Piece { datagram: label, index: index.min(count - 1), count, bytes: &rest };
            assert_round_trip(&Message::Fragment { conversation: next, piece });
        }
        assert_round_trip(&Message::Known { conversation: next });
        assert_round_trip(&Message::Unknown { conversation: next });
        assert_round_trip(&Message::Over { conversation: next });
        let reason = Refusal::ALL[usize::from(port) % Refusal::ALL.len()];
        assert_round_trip(&Message::Denied { conversation: next, reason });
        let by = PublicIdentity::from_bytes([port as u8; 32]);
        assert_round_trip(&Message::Refused { label, by, reason });
        let (mut inner, mut outer) = (written(&first), Vec::new());
        let numbered = Message::Numbered { packet, message: &inner };
        assert_round_trip(&numbered);
        write_numbered(packet, &first, &mut outer);
        prop_assert_eq!(&outer, &written(&numbered));
        let mut on_path = vec![0; PATH_HEADER_BYTES + rest.len()];
        write_on_path(label, &rest, &mut on_path);
        prop_assert_eq!(&on_path, &written(&Message::OnPath { label, datagram: &rest }));
        let cut = path_packet(&mut on_path).map(|(label, datagram)| (label, datagram.to_vec()));
        prop_assert_eq!(cut, Some((label, rest)));
        prop_assert_eq!(path_packet(&mut inner), None);
    }

    #[test]
    fn parsed_bytes_are_canonical(mut bytes in prop::collection::vec(any::<u8>(),
        0..120), kind in 0x20..0x70_u8) {
        if let [first, ..] = &mut bytes[..] {
            *first = kind;
        }
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(written(&message), bytes);
        }
    }
}

#[test]
fn parse_errors_name_the_field() {
    let parse = |bytes: &[u8]| Message::parse(bytes).unwrap_err().to_string();
    assert_eq!(parse(&[]), "a message of 0 bytes: `kind` ends beyond it");
    assert_eq!(parse(&[0x4c]), "message 0x4c: no such kind");
    assert_eq!(parse(&[0x33, 0, 0, 0]), "a message of 4 bytes: `conversation` ends beyond it");
    let mut long = vec![0x41, 0, 0];
    long.resize(SOURCE_HEADER_BYTES + MAX_PAYLOAD_BYTES + 1, 0);
    assert_eq!(parse(&long), "`payload` is 9001: expected 1 to 9000 bytes");
}

/// A sequence in one message is requested in another: none may hold one that the other cannot.
#[test]
fn sequences_above_2_63_are_refused() {
    const BEYOND: u64 = 1 << 63;
    let refusal = |bytes: &[u8]| Message::parse(bytes).map(|_| ()).unwrap_err().to_string();
    let nack = |first: u64, length: u8| {
        let mut bytes = Vec::new();
        let (ranges, flow) = ([&first.to_be_bytes()[..], &[length]].concat(), FlowNumber(1));
        Message::Nack(Nack { flow, ranges: Ranges::unchecked(&ranges) }).write(&mut bytes);
        bytes
    };
    assert!(Message::parse(&nack(BEYOND - 2, 2)).is_ok());
    assert!(refusal(&nack(BEYOND - 1, 2)).ends_with("expected sequences below 2^63"));
    assert!(refusal(&nack(u64::MAX, 64)).ends_with("expected sequences below 2^63"));

    let mut entries = Vec::new();
    MemberList::write(
        [PacketId { flow: FlowNumber(1), sequence: BEYOND }].into_iter(),
        &mut entries,
    );
    let members = MemberList::of(Members::from_bits(1), &entries).unwrap();
    let scope = Scope::CrossStream;
    let repair = Repair { scope, row: 0, rows: 1, block: 0, members, symbol: &[0; 8] };
    let mut bytes = Vec::new();
    Message::Repair(repair).write(&mut bytes);
    assert_eq!(refusal(&bytes), "`sequence` is 9223372036854775808: expected below 2^63");
}

#[test]
fn acknowledgement_covers_each_copy() {
    let seen = Acknowledgement { next: 10, beyond: [0b10, 0, 0, 1 << 63] };
    let numbers: Vec<u64> = (0..300).filter(|number| seen.has(*number)).collect();
    assert_eq!(numbers, [(0..10).collect::<Vec<u64>>(), vec![12, 266]].concat());
    assert_eq!(seen.end(), 267);
    assert_eq!(Acknowledgement { next: 10, beyond: [0; 4] }.end(), 10);
}
