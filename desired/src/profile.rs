//! How the connections of a leg are set up.
//!
//! Buffers are left to the kernel's autotuning unless set: a pinned buffer is capped by the
//! system's maximum and was measured to be slower than a tuned one. Where the cloud-facing window
//! is to be opened [CP IV-B], raise `net.ipv4.tcp_rmem` and `tcp_wmem` on the host instead.

use serde::{Deserialize, Deserializer, Serialize, de};
use tradewind_units::Bytes;

/// Most bytes that wait unsent in the kernel for one connection, unless a profile says otherwise.
/// Chosen: what a path of 10 Gbit/s sends in 2 ms, so that a relay which is scheduled late still has
/// something to send, and a slow leg hoards no more than this above its window. Measured by
/// `bench/relay`: with 512 KiB eight streams were a tenth slower.
pub const DEFAULT_NOTSENT_LOWAT: Bytes = Bytes::new(2 << 20);

/// Largest buffer, and most bytes unsent, that a profile may ask for. Source: the largest window that TCP can
/// announce (RFC 7323).
pub const LARGEST_BUFFER: Bytes = Bytes::new(1 << 30);

/// Options of a leg's connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LegProfile {
    /// Name of the congestion control, e.g. `bbr`; the host's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// Receive buffer, at most [`LARGEST_BUFFER`]; the kernel tunes it when absent.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_buffer")]
    pub receive_buffer: Option<Bytes>,
    /// Send buffer, at most [`LARGEST_BUFFER`]; the kernel tunes it when absent.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_buffer")]
    pub send_buffer: Option<Bytes>,
    /// Most bytes that wait unsent in the kernel, at most [`LARGEST_BUFFER`].
    #[serde(deserialize_with = "buffer")]
    pub notsent_lowat: Bytes,
}

impl Default for LegProfile {
    fn default() -> Self {
        Self {
            congestion_control: None,
            receive_buffer: None,
            send_buffer: None,
            notsent_lowat: DEFAULT_NOTSENT_LOWAT,
        }
    }
}

fn buffer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let size = Bytes::deserialize(deserializer)?;
    if size > LARGEST_BUFFER {
        let problem = format!("a size of at most 1 GiB, not `{size}`");
        return Err(de::Error::custom(problem));
    }
    Ok(size)
}

fn optional_buffer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    buffer(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kernel_is_asked_for_an_absurd_buffer() {
        for key in ["receive_buffer", "send_buffer", "notsent_lowat"] {
            let most: LegProfile = toml::from_str(&format!("{key} = '1 GiB'")).unwrap();
            assert_ne!(most, LegProfile::default());
            let refused = toml::from_str::<LegProfile>(&format!("{key} = '2 GB'"));
            let message = refused.unwrap_err().message().to_owned();
            assert_eq!(message, "a size of at most 1 GiB, not `2 GB`", "{key}");
        }
    }

    #[test]
    fn what_a_profile_does_not_say_is_left_to_the_system() {
        let profile: LegProfile = toml::from_str("congestion_control = 'bbr'").unwrap();
        assert_eq!(profile.congestion_control.as_deref(), Some("bbr"));
        assert_eq!(profile.receive_buffer, None);
        assert_eq!(profile.notsent_lowat, DEFAULT_NOTSENT_LOWAT);
        assert!(toml::from_str::<LegProfile>("window = '1 MB'").is_err());
    }

    #[test]
    fn a_profile_survives_a_round_trip() {
        let profile =
            LegProfile { receive_buffer: Some(Bytes::new(16_000_000)), ..LegProfile::default() };
        let text = toml::to_string(&profile).unwrap();
        assert_eq!(toml::from_str::<LegProfile>(&text).unwrap(), profile, "{text}");
    }
}
