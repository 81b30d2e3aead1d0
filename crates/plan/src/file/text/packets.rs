//! The sections of packet flows, and of the prices of relays for them.

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;
use tradewind_units::{
    Bandwidth, Bytes, Duration, FlowId, Money, PricePerGb, Ratio, RegionId, SiteId,
    time::{Written, as_text},
};

use crate::packets::BlockCoding;

/// Packets with a latency budget: they get the cheapest packet service that meets it, over one or
/// two relays `[JQ 3.3]`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::file) struct PacketFlowSection {
    /// Its name, unique among all flows; `FROM-TO` when absent.
    #[schemars(with = "Option<FlowId>")]
    pub(in crate::file) id: Option<Spanned<FlowId>>,
    /// The site that it comes from.
    #[schemars(with = "SiteId")]
    pub(in crate::file) from: Spanned<SiteId>,
    /// The site that it goes to.
    #[schemars(with = "SiteId")]
    pub(in crate::file) to: Spanned<SiteId>,
    /// Its rate; of rate, packet size and packets a second exactly two are given.
    #[schemars(with = "Option<Bandwidth>")]
    pub(in crate::file) rate: Option<Spanned<Bandwidth>>,
    /// Size of a packet.
    #[schemars(with = "Option<Bytes>")]
    pub(in crate::file) packet: Option<Spanned<Bytes>>,
    /// Packets a second.
    #[schemars(with = "Option<f64>")]
    pub(in crate::file) packets_per_second: Option<Spanned<f64>>,
    /// Duration that its costs are for; 1 h when absent.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(in crate::file) span: Option<Duration>,
    /// Latency budget, at most 65 s.
    #[serde(with = "as_text")]
    #[schemars(with = "Written")]
    pub(in crate::file) budget: Duration,
    /// Share that may be late or lost; 0.1 % when absent.
    pub(in crate::file) max_loss: Option<Ratio>,
    /// Share that the Internet is expected to lose; `loss` of the leg from site to site when
    /// absent, else 1 %.
    pub(in crate::file) internet_loss: Option<Ratio>,
    /// Round-trip time between the last relay and the farthest helper of coding; as the leg to `to`
    /// when absent.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(in crate::file) helper_rtt: Option<Duration>,
}

/// Settings for all packet flows.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::file) struct PacketsSection {
    /// Time from a packet's due arrival to the request for it; 5 ms when absent.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(in crate::file) detection: Option<Duration>,
    /// Time for which relays keep packets; 1 s when absent.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(in crate::file) retention: Option<Duration>,
    /// As in a relay's `[packet]` (docs/reference/packets.md).
    #[schemars(with = "Option<BlockCoding>")]
    pub(in crate::file) coding: Option<Spanned<BlockCoding>>,
    /// Price of a relay's machine, paid for whole hours; the cloud's cheapest in the catalogue when
    /// absent.
    pub(in crate::file) usd_per_hour: Option<Money>,
    /// Most packet flows on one machine; 100 when absent.
    #[schemars(with = "Option<u32>")]
    pub(in crate::file) flows_per_machine: Option<Spanned<u32>>,
    /// Price of what relays receive; free when absent.
    #[schemars(with = "Option<TariffSection>")]
    pub(in crate::file) ingress: Option<Spanned<TariffSection>>,
    /// Price of what relays send; by `[egress]` or the catalogue when absent.
    #[schemars(with = "Option<TariffSection>")]
    pub(in crate::file) egress: Option<Spanned<TariffSection>>,
    /// Price of packets kept outside the machine's memory; 0 when absent.
    pub(in crate::file) storage_usd_per_gb_hour: Option<Money>,
    /// Prices in single regions or clouds: a region's override the cloud's, and those override the
    /// others.
    #[serde(default)]
    #[schemars(with = "Vec<PacketsAtSection>")]
    pub(in crate::file) at: Vec<Spanned<PacketsAtSection>>,
}

/// Prices of relays in one region or cloud, which override those for all.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::file) struct PacketsAtSection {
    /// The region; either this or `cloud`.
    #[schemars(with = "Option<RegionId>")]
    pub(in crate::file) region: Option<Spanned<RegionId>>,
    /// The cloud.
    #[schemars(with = "Option<String>")]
    pub(in crate::file) cloud: Option<Spanned<String>>,
    /// As for all.
    pub(in crate::file) usd_per_hour: Option<Money>,
    /// As for all.
    #[schemars(with = "Option<u32>")]
    pub(in crate::file) flows_per_machine: Option<Spanned<u32>>,
    /// As for all.
    #[schemars(with = "Option<TariffSection>")]
    pub(in crate::file) ingress: Option<Spanned<TariffSection>>,
    /// As for all.
    #[schemars(with = "Option<TariffSection>")]
    pub(in crate::file) egress: Option<Spanned<TariffSection>>,
    /// As for all.
    pub(in crate::file) storage_usd_per_gb_hour: Option<Money>,
}

/// The tariff of traffic: by volume, or by the 95th percentile of a month.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::file) struct TariffSection {
    /// Price by volume.
    pub(in crate::file) usd_per_gb: Option<PricePerGb>,
    /// Price of a month by its 95th percentile, of which a flow pays its rate for its part of the
    /// month.
    pub(in crate::file) usd_per_mbps: Option<Money>,
}
