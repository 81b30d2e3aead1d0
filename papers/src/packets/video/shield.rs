//! Protection against losses by an application without relays: each packet twice, or repair packets
//! after every few, over the same path [JQ 5.2].
//!
//! With repair packets, a datagram consists of one byte (0: a packet, 1: a repair packet), the
//! block's number in four bytes, the index in the block in one, and the content.

use std::collections::VecDeque;

use serde::Deserialize;
use tradewind_fec::{Decoder, Encoder, FecError, Members};

/// The length of the header.
const HEADER_BYTES: usize = 6;
/// The number of blocks that a receiver keeps; later datagrams are useless.
const OPEN_BLOCKS: usize = 64;
const SOURCE: u8 = 0;
const REPAIR: u8 = 1;

/// A number of repair packets per number of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(from = "[u8; 2]")]
pub(super) struct Rate {
    /// The repair packets of a block.
    pub(super) repairs: usize,
    /// The packets of a block.
    pub(super) packets: usize,
}

impl From<[u8; 2]> for Rate {
    fn from([repairs, packets]: [u8; 2]) -> Self {
        Self { repairs: repairs.into(), packets: packets.into() }
    }
}

/// The kind of protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shield {
    /// No protection.
    None,
    /// Each packet is sent twice.
    Twice,
    /// Repair packets.
    Repairs(Rate),
}

impl Shield {
    /// Returns the sender's side.
    ///
    /// # Errors
    /// When the code does not support the rate.
    pub(super) fn wrapper(self) -> Result<Wrapper, FecError> {
        let repairs = match self {
            Self::Repairs(rate) => Some((rate, Encoder::new(rate.repairs)?)),
            Self::None | Self::Twice => None,
        };
        let copies = if self == Self::Twice { 2 } else { 1 };
        Ok(Wrapper { copies, repairs, block: 0 })
    }

    /// Returns the receiver's side.
    pub(super) fn opener(self) -> Opener {
        let rate = match self {
            Self::Repairs(rate) => Some(rate),
            Self::None | Self::Twice => None,
        };
        Opener { rate, blocks: VecDeque::new() }
    }
}

/// Builds datagrams from packets.
pub(super) struct Wrapper {
    copies: usize,
    repairs: Option<(Rate, Encoder)>,
    block: u32,
}

impl Wrapper {
    /// Returns the datagrams to send for a packet; the last packet of a block is followed by repair
    /// packets.
    ///
    /// # Errors
    /// When the packet is too long to be coded.
    pub(super) fn wrap(&mut self, packet: &[u8]) -> Result<Vec<Vec<u8>>, FecError> {
        let Some((rate, encoder)) = &mut self.repairs else {
            return Ok(vec![packet.to_vec(); self.copies]);
        };
        let column = encoder.members().len();
        encoder.add(column, packet)?;
        let mut datagrams = vec![datagram(SOURCE, self.block, column, packet)];
        if column + 1 == rate.packets {
            let repair = |row| datagram(REPAIR, self.block, row, encoder.repair(row));
            datagrams.extend((0..rate.repairs).map(repair));
            encoder.clear();
            self.block = self.block.wrapping_add(1);
        }
        Ok(datagrams)
    }
}

fn datagram(kind: u8, block: u32, place: usize, content: &[u8]) -> Vec<u8> {
    let place = u8::try_from(place).expect("blocks are short");
    let mut datagram = vec![kind];
    datagram.extend(block.to_be_bytes());
    datagram.push(place);
    datagram.extend(content);
    datagram
}

/// Extracts packets from datagrams.
pub(super) struct Opener {
    rate: Option<Rate>,
    blocks: VecDeque<(u32, Decoder)>,
}

impl Opener {
    /// Returns the packets from a datagram: its own, and those that it allows to recover. A
    /// malformed datagram yields none.
    pub(super) fn open(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let Some(rate) = self.rate else { return vec![datagram.to_vec()] };
        let Some((header, content)) = datagram.split_first_chunk::<HEADER_BYTES>() else {
            return Vec::new();
        };
        let [kind, a, b, c, d, place] = *header;
        let Some(decoder) = self.block(rate, u32::from_be_bytes([a, b, c, d])) else {
            return Vec::new();
        };
        let is_new = match kind {
            SOURCE => decoder.add_source(place.into(), content),
            _ => decoder.add_repair(place.into(), content),
        };
        let mut packets = Vec::new();
        if kind == SOURCE && matches!(is_new, Ok(true)) {
            packets.push(content.to_vec());
        }
        if decoder.is_solvable() {
            for (column, packet) in decoder.recover().unwrap_or_default() {
                // A recovered packet may still arrive.
                let _ = decoder.add_source(column, &packet);
                packets.push(packet);
            }
        }
        packets
    }

    fn block(&mut self, rate: Rate, number: u32) -> Option<&mut Decoder> {
        if let Some(place) = self.blocks.iter().position(|(known, _)| *known == number) {
            return Some(&mut self.blocks[place].1);
        }
        let decoder = Decoder::new(Members::first(rate.packets), rate.repairs).ok()?;
        if self.blocks.len() == OPEN_BLOCKS {
            self.blocks.pop_front();
        }
        self.blocks.push_back((number, decoder));
        self.blocks.back_mut().map(|(_, decoder)| decoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { repairs: 2, packets: 5 };

    fn packets(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|number| vec![number as u8; 3 + number % 7]).collect()
    }

    /// Returns the packets that arrive when `is_lost` selects the lost datagrams.
    fn through(shield: Shield, count: usize, is_lost: impl Fn(usize) -> bool) -> Vec<Vec<u8>> {
        let (mut wrapper, mut opener) = (shield.wrapper().unwrap(), shield.opener());
        let sent: Vec<Vec<u8>> =
            packets(count).iter().flat_map(|packet| wrapper.wrap(packet).unwrap()).collect();
        let came = sent.iter().enumerate().filter(|(number, _)| !is_lost(*number));
        came.flat_map(|(_, datagram)| opener.open(datagram)).collect()
    }

    #[test]
    fn packets_arrive_once_and_in_order_without_losses() {
        for shield in [Shield::None, Shield::Repairs(RATE)] {
            assert_eq!(through(shield, 23, |_| false), packets(23));
        }
        assert_eq!(through(Shield::Twice, 23, |number| number % 2 == 0), packets(23));
        assert_eq!(through(Shield::Twice, 23, |_| false).len(), 46);
    }

    #[test]
    fn losses_up_to_the_repair_packets_are_recovered() {
        // Blocks have seven datagrams: each may lose any two.
        for one in 0..7 {
            for other in 0..7 {
                let mut came = through(Shield::Repairs(RATE), 25, |number| {
                    number % 7 == one || number % 7 == other
                });
                came.sort();
                let mut all = packets(25);
                all.sort();
                assert_eq!(came, all, "{one} and {other}");
            }
        }
    }

    #[test]
    fn excess_losses_stay_lost_and_harm_no_other_block() {
        let came = through(Shield::Repairs(RATE), 10, |number| number < 3);
        assert_eq!(came, packets(10)[3..]);
    }

    #[test]
    fn malformed_datagrams_yield_no_packets() {
        let mut opener = Shield::Repairs(RATE).opener();
        for datagram in [&[][..], &[0; 5], &[0, 0, 0, 0, 0, 9, 1, 2], &[1, 0, 0, 0, 0, 0]] {
            assert_eq!(opener.open(datagram), Vec::<Vec<u8>>::new());
        }
        let wrapper = Shield::Repairs(Rate { repairs: 9, packets: 5 }).wrapper();
        assert!(wrapper.is_err());
    }
}
