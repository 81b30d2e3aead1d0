//! A relay's settings for caching and coding.

use tradewind_packet::ingress::{Coding, InStream, Sharing};
use tradewind_packet::rendezvous::MessageStoreConfig;
use tradewind_plan::packets::BlockCoding;
use tradewind_units::{Duration, PricePerGb};

use super::{Assumed, rendezvous};
use crate::ConfigError;

/// A relay's settings for caching and coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayServices {
    /// The coding of several flows' packets together.
    pub coding: Coding,
    /// The coding of one flow's packets; `None`: off.
    pub in_stream: Option<InStream>,
    /// Set to code packets of several gateways together.
    pub sharing: Sharing,
    /// The cloud's price for traffic to other relays.
    pub to_relays: PricePerGb,
    /// The cloud's price for traffic to endpoints.
    pub to_endpoints: PricePerGb,
    /// Set if it keeps the registry of the endpoints' addresses, which endpoints report.
    pub is_registry: bool,
    /// The storage for packets whose receivers are offline; `None`: none.
    pub rendezvous: Option<MessageStoreConfig>,
}

impl Default for RelayServices {
    /// Returns k = 10 with two repair packets; in-stream one for five `[JQ 4, 5.2]`; each gateway's
    /// packets by themselves; free of charge.
    fn default() -> Self {
        Self {
            coding: Coding::default(),
            in_stream: Some(InStream { packets: 5, repairs: 1 }),
            sharing: Sharing::Own,
            to_relays: PricePerGb::FREE,
            to_endpoints: PricePerGb::FREE,
            is_registry: false,
            rendezvous: None,
        }
    }
}

/// Most repair packets of a block, and most packets.
const MAX_REPAIRS: usize = 8;
const MAX_SOURCES: usize = 32;
/// Longest time that a block may stay open. Chosen: no latency budget is longer.
const MAX_WITHIN: Duration = Duration::from_secs(10);
impl RelayServices {
    /// Returns the assumptions of a flow whose relays code like this and whose prices are unknown.
    pub fn assumed(&self) -> Assumed {
        let Coding { repairs, packets, cross_stream_within: within, .. } = self.coding;
        let in_stream = self.in_stream.map_or([0, 1], |coding| [coding.repairs, coding.packets]);
        let coding = BlockCoding { cross_stream: [repairs, packets], in_stream, within };
        Assumed { costs: None, coding }
    }

    /// Checks block lengths, and the storage.
    ///
    /// # Errors
    /// The setting that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_right = |repairs: u8, packets: u8| {
            (1..=MAX_REPAIRS).contains(&usize::from(repairs))
                && (1..=MAX_SOURCES).contains(&usize::from(packets))
        };
        let Self { coding, in_stream, rendezvous, .. } = self;
        rendezvous.as_ref().map_or(Ok(()), rendezvous::check_store)?;
        if !is_right(coding.repairs, coding.packets)
            || in_stream.is_some_and(|coding| !is_right(coding.repairs, coding.packets))
        {
            let problem = "expected 1 to 8 repair packets for 1 to 32 packets";
            return Err(ConfigError::new("coding", problem));
        }
        if coding.cross_stream_within.is_zero() || coding.cross_stream_within > MAX_WITHIN {
            let problem = "expected `within` above 0 and at most 10 s";
            return Err(ConfigError::new("coding", problem));
        }
        Ok(())
    }
}
