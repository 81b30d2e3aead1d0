//! Text forms of keys and grants: a prefix that names the kind, then base32 of the bytes and of a
//! checksum, so that the error about a truncated or mistyped key says what is wrong.
//!
//! Base32 as RFC 4648 section 6, lower case, without padding. The checksum is the first 4 bytes of
//! BLAKE3 in key-derivation mode over prefix and bytes.

use crate::GrantError;

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const CHECKSUM_CONTEXT: &str = "tradewind 2026-11 text form checksum v1";
const CHECKSUM_BYTES: usize = 4;

/// All prefixes, so that the error about a key of the wrong kind can name it.
const KINDS: &[(&str, &str)] = &[
    ("twidkey_", "a secret identity key"),
    ("twid_", "a public identity"),
    ("twopkey_", "a secret operator key"),
    ("twop_", "a public operator key"),
    ("twgrant_", "a grant"),
    ("twrevoked_", "a revocation list"),
];

/// Returns the command that creates texts with `prefix`.
fn maker(prefix: &str) -> &'static str {
    match prefix {
        "twgrant_" => "grant issue",
        "twrevoked_" => "grant revoke",
        _ => "keygen",
    }
}

fn checksum(prefix: &str, bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new_derive_key(CHECKSUM_CONTEXT);
    hasher.update(prefix.as_bytes()).update(bytes);
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..CHECKSUM_BYTES]);
    sum
}

/// Encodes `bytes` after `prefix`.
pub(crate) fn encode(prefix: &str, bytes: &[u8]) -> String {
    let sum = checksum(prefix, bytes);
    let digits = ((bytes.len() + CHECKSUM_BYTES) * 8).div_ceil(5);
    let mut text = String::with_capacity(prefix.len() + digits);
    text.push_str(prefix);
    let (mut held, mut bits) = (0u32, 0);
    for &byte in bytes.iter().chain(&sum) {
        held = (held << 8 | u32::from(byte)) & 0xfff;
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[(held >> bits & 31) as usize]));
        }
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[(held << (5 - bits) & 31) as usize]));
    }
    text
}

/// Decodes text from [`encode`]. The errors never hold the text, which may be a secret.
pub(crate) fn decode(what: &'static str, prefix: &str, text: &str) -> Result<Vec<u8>, GrantError> {
    let refused = |problem: String| GrantError::BadText {
        what,
        problem,
        expected: format!(
            "`{prefix}` and base32 digits as `tradewind {}` makes them",
            maker(prefix)
        ),
    };
    let text = text.trim();
    let Some(digits) = text.strip_prefix(prefix) else {
        let other = KINDS.iter().find(|(known, _)| text.starts_with(known));
        return Err(refused(match other {
            Some((_, kind)) => format!("this is {kind}"),
            None if text.is_empty() => "it is empty".to_owned(),
            None => "it does not begin with its prefix".to_owned(),
        }));
    };
    let mut bytes = Vec::with_capacity(digits.len() * 5 / 8);
    let (mut held, mut bits) = (0u32, 0);
    for (position, digit) in digits.bytes().enumerate() {
        let value = ALPHABET.iter().position(|known| *known == digit).ok_or_else(|| {
            refused(format!("character {} is no base32 digit", prefix.len() + position + 1))
        })?;
        held = (held << 5 | value as u32) & 0xfff;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits & 0xff) as u8);
        }
    }
    let spare_bits_are_zero = held & ((1 << bits) - 1) == 0;
    let sum_at = bytes.len().checked_sub(CHECKSUM_BYTES);
    let (Some(sum_at), true, true) = (sum_at, bits < 5, spare_bits_are_zero) else {
        return Err(refused("it is cut off or mistyped".to_owned()));
    };
    let sum = bytes.split_off(sum_at);
    if checksum(prefix, &bytes) != sum.as_slice() {
        return Err(refused("its checksum is wrong: it is cut off or mistyped".to_owned()));
    }
    Ok(bytes)
}

/// Decodes exactly 32 bytes.
pub(crate) fn decode_32(
    what: &'static str,
    prefix: &str,
    text: &str,
) -> Result<[u8; 32], GrantError> {
    let bytes = zeroize::Zeroizing::new(decode(what, prefix, text)?);
    <[u8; 32]>::try_from(bytes.as_slice()).map_err(|_| GrantError::BadText {
        what,
        problem: format!("it holds {} bytes", bytes.len()),
        expected: "32 bytes".to_owned(),
    })
}

/// Implements `Serialize` and `Deserialize` through `Display` and `FromStr`.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_form_round_trip(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let text = encode("twid_", &bytes);
            prop_assert_eq!(decode("identity", "twid_", &text).unwrap(), bytes);
        }

        #[test]
        fn altered_text_is_refused(
            bytes in any::<[u8; 32]>(), position in 5usize..63, digit in 0usize..32,
        ) {
            let text = encode("twid_", &bytes);
            let mut changed = text.clone().into_bytes();
            changed[position] = ALPHABET[digit];
            let changed = String::from_utf8(changed).unwrap();
            prop_assert!(changed == text || decode("identity", "twid_", &changed).is_err());
            prop_assert!(decode("identity", "twid_", &text[..position]).is_err());
        }
    }
}
