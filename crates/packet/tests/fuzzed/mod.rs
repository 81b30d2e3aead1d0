//! Properties that must hold for any bytes: shared by the fuzz targets and by the replay of their
//! corpora.

#![allow(dead_code, reason = "each fuzz target takes one of these")]

use std::collections::BTreeSet;

use tradewind_packet::session::{DropReason, Link, PASSED_BYTES, Sessions};

use crate::cast::{self, ENDPOINT, Pair, RELAY, at, link, opened, sealed, transmits};
use crate::script::Script;

/// The port of a sender without keys.
const OUTSIDER: u16 = 6666;
/// The length of passed datagrams, whose bodies are one byte.
const SEGMENT: usize = PASSED_BYTES + 1;

/// Carries the datagrams that a machine sends; returns the bytes that the outsider gets.
fn carry(machine: &mut Sessions, other: &mut Sessions, from: u16, millis: u64) -> usize {
    let mut to_outsider = 0;
    for mut transmit in transmits(machine) {
        if transmit.link == link(OUTSIDER) {
            to_outsider += transmit.bytes.len();
        } else {
            other.handle_datagram(at(millis), link(from), &mut transmit.bytes);
        }
    }
    to_outsider
}

/// Passed datagrams that the endpoint has sent, one behind the other, and the places of those that
/// the relay has admitted.
#[derive(Default)]
struct Trains {
    sent: Vec<u8>,
    admitted: BTreeSet<usize>,
}

impl Trains {
    /// Returns the places in a train of the datagrams that a relay admits.
    fn admitted(
        relay: &mut Sessions,
        (millis, from): (u64, Link),
        train: &[u8],
        segment: usize,
    ) -> Vec<usize> {
        let (mut at, mut places) = (0, Vec::new());
        while at < train.len() {
            let run = relay.handle_passed(cast::at(millis), from, &train[at..], segment);
            let bytes = run.map_or(segment.min(train.len() - at), |run| run.bytes);
            assert!(bytes > 0 && bytes <= train.len() - at);
            if run.is_some_and(|run| run.from.is_some()) {
                places.extend(at / segment..(at + bytes).div_ceil(segment));
            }
            at += bytes;
        }
        places
    }

    /// Delivers noise as a train; returns its length.
    fn noise(pair: &mut Pair, script: &mut Script<'_>, millis: u64) -> usize {
        let (length, segment) = (script.byte(), script.byte().max(1));
        let noise = script.bytes(length);
        let when = (millis, link(OUTSIDER));
        assert_eq!(Self::admitted(&mut pair.relay, when, noise, segment), [0; 0]);
        noise.len()
    }

    /// Sends a few datagrams from the endpoint.
    fn send(&mut self, pair: &mut Pair, script: &mut Script<'_>) {
        let (count, label) = (1 + script.below(40), script.byte() as u32 % 2);
        if self.sent.len() > 256 * SEGMENT || !pair.endpoint.is_open(pair.peer) {
            return;
        }
        let mut train = vec![0; count * SEGMENT];
        pair.endpoint.pass(pair.peer, label, &mut train, SEGMENT).expect("keys are there");
        self.sent.extend(train);
    }

    /// Delivers some of the sent datagrams, perhaps again, perhaps one with another header or body;
    /// returns how many bytes come from the outsider.
    fn deliver(
        &mut self,
        pair: &mut Pair,
        script: &mut Script<'_>,
        (millis, from): (u64, Link),
    ) -> usize {
        let all = self.sent.len() / SEGMENT;
        if all == 0 {
            return 0;
        }
        let (first, count) = (script.byte() % all, 1 + script.below(64));
        let mut train = self.sent[first * SEGMENT..(first + count).min(all) * SEGMENT].to_vec();
        let (which, change) = (script.below(64) % (train.len() / SEGMENT), script.byte());
        let place = change % SEGMENT;
        train[which * SEGMENT + place] ^= change as u8;
        // The leg does not authenticate bodies.
        let altered = (change != 0 && place < PASSED_BYTES).then_some(which);
        for place in Self::admitted(&mut pair.relay, (millis, from), &train, SEGMENT) {
            assert_ne!(Some(place), altered, "what was altered passed");
            assert!(self.admitted.insert(first + place), "datagram {} passed twice", first + place);
        }
        if from == link(OUTSIDER) { train.len() } else { 0 }
    }
}

/// Runs an established session among outsiders' noise, altered, repeated and late datagrams. In any
/// case only sealed datagrams are opened, and only passed ones admitted, each once, and an outsider
/// gets no more bytes than it sent. Returns the outcomes.
pub(crate) fn session(data: &[u8]) -> BTreeSet<String> {
    let mut pair = Pair::established();
    let (mut script, mut millis) = (Script(data), 100);
    let (mut sent, mut delivered) = (Vec::<Vec<u8>>::new(), BTreeSet::new());
    let mut trains = Trains::default();
    let (mut asked, mut answered) = (0, 0);
    for _ in 0..64 {
        if script.is_over() {
            break;
        }
        let operation = script.byte();
        let from = if operation & 0x80 == 0 { link(ENDPOINT) } else { link(OUTSIDER) };
        match operation % 8 {
            0 | 1 => {
                let length = 2 * script.byte();
                let noise = script.bytes(length);
                asked += noise.len();
                let target =
                    if operation.is_multiple_of(8) { &mut pair.relay } else { &mut pair.endpoint };
                assert_eq!(opened(target, at(millis), link(OUTSIDER), noise), None);
            }
            2 if pair.endpoint.is_open(pair.peer) => {
                let mut payload = vec![0; script.byte()];
                payload.extend_from_slice(&(sent.len() as u32).to_be_bytes());
                sent.push(sealed(&mut pair.endpoint, pair.peer, &payload));
            }
            3 if !sent.is_empty() => {
                let which = script.byte() % sent.len();
                asked += if from == link(OUTSIDER) { sent[which].len() } else { 0 };
                if let Some(payload) = opened(&mut pair.relay, at(millis), from, &sent[which]) {
                    assert!(payload.ends_with(&(which as u32).to_be_bytes()));
                    assert!(delivered.insert(which), "datagram {which} passed twice");
                }
            }
            4 if !sent.is_empty() => {
                let which = script.byte() % sent.len();
                let mut datagram = sent[which].clone();
                let place = script.byte() % datagram.len();
                datagram[place] ^= script.byte().max(1) as u8;
                asked += datagram.len();
                assert_eq!(opened(&mut pair.relay, at(millis), link(OUTSIDER), &datagram), None);
            }
            6 if operation & 0x40 != 0 => {
                asked += Trains::noise(&mut pair, &mut script, millis);
            }
            6 => trains.send(&mut pair, &mut script),
            7 => asked += trains.deliver(&mut pair, &mut script, (millis, from)),
            5 => {
                millis += 500 * script.byte() as u64;
                pair.endpoint.handle_timeout(at(millis));
                pair.relay.handle_timeout(at(millis));
            }
            _ => {}
        }
        answered += carry(&mut pair.relay, &mut pair.endpoint, RELAY, millis);
        answered += carry(&mut pair.endpoint, &mut pair.relay, ENDPOINT, millis);
        assert!(answered <= asked, "{answered} bytes for {asked}");
    }
    let mut seen = BTreeSet::new();
    seen.extend((!delivered.is_empty()).then(|| "Opened".to_owned()));
    seen.extend((!trains.admitted.is_empty()).then(|| "Admitted".to_owned()));
    let drops = DropReason::ALL.into_iter().zip(pair.relay.drops());
    seen.extend(drops.filter(|(_, count)| *count > 0).map(|(reason, _)| format!("{reason:?}")));
    seen
}
