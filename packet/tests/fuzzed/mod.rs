//! What must hold for any bytes: shared by the fuzz targets and by the replay of their corpora.

#![allow(dead_code, reason = "each fuzz target takes one of these")]

use std::collections::BTreeSet;

use tradewind_packet::session::Sessions;

use crate::cast::{ENDPOINT, Pair, RELAY, at, link, opened, sealed, transmits};
use crate::script::Script;

/// Where somebody without keys writes from.
const STRANGER: u16 = 6666;

/// Carries what a machine sends; returns the bytes that the stranger gets.
fn carry(machine: &mut Sessions, other: &mut Sessions, from: u16, millis: u64) -> usize {
    let mut strangers = 0;
    for mut transmit in transmits(machine) {
        if transmit.link == link(STRANGER) {
            strangers += transmit.bytes.len();
        } else {
            other.handle_datagram(at(millis), link(from), &mut transmit.bytes);
        }
    }
    strangers
}

/// An established session between strangers' noise, altered, repeated and late datagrams: whatever comes, only what was
/// sealed is opened, each once, and a stranger gets no more bytes than it sent.
pub(crate) fn session(data: &[u8]) {
    let mut pair = Pair::established();
    let (mut script, mut millis) = (Script(data), 100);
    let (mut sent, mut delivered) = (Vec::<Vec<u8>>::new(), BTreeSet::new());
    let (mut asked, mut answered) = (0, 0);
    for _ in 0..64 {
        if script.is_over() {
            return;
        }
        let operation = script.byte();
        let from = if operation & 0x80 == 0 { link(ENDPOINT) } else { link(STRANGER) };
        match operation % 6 {
            0 | 1 => {
                let length = 2 * script.byte();
                let noise = script.bytes(length);
                asked += noise.len();
                let target =
                    if operation.is_multiple_of(6) { &mut pair.relay } else { &mut pair.endpoint };
                assert_eq!(opened(target, at(millis), link(STRANGER), noise), None);
            }
            2 if pair.endpoint.is_open(pair.peer) => {
                let mut payload = vec![0; script.byte()];
                payload.extend_from_slice(&(sent.len() as u32).to_be_bytes());
                sent.push(sealed(&mut pair.endpoint, pair.peer, &payload));
            }
            3 if !sent.is_empty() => {
                let which = script.byte() % sent.len();
                asked += if from == link(STRANGER) { sent[which].len() } else { 0 };
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
                assert_eq!(opened(&mut pair.relay, at(millis), link(STRANGER), &datagram), None);
            }
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
}
