//! How the connections of a leg are set up.
//!
//! Buffers are left to the kernel's autotuning unless set: a pinned buffer is capped by the
//! system's maximum and was measured to be slower than a tuned one. Where the cloud-facing window
//! is to be opened [CP IV-B], raise `net.ipv4.tcp_rmem` and `tcp_wmem` on the host instead.

use serde::{Deserialize, Serialize};
use tradewind_units::Bytes;

/// Most bytes that wait unsent in the kernel for one connection, unless a profile says otherwise.
/// Chosen: what a path of 10 Gbit/s sends in 2 ms, so that a relay which is scheduled late still has
/// something to send, and a slow leg hoards no more than this above its window. Measured by
/// `bench/relay`: with 512 KiB eight streams were a tenth slower.
pub const DEFAULT_NOTSENT_LOWAT: Bytes = Bytes::new(2 << 20);

/// Options of a leg's connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LegProfile {
    /// Name of the congestion control, e.g. `bbr`; the host's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// Receive buffer; the kernel tunes it when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<Bytes>,
    /// Send buffer; the kernel tunes it when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<Bytes>,
    /// Most bytes that wait unsent in the kernel.
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

#[cfg(test)]
mod tests {
    use super::*;

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
