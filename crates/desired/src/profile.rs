//! The options of a leg's connections.
//!
//! Buffers are left to the kernel's autotuning unless set: a pinned buffer is capped by the
//! system's maximum and was measured to be slower than a tuned one. To open the cloud-facing window
//! [CP IV-B], set `window`; the maxima of `net.ipv4.tcp_rmem` and `tcp_wmem` on the host have to
//! allow it ([`crate::buffers`]). A large first flight is the exception: the receiver's window
//! holds it to 64 KB unless its buffer was large before the handshake, so profiles with a large
//! initial window set the buffers.
//!
//! A profile may be based on a named one: `profile = "quick-start"` and the options that differ.

use std::num::NonZeroU16;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use tradewind_units::{Bandwidth, Bytes, Segments};

use crate::Connections;

/// Default of the most bytes that wait unsent in the kernel for one connection. Chosen: 2 ms of a
/// path of 10 Gbit/s, so that a relay that is scheduled late still has bytes to send, and a slow
/// leg buffers no more than this above its window. Measured by `bench/relay`: with 512 KiB eight
/// streams were a tenth slower.
pub const DEFAULT_NOTSENT_LOWAT: Bytes = Bytes::new(2 << 20);

/// Largest buffer, and most bytes unsent, that a profile may set. Source: the largest window that
/// TCP can announce (RFC 7323).
pub const MAX_BUFFER: Bytes = Bytes::new(1 << 30);

/// Least buffer that a profile may set. Source: the first value of `tcp_rmem` and `tcp_wmem`, a
/// page, below which no full packet fits.
pub const MIN_BUFFER: Bytes = Bytes::new(4096);

/// Default of the bytes that a stream carries before its leg is striped. Chosen: a smaller stream
/// is over, or nearly so, by the time that further connections are open.
pub const DEFAULT_STRIPE_AFTER: Bytes = Bytes::new(1 << 20);

/// Initial window of `quick-start`, in segments. `[CDD]` says "very large" and gives no number;
/// chosen: its file of 3.9 MB fits whole, so that nothing of slow start is left.
const QUICK_START_SEGMENTS: u32 = 2800;
/// Initial window that `paced-start` goes up to, in segments: if the round-trip time is known when
/// the window is set, it is the pacing rate times that time. Chosen: 7.24 MB, which half of
/// [`JUMP_BUFFER`] holds; 200 Mbit/s fill 290 ms with it.
const PACED_START_SEGMENTS: u32 = 5000;
/// Buffers of profiles with a large initial window. Chosen: the kernel includes its own overhead,
/// so at least half of this is window, which is above any first flight of these profiles.
const JUMP_BUFFER: Bytes = Bytes::new(16_000_000);
/// Round trips after which `paced-start` lifts its cap. Chosen: by then the congestion control has
/// acknowledgements of three whole windows at the known rate.
const PACED_START_RTTS: u16 = 4;

/// Options of a leg's connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "ProfileTable")]
pub struct LegProfile {
    /// Name of the congestion control, e.g. `bbr`; the host's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// First congestion window, in segments; the kernel's (10) when absent. With a pacing rate that
    /// is lifted later it is the upper limit of the initial window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_window: Option<Segments>,
    /// Bytes in flight that each connection is expected to reach, at most [`MAX_BUFFER`]. It
    /// sets no option: a process that starts on a host that allows less reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// Receive buffer, [`MIN_BUFFER`] to [`MAX_BUFFER`], set before the handshake, as it
    /// determines the initial receive window. The kernel tunes it when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<Bytes>,
    /// Send buffer, [`MIN_BUFFER`] to [`MAX_BUFFER`]; the kernel tunes it when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<Bytes>,
    /// Pacing rate of a connection, headers included; no cap when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing_rate: Option<Bandwidth>,
    /// Round trips after which the cap of `pacing_rate` is lifted; never when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing_rtts: Option<u16>,
    /// Most bytes that wait unsent in the kernel, at most [`MAX_BUFFER`].
    pub notsent_lowat: Bytes,
    /// TCP Fast Open: the first bytes may travel in the SYN, where both ends allow it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fast_open: bool,
    /// Most warm connections that a relay keeps to the next one; none when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<NonZeroU16>,
    /// Encryption of the leg; TLS when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Connections of each bulky stream, on legs to relays.
    #[serde(skip_serializing_if = "Connections::is_one")]
    pub connections: Connections,
    /// Bytes that a stream carries, in both directions together, before it gets more than one
    /// connection; 0: it gets them as soon as its path is open.
    pub stripe_after: Bytes,
}

/// The encryption of a leg between two neighbours of the overlay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Encryption {
    /// TLS 1.3, under the identities of both ends.
    #[default]
    Tls,
    /// None: the kernel forwards the bytes (splice), and they can be read on the wire.
    None,
    /// Only for an accepting side: whichever the dialling side chooses.
    Either,
}

/// The named profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NamedProfile {
    /// The host's defaults.
    Default,
    /// Cubic with a very large initial window `[CDD, Quick-Start TCP]`.
    QuickStart,
    /// BBR.
    Bbr,
    /// An initial window paced at a known rate of the leg for the first round trips.
    PacedStart,
}

impl NamedProfile {
    /// Returns the profile of this name.
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

/// Options of connections; those that are absent come from the named `profile`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ProfileTable {
    /// The named profile that gives the options which are absent here; `default` when absent.
    profile: Option<NamedProfile>,
    /// Name of the congestion control, such as `bbr`; the host's default when absent.
    congestion_control: Option<String>,
    /// First congestion window; the kernel's (10) when absent. With `pacing_rtts` the upper limit
    /// of the initial window.
    initial_window: Option<Segments>,
    /// Bytes in flight that each connection is expected to reach, at most 1 GiB. Sets nothing: the
    /// log says when the host allows less.
    #[serde(default, deserialize_with = "buffer")]
    window: Option<Bytes>,
    /// Receive buffer, from 4 KiB to 1 GiB, set before the handshake, as it determines the initial
    /// receive window; the kernel tunes it when absent.
    #[serde(default, deserialize_with = "socket_buffer")]
    receive_buffer: Option<Bytes>,
    /// Send buffer, from 4 KiB to 1 GiB; the kernel tunes it when absent.
    #[serde(default, deserialize_with = "socket_buffer")]
    send_buffer: Option<Bytes>,
    /// Most that a connection sends, headers included; no cap when absent. `paced-start` needs it.
    pacing_rate: Option<Bandwidth>,
    /// Round trips, at least 1, after which that cap rises, and is lifted in the end; never when
    /// absent.
    #[schemars(range(min = 1))]
    pacing_rtts: Option<u16>,
    /// Most bytes that wait unsent in the kernel, at most 1 GiB; 2 MiB when absent.
    #[serde(default, deserialize_with = "buffer")]
    notsent_lowat: Option<Bytes>,
    /// True if the first bytes may travel in the SYN, where both ends allow it.
    fast_open: Option<bool>,
    /// To relays: most connections kept ready; none when absent.
    warm: Option<NonZeroU16>,
    /// Encryption of legs between gateways and relays; `tls` when absent. `either` is for
    /// `leg.accept` and `leg.at` alone.
    encryption: Option<Encryption>,
    /// To relays: connections of each bulky stream, from 1 to 64, or `adaptive`; 1 when absent.
    connections: Option<Connections>,
    /// Bytes that a stream carries, in both directions together, before it gets more than one
    /// connection; 1 MiB when absent. `0 B`: as soon as its path is open.
    stripe_after: Option<Bytes>,
}

impl TryFrom<ProfileTable> for LegProfile {
    type Error = &'static str;

    fn try_from(table: ProfileTable) -> Result<Self, Self::Error> {
        let base = table.profile.unwrap_or(NamedProfile::Default).profile();
        if table.profile == Some(NamedProfile::PacedStart) && table.pacing_rate.is_none() {
            return Err(
                "`paced-start` needs `pacing_rate`, the rate that the leg is known to carry, \
                 e.g. \"200 Mbit/s\"",
            );
        }
        let profile = Self {
            congestion_control: table.congestion_control.or(base.congestion_control),
            initial_window: table.initial_window.or(base.initial_window),
            window: table.window.or(base.window),
            receive_buffer: table.receive_buffer.or(base.receive_buffer),
            send_buffer: table.send_buffer.or(base.send_buffer),
            pacing_rate: table.pacing_rate.or(base.pacing_rate),
            pacing_rtts: table.pacing_rtts.or(base.pacing_rtts),
            notsent_lowat: table.notsent_lowat.unwrap_or(base.notsent_lowat),
            fast_open: table.fast_open.unwrap_or(base.fast_open),
            warm: table.warm.or(base.warm),
            encryption: table.encryption.or(base.encryption),
            connections: table.connections.unwrap_or(base.connections),
            stripe_after: table.stripe_after.unwrap_or(base.stripe_after),
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
    if let Some(size) = size.filter(|size| *size < MIN_BUFFER) {
        let problem = format!("a size of at least 4 KiB, not `{size}`");
        return Err(de::Error::custom(problem));
    }
    Ok(size)
}

fn buffer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    let size = Bytes::deserialize(deserializer)?;
    if size > MAX_BUFFER {
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
    fn absurd_buffers_are_refused() {
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
    fn absent_options_are_left_to_the_system() {
        let profile = read("congestion_control = 'bbr'").unwrap();
        assert_eq!(profile, NamedProfile::Bbr.profile());
        assert_eq!(profile.receive_buffer, None);
        assert_eq!(profile.notsent_lowat, DEFAULT_NOTSENT_LOWAT);
        assert!(read("windows = '1 MB'").is_err());
        assert_eq!(read("profile = 'default'").unwrap(), LegProfile::default());
    }

    #[test]
    fn named_profile_is_the_base() {
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
    fn invalid_profiles_are_refused_with_the_reason() {
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
    fn profile_survives_a_round_trip() {
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
