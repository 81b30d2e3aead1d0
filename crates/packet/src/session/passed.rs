//! Passed datagrams: packets on an overlay path, of which a leg seals the header and not the body.
//!
//! The body is a datagram that the path's endpoints have sealed for each other, so sealing it once
//! more would hide nothing of its content and take most of a relay's time. A relay acts on the
//! header alone: session, label, counter and length. The header is authenticated by a tag of its
//! own, one block of AES-256 as a pseudo-random function, and each counter is accepted once, so
//! that nobody can make a relay forward more than the neighbour sent, or elsewhere. An attacker
//! that replaces a body on its way wastes the datagram, as if it had been lost: the endpoint
//! refuses it. Datagrams come in trains of one length, and one header differs from the next in
//! counter and tag alone: so headers are checked, and rewritten, in place and by the train.
//!
//! ```text
//! passed   bytes  field
//!              1  kind 0x16
//!              4  receiver's session id
//!              8  counter, among those of sealed datagrams
//!              4  label
//!              8  tag: the first half of AES-256 of: counter (8), label (4), length of this
//!                 datagram (4)
//!              x  a datagram of the session between the endpoints, 1 at least
//! ```
//!
//! A relay need not seal again what its ends have sealed: the same holds in QUIC-aware proxying,
//! whose forwarded mode rewrites connection ids and authenticates nothing
//! (draft-ietf-masque-quic-proxy).

use aes::cipher::{Array, BlockCipherEncrypt as _, KeyInit as _};
use aes::{Aes256Enc, Block};
use zeroize::Zeroize as _;

use super::replay::ReplayWindow;
use super::wire::{HEADER_BYTES, PASSED, PREFIX_BYTES, prefix};

/// Bytes before the body of a passed datagram.
pub const PASSED_BYTES: usize = 25;
/// The most datagrams of a train whose tags are computed at once. Source: as many as Linux joins,
/// and cuts, at most.
const RUN: usize = 64;

const KEY_CONTEXT: &str = "tradewind 2026-11 packet session: passed headers v1";
const LABEL_END: usize = HEADER_BYTES + 4;

/// The key for the tags of one direction of a session.
pub(super) struct HeaderKey(Aes256Enc);

/// Space for the tags of a run, to be reused.
pub(super) struct Tags([Block; RUN]);

impl Default for Tags {
    fn default() -> Self {
        Self([Array([0; 16]); RUN])
    }
}

impl std::fmt::Debug for Tags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tags")
    }
}

/// The outcome of checking a passed datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Admitted,
    Forged,
    Replayed,
}

/// The fields that all headers of a run share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) receiver: u32,
    pub(super) label: u32,
}

impl HeaderKey {
    /// Derives the key from the handshake's secret of this direction.
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        let mut derived = blake3::derive_key(KEY_CONTEXT, secret);
        let key = Self(Aes256Enc::new(&Array(derived)));
        derived.zeroize();
        key
    }

    /// Returns the tags of datagrams with these counters and lengths, at most a run.
    fn tags<'a>(
        &self,
        label: u32,
        headers: impl Iterator<Item = (u64, usize)>,
        Tags(blocks): &'a mut Tags,
    ) -> &'a [Block] {
        let mut count = 0;
        for (block, (counter, length)) in blocks.iter_mut().zip(headers) {
            let header = u128::from(counter) << 64 | u128::from(label) << 32 | length as u128;
            *block = Array(header.to_be_bytes());
            count += 1;
        }
        self.0.encrypt_blocks(&mut blocks[..count]);
        &blocks[..count]
    }

    /// Checks datagrams that [`alike`] has found; returns the fate of the first, and how many from
    /// there on have the same. When it is called again for the rest, no datagram's state is looked
    /// up more than twice, however many of a train are forged; tags are computed for all of the
    /// rest each time.
    pub(super) fn check(
        &self,
        shared: Shared,
        (train, segment): (&[u8], usize),
        window: &mut ReplayWindow,
        tags: &mut Tags,
    ) -> (Fate, usize) {
        let datagrams = train.chunks(segment);
        let headers = datagrams.clone().map(|datagram| (counter(datagram), datagram.len()));
        let tags = self.tags(shared.label, headers, tags);
        let mut checked = datagrams
            .zip(tags)
            .map(|(datagram, tag)| (tag_of(datagram) == first_half(tag), counter(datagram)));
        let Some((is_true, counter)) = checked.next() else { return (Fate::Forged, 0) };
        let fate = match (is_true, is_true && window.admit(counter)) {
            (false, _) => Fate::Forged,
            (true, false) => Fate::Replayed,
            (true, true) => Fate::Admitted,
        };
        let same = checked.take_while(|(is_true, counter)| match fate {
            Fate::Forged => !is_true,
            Fate::Replayed => *is_true && !window.is_new(*counter),
            Fate::Admitted => *is_true && window.admit(*counter),
        });
        (fate, 1 + same.count())
    }

    /// Writes headers with counters from `first` on to all datagrams of a train.
    pub(super) fn stamp(
        &self,
        shared: Shared,
        first: u64,
        (train, segment): (&mut [u8], usize),
        tags: &mut Tags,
    ) {
        let mut first = first;
        for run in train.chunks_mut(segment.saturating_mul(RUN)) {
            let lengths = run.chunks(segment).map(<[u8]>::len);
            let tags = self.tags(shared.label, (first..).zip(lengths), tags);
            for (datagram, tag) in run.chunks_mut(segment).zip(tags) {
                datagram[..PREFIX_BYTES].copy_from_slice(&prefix(PASSED, shared.receiver));
                datagram[PREFIX_BYTES..HEADER_BYTES].copy_from_slice(&first.to_be_bytes());
                datagram[HEADER_BYTES..LABEL_END].copy_from_slice(&shared.label.to_be_bytes());
                datagram[LABEL_END..PASSED_BYTES].copy_from_slice(&first_half(tag));
                first += 1;
            }
        }
    }
}

impl std::fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeaderKey")
    }
}

/// Returns the fields of a train's first datagram, and how many bytes of datagrams from there on
/// share them; `None` when it is no passed datagram. Nothing is authenticated yet.
pub(super) fn alike(train: &[u8], segment: usize) -> Option<(Shared, usize)> {
    let first = train.chunks(segment).next().filter(|first| first.len() > PASSED_BYTES)?;
    let word = |at| first[at..].first_chunk().map(|word| u32::from_be_bytes(*word));
    let shared = Shared { receiver: word(1)?, label: word(HEADER_BYTES)? };
    let is_alike = |datagram: &&[u8]| {
        datagram.len() > PASSED_BYTES
            && datagram[..PREFIX_BYTES] == first[..PREFIX_BYTES]
            && datagram[HEADER_BYTES..LABEL_END] == first[HEADER_BYTES..LABEL_END]
    };
    let bytes = train.chunks(segment).take(RUN).take_while(is_alike).map(<[u8]>::len).sum();
    (first[0] == PASSED).then_some((shared, bytes))
}

/// Returns the counter of a datagram that is long enough.
fn counter(datagram: &[u8]) -> u64 {
    datagram[PREFIX_BYTES..].first_chunk().map_or(0, |counter| u64::from_be_bytes(*counter))
}

fn tag_of(datagram: &[u8]) -> [u8; 8] {
    datagram[LABEL_END..].first_chunk().copied().unwrap_or_default()
}

fn first_half(tag: &Block) -> [u8; 8] {
    tag.first_chunk().copied().unwrap_or_default()
}

/// Returns whether all datagrams of a train have space for header and body.
pub(super) fn has_room(train: &[u8], segment: usize) -> bool {
    let last = train.len() - (train.len() / segment.max(1)) * segment;
    !train.is_empty() && segment > PASSED_BYTES && (last == 0 || last > PASSED_BYTES)
}

#[cfg(test)]
mod tests {
    use ring::aead::quic::{AES_256, HeaderProtectionKey};

    use super::*;

    const SHARED: Shared = Shared { receiver: 0x0102_0304, label: 0x0506_0708 };

    /// The table above, and AES by another library: QUIC's header protection uses the first five
    /// bytes of the same function.
    #[test]
    fn passed_datagram_format() {
        let mut train = b"xxxxxxxxxxxxxxxxxxxxxxxxxbodyxxxxxxxxxxxxxxxxxxxxxxxxxend".to_vec();
        let before = train.clone();
        HeaderKey::new(&[7; 32]).stamp(SHARED, 0x0A0B, (&mut train, 29), &mut Tags::default());
        let derived = blake3::derive_key(KEY_CONTEXT, &[7; 32]);
        let other = HeaderProtectionKey::new(&AES_256, &derived).unwrap();
        for (number, (datagram, before)) in train.chunks(29).zip(before.chunks(29)).enumerate() {
            let counter = 0x0B + number as u8;
            let header = [0x16, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0x0A, counter, 5, 6, 7, 8];
            assert_eq!(datagram[..17], header);
            let input = [&datagram[5..17], &[0, 0, 0, datagram.len() as u8]].concat();
            assert_eq!(datagram[17..22], other.new_mask(&input).unwrap());
            assert_eq!(datagram[25..], before[25..]);
        }
    }
}
