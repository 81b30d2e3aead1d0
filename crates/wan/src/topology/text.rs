//! The syntax of a topology file: its sections and keys, with optional ones as `Option`.

use serde::{Deserialize, Deserializer, de};
use toml::Spanned;
use tradewind_model::Coordinates;
use tradewind_units::{
    Bandwidth, Bytes, Duration, HostId, Ratio, RegionId, Segments, SiteId, UnitError, from_text,
    time::as_text,
};

use super::{CapFlavour, limits};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) seed: u64,
    #[serde(default)]
    pub(super) default: Defaults,
    #[serde(default)]
    pub(super) site: Vec<Spanned<SiteSection>>,
    #[serde(default)]
    pub(super) host: Vec<Spanned<HostSection>>,
    #[serde(default)]
    pub(super) link: Vec<Spanned<LinkSection>>,
    #[serde(default)]
    pub(super) pair: Vec<Spanned<PairSection>>,
    #[serde(default)]
    pub(super) outage: Vec<Spanned<OutageSection>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Defaults {
    pub(super) host: Option<Spanned<HostSection>>,
    pub(super) pair: Option<Spanned<PairSection>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SiteSection {
    pub(super) id: Option<Spanned<SiteId>>,
    pub(super) region: Option<Spanned<RegionId>>,
    pub(super) location: Option<Coordinates>,
    #[serde(default, with = "as_text::option")]
    pub(super) access_rtt: Option<Duration>,
    pub(super) window: Option<Spanned<Bytes>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostSection {
    pub(super) id: Option<Spanned<HostId>>,
    pub(super) site: Option<Spanned<SiteId>>,
    pub(super) vm: Option<Spanned<String>>,
    pub(super) egress: Option<Limit>,
    pub(super) ingress: Option<Limit>,
    pub(super) per_connection: Option<Limit>,
    pub(super) cap: Option<CapFlavour>,
    pub(super) burst: Option<Spanned<Bytes>>,
    pub(super) queue: Option<Spanned<Bytes>>,
    pub(super) mtu: Option<Spanned<Bytes>>,
    pub(super) congestion_control: Option<Spanned<String>>,
    pub(super) receive_buffer: Option<Spanned<Bytes>>,
    pub(super) send_buffer: Option<Spanned<Bytes>>,
    #[serde(default, deserialize_with = "segments")]
    pub(super) initcwnd: Option<Segments>,
    #[serde(default, deserialize_with = "segments")]
    pub(super) initrwnd: Option<Segments>,
    #[serde(default)]
    pub(super) route: Vec<RouteSection>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteSection {
    pub(super) to: Spanned<SiteId>,
    pub(super) congestion_control: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "segments")]
    pub(super) initcwnd: Option<Segments>,
    #[serde(default, deserialize_with = "segments")]
    pub(super) initrwnd: Option<Segments>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkSection {
    pub(super) name: Spanned<String>,
    pub(super) rate: Option<Limit>,
    pub(super) queue: Option<Spanned<Bytes>>,
    pub(super) ecn_threshold: Option<Spanned<Bytes>>,
    pub(super) loss: Option<Ratio>,
    pub(super) burst_loss: Option<Spanned<BurstSection>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PairSection {
    pub(super) between: Option<Spanned<[SiteId; 2]>>,
    pub(super) from: Option<Spanned<SiteId>>,
    pub(super) to: Option<Spanned<SiteId>>,
    pub(super) rtt: Option<Spanned<Span>>,
    pub(super) delay: Option<Spanned<Span>>,
    pub(super) jitter: Option<Spanned<Span>>,
    pub(super) rate: Option<Limit>,
    pub(super) queue: Option<Spanned<Bytes>>,
    pub(super) ecn_threshold: Option<Spanned<Bytes>>,
    pub(super) mtu: Option<Spanned<Bytes>>,
    pub(super) icmp: Option<bool>,
    pub(super) loss: Option<Ratio>,
    pub(super) burst_loss: Option<Spanned<BurstSection>>,
    pub(super) reorder: Option<Spanned<ReorderSection>>,
    pub(super) duplicate: Option<Ratio>,
    pub(super) via: Option<Vec<Spanned<String>>>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BurstSection {
    pub(super) enter: Ratio,
    pub(super) leave: Ratio,
    #[serde(default = "whole")]
    pub(super) inside: Ratio,
    #[serde(default)]
    pub(super) outside: Ratio,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReorderSection {
    pub(super) share: Ratio,
    #[serde(with = "as_text")]
    pub(super) late_by: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutageSection {
    pub(super) name: Spanned<String>,
    #[serde(default, with = "as_text::option")]
    pub(super) start: Option<Duration>,
    #[serde(default, with = "as_text::option")]
    pub(super) length: Option<Duration>,
    #[serde(default, with = "as_text::option")]
    pub(super) every: Option<Duration>,
    #[serde(default, with = "as_text::option")]
    pub(super) mean_gap: Option<Duration>,
    #[serde(default, with = "as_text::option")]
    pub(super) shortest: Option<Duration>,
    #[serde(default, with = "as_text::option")]
    pub(super) longest: Option<Duration>,
    #[serde(default)]
    pub(super) between: Vec<Spanned<[SiteId; 2]>>,
    #[serde(default)]
    pub(super) from_to: Vec<Spanned<[SiteId; 2]>>,
    #[serde(default)]
    pub(super) sites: Vec<Spanned<SiteId>>,
    #[serde(default)]
    pub(super) links: Vec<Spanned<String>>,
}

/// A span of time in its text form.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Span(#[serde(with = "as_text")] pub(super) Duration);

/// A rate, or the word `none` to remove a default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<Bandwidth>);

impl std::str::FromStr for Limit {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text.trim() == "none" {
            Ok(Self(None))
        } else {
            let rate: Bandwidth = text.parse()?;
            if rate < limits::slowest_rate() {
                return Err(UnitError::new("rate", limits::RATE_EXPECTED, text));
            }
            Ok(Self(Some(rate)))
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, limits::RATE_EXPECTED, str::parse)
    }
}

fn whole() -> Ratio {
    Ratio::ONE
}

fn segments<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Segments>, D::Error> {
    let count = u32::deserialize(deserializer)?;
    Segments::new(count).map(Some).map_err(de::Error::custom)
}
