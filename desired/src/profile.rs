//! How the connections of a leg are set up.
//!
//! Buffers are left to the kernel's autotuning unless set: a pinned buffer is capped by the
//! system's maximum and was measured to be slower than a tuned one. Where the cloud-facing window
//! is to be opened [CP IV-B], `window` says so, and the maxima of `net.ipv4.tcp_rmem` and
//! `tcp_wmem` on the host have to allow it ([`crate::buffers`]). A large first flight is the
//! exception: the receiver's window holds it to 64 KB unless its buffer was large before the
//! handshake, so profiles that jump set the buffers.
//!
//! A profile may start from a named one: `profile = "quick-start"` and what differs from it.

use std::num::NonZeroU16;

use serde::{Deserialize, Deserializer, Serialize, de};
use tradewind_units::{Bandwidth, Bytes, Segments};

use crate::Connections;

/// Most bytes that wait unsent in the kernel for one connection, unless a profile says otherwise.
/// Chosen: what a path of 10 Gbit/s sends in 2 ms, so that a relay which is scheduled late still has
/// something to send, and a slow leg hoards no more than this above its window. Measured by
/// `bench/relay`: with 512 KiB eight streams were a tenth slower.
pub const DEFAULT_NOTSENT_LOWAT: Bytes = Bytes::new(2 << 20);

/// Largest buffer, and most bytes unsent, that a profile may ask for. Source: the largest window that TCP can
/// announce (RFC 7323).
pub const LARGEST_BUFFER: Bytes = Bytes::new(1 << 30);

/// Least buffer that a profile may ask for. Source: the first value of `tcp_rmem` and `tcp_wmem`, a page, below which
/// no full packet has room.
pub const LEAST_BUFFER: Bytes = Bytes::new(4096);

/// What a stream carries before its leg is striped, unless a profile says otherwise. Chosen: what is smaller is
/// over, or nearly so, by the time that further connections stand.
pub const DEFAULT_STRIPE_AFTER: Bytes = Bytes::new(1 << 20);

/// First window of `quick-start`, in segments. `[CDD]` says "very large" and gives no number;
/// chosen: its file of 3.9 MB fits whole, so that nothing of slow start is left.
const QUICK_START_SEGMENTS: u32 = 2800;
/// First window that `paced-start` goes up to, in segments: where the round-trip time is known by
/// the time that it is set, the pacing rate times that time counts. Chosen: 7.24 MB, what half of
/// [`JUMP_BUFFER`] holds; 200 Mbit/s fill 290 ms with it.
const PACED_START_SEGMENTS: u32 = 5000;
/// Buffers of profiles that jump. Chosen: the kernel counts its own overhead in, so that half of
/// this or more is window, above any first flight of these profiles.
const JUMP_BUFFER: Bytes = Bytes::new(16_000_000);
/// Round trips after which `paced-start` lifts its cap. Chosen: by then the congestion control
/// has acknowledgements of three whole windows at the known rate to go by.
const PACED_START_RTTS: u16 = 4;

/// Options of a leg's connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Told")]
pub struct LegProfile {
    /// Name of the congestion control, e.g. `bbr`; the host's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// First congestion window, in segments; the kernel's (10) when absent. With a pacing rate that is lifted
    /// later it is the most that the first window gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_window: Option<Segments>,
    /// Bytes in flight that each connection is counted on to reach, at most [`LARGEST_BUFFER`].
    /// Nothing is set by it: who starts with less than that allowed by the host says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// Receive buffer, [`LEAST_BUFFER`] to [`LARGEST_BUFFER`], set before the handshake: the initial receive window goes
    /// by it. The kernel tunes it when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<Bytes>,
    /// Send buffer, [`LEAST_BUFFER`] to [`LARGEST_BUFFER`]; the kernel tunes it when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<Bytes>,
    /// Most that a connection sends, headers included; no cap when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing_rate: Option<Bandwidth>,
    /// Round trips after which the cap of `pacing_rate` is lifted; never when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing_rtts: Option<u16>,
    /// Most bytes that wait unsent in the kernel, at most [`LARGEST_BUFFER`].
    pub notsent_lowat: Bytes,
    /// Whether the first bytes may travel in the SYN, where both ends allow it (TCP Fast Open).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fast_open: bool,
    /// Most connections that a relay keeps ready to the next one; none when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<NonZeroU16>,
    /// Whether the leg is encrypted; by TLS when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Connections of each bulky stream, on legs to relays.
    #[serde(skip_serializing_if = "Connections::is_one")]
    pub connections: Connections,
    /// What a stream carries, both directions added up, before it gets more than one connection; 0: it gets them as
    /// soon as its path is open.
    pub stripe_after: Bytes,
}

/// Whether a leg between two neighbours of the overlay is encrypted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Encryption {
    /// By TLS 1.3, under the identities of both ends.
    #[default]
    Tls,
    /// Not at all: the kernel moves what passes (splice), and who can read the wire can read it.
    None,
    /// Of a side that accepts: as the side that dials begins.
    Either,
}

/// The profiles that have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamedProfile {
    /// The host's own ways.
    Default,
    /// Cubic that starts with a very large window [CDD, Quick-Start TCP].
    QuickStart,
    /// BBR.
    Bbr,
    /// Starts at a rate that the leg is known to carry, paced by it for the first round trips.
    PacedStart,
}

impl NamedProfile {
    /// What the name stands for.
    #[must_use]
    pub fn profile(self) -> LegProfile {
        let default = LegProfile::default();
        let jump = |segments: u32| LegProfile {
            initial_window: Some(Segments::new(segments).expect("a window of a few thousand")),
            receive_buffer: Some(JUMP_BUFFER),
            send_buffer: Some(JUMP_BUFFER),
            ..LegProfile::default()
        };
        match self {
            Self::Default => default,
            Self::Bbr => LegProfile { congestion_control: Some("bbr".into()), ..default },
            Self::QuickStart => LegProfile {
                congestion_control: Some("cubic".into()),
                ..jump(QUICK_START_SEGMENTS)
            },
            Self::PacedStart => {
                LegProfile { pacing_rtts: Some(PACED_START_RTTS), ..jump(PACED_START_SEGMENTS) }
            }
        }
    }
}

/// A profile as it is written down: what is absent comes from the named one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    profile: Option<NamedProfile>,
    congestion_control: Option<String>,
    initial_window: Option<Segments>,
    #[serde(default, deserialize_with = "buffer")]
    window: Option<Bytes>,
    #[serde(default, deserialize_with = "socket_buffer")]
    receive_buffer: Option<Bytes>,
    #[serde(default, deserialize_with = "socket_buffer")]
    send_buffer: Option<Bytes>,
    pacing_rate: Option<Bandwidth>,
    pacing_rtts: Option<u16>,
    #[serde(default, deserialize_with = "buffer")]
    notsent_lowat: Option<Bytes>,
    fast_open: Option<bool>,
    warm: Option<NonZeroU16>,
    encryption: Option<Encryption>,
    connections: Option<Connections>,
    stripe_after: Option<Bytes>,
}

impl TryFrom<Told> for LegProfile {
    type Error = &'static str;

    fn try_from(told: Told) -> Result<Self, Self::Error> {
        let base = told.profile.unwrap_or(NamedProfile::Default).profile();
        if told.profile == Some(NamedProfile::PacedStart) && told.pacing_rate.is_none() {
            return Err(
                "`paced-start` needs `pacing_rate`, the rate that the leg is known to carry, e.g. \"200 Mbit/s\"",
            );
        }
        let profile = Self {
            congestion_control: told.congestion_control.or(base.congestion_control),
            initial_window: told.initial_window.or(base.initial_window),
            window: told.window.or(base.window),
            receive_buffer: told.receive_buffer.or(base.receive_buffer),
            send_buffer: told.send_buffer.or(base.send_buffer),
            pacing_rate: told.pacing_rate.or(base.pacing_rate),
            pacing_rtts: told.pacing_rtts.or(base.pacing_rtts),
            notsent_lowat: told.notsent_lowat.unwrap_or(base.notsent_lowat),
            fast_open: told.fast_open.unwrap_or(base.fast_open),
            warm: told.warm.or(base.warm),
            encryption: told.encryption.or(base.encryption),
            connections: told.connections.unwrap_or(base.connections),
            stripe_after: told.stripe_after.unwrap_or(base.stripe_after),
        };
        if profile.pacing_rtts.is_some() && profile.pacing_rate.is_none() {
            return Err("`pacing_rtts` needs `pacing_rate`, the cap that it lifts");
        }
        if profile.pacing_rtts == Some(0) {
            return Err("`pacing_rtts`: expected at least 1; leave `pacing_rate` out for no cap");
        }
        Ok(profile)
    }
}

impl Default for LegProfile {
    fn default() -> Self {
        Self {
            congestion_control: None,
            initial_window: None,
            window: None,
            receive_buffer: None,
            send_buffer: None,
            pacing_rate: None,
            pacing_rtts: None,
            notsent_lowat: DEFAULT_NOTSENT_LOWAT,
            fast_open: false,
            warm: None,
            encryption: None,
            connections: Connections::One,
            stripe_after: DEFAULT_STRIPE_AFTER,
        }
    }
}

fn socket_buffer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    let size = buffer(deserializer)?;
    if let Some(size) = size.filter(|size| *size < LEAST_BUFFER) {
        let problem = format!("a size of at least 4 KiB, not `{size}`");
        return Err(de::Error::custom(problem));
    }
    Ok(size)
}

fn buffer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    let size = Bytes::deserialize(deserializer)?;
    if size > LARGEST_BUFFER {
        let problem = format!("a size of at most 1 GiB, not `{size}`");
        return Err(de::Error::custom(problem));
    }
    Ok(Some(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<LegProfile, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn no_kernel_is_asked_for_an_absurd_buffer() {
        for key in ["receive_buffer", "send_buffer", "notsent_lowat", "window"] {
            let most: LegProfile = toml::from_str(&format!("{key} = '1 GiB'")).unwrap();
            assert_ne!(most, LegProfile::default());
            let refused = toml::from_str::<LegProfile>(&format!("{key} = '2 GB'"));
            let message = refused.unwrap_err().message().to_owned();
            assert_eq!(message, "a size of at most 1 GiB, not `2 GB`", "{key}");
        }
        for key in ["receive_buffer", "send_buffer"] {
            let message = read(&format!("{key} = '0 B'")).unwrap_err();
            assert_eq!(message, "a size of at least 4 KiB, not `0 B`", "{key}");
        }
    }

    #[test]
    fn what_a_profile_does_not_say_is_left_to_the_system() {
        let profile = read("congestion_control = 'bbr'").unwrap();
        assert_eq!(profile, NamedProfile::Bbr.profile());
        assert_eq!(profile.receive_buffer, None);
        assert_eq!(profile.notsent_lowat, DEFAULT_NOTSENT_LOWAT);
        assert!(read("windows = '1 MB'").is_err());
        assert_eq!(read("profile = 'default'").unwrap(), LegProfile::default());
    }

    #[test]
    fn a_named_profile_is_where_one_starts_from() {
        let quick = read("profile = 'quick-start'\ncongestion_control = 'bbr'").unwrap();
        assert_eq!(quick.congestion_control.as_deref(), Some("bbr"));
        let file = Bytes::new(3_900_000);
        let first_flight = quick.initial_window.unwrap().payload(Bytes::new(1448));
        assert!(first_flight >= file, "[CDD]'s file leaves in one flight");
        assert!(quick.receive_buffer.unwrap().as_u64() >= 2 * first_flight.as_u64());

        let paced = read("profile = 'paced-start'\npacing_rate = '200 Mbit/s'").unwrap();
        assert_eq!(paced.pacing_rate, Some("200 Mbit/s".parse().unwrap()));
        assert_eq!(paced.pacing_rtts, Some(4));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (text, expected) in [
            ("profile = 'paced-start'", "`paced-start` needs `pacing_rate`"),
            ("pacing_rtts = 3", "`pacing_rtts` needs `pacing_rate`"),
            ("pacing_rate = '1 Mbit/s'\npacing_rtts = 0", "`pacing_rtts`: expected at least 1"),
            ("connections = 0", "0 connections: expected 1 to 64"),
            ("connections = 65", "65 connections: expected 1 to 64"),
            (
                "connections = 'many'",
                "invalid value: string \"many\", expected a number from 1 to 64",
            ),
            ("profile = 'swift'", "unknown variant `swift`, expected one of `default`"),
            ("initial_window = 0", "segments: a window of 1 to"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_profile_survives_a_round_trip() {
        let mut paced = NamedProfile::PacedStart.profile();
        paced.pacing_rate = Some("50 Mbit/s".parse().unwrap());
        let open = LegProfile { fast_open: true, ..LegProfile::default() };
        let many = read("connections = 8\nstripe_after = '0 B'").unwrap();
        assert_eq!(many.connections, Connections::fixed(8).unwrap());
        let adaptive = read("connections = 'adaptive'").unwrap();
        for profile in [paced, open, many, adaptive, NamedProfile::QuickStart.profile()] {
            let text = toml::to_string(&profile).unwrap();
            assert_eq!(toml::from_str::<LegProfile>(&text).unwrap(), profile, "{text}");
        }
    }
}
