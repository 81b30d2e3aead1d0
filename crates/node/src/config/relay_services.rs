//! How a relay serves caching and coding.

use tradewind_packet::ingress::{Coding, InStream, Sharing};
use tradewind_packet::rendezvous::MessageStoreConfig;
use tradewind_plan::packets::BlockCoding;
use tradewind_units::{Duration, PricePerGb};

use super::{Assumed, rendezvous};
use crate::NodeError;

/// How a relay serves caching and coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayServices {
    /// Blocks of several flows.
    pub coding: Coding,
    /// Blocks of one flow; `None`: none are made.
    pub in_stream: Option<InStream>,
    /// Whether packets of several gateways may be coded together.
    pub sharing: Sharing,
    /// What its cloud charges for what leaves it to other relays.
    pub to_relays: PricePerGb,
    /// And to endpoints.
    pub to_endpoints: PricePerGb,
    /// Whether it keeps the registry: where endpoints are, as they tell.
    pub is_registry: bool,
    /// What it keeps of packets whose receivers are not online; `None`: nothing.
    pub rendezvous: Option<MessageStoreConfig>,
}

impl Default for RelayServices {
    /// k = 10, two repair packets; in-stream one for five `[JQ 4, 5.2]`; each gateway for itself;
    /// nothing is charged.
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
const MOST_REPAIRS: usize = 8;
const MOST_SOURCES: usize = 32;
/// Longest that a block may be open. Chosen: no latency budget is longer.
const MOST_WITHIN: Duration = Duration::from_secs(10);
impl RelayServices {
    /// What a flow may count on whose relays code like this and whose prices nobody tells.
    pub(crate) fn assumed(&self) -> Assumed {
        let Coding { repairs, packets, cross_stream_within: within, .. } = self.coding;
        let in_stream = self.in_stream.map_or([0, 1], |coding| [coding.repairs, coding.packets]);
        let coding = BlockCoding { cross_stream: [repairs, packets], in_stream, within };
        Assumed { costs: None, coding }
    }

    pub(super) fn check(&self) -> Result<(), NodeError> {
        let is_right = |repairs: u8, packets: u8| {
            (1..=MOST_REPAIRS).contains(&usize::from(repairs))
                && (1..=MOST_SOURCES).contains(&usize::from(packets))
        };
        let Self { coding, in_stream, rendezvous, .. } = self;
        rendezvous.as_ref().map_or(Ok(()), rendezvous::check_store)?;
        if !is_right(coding.repairs, coding.packets)
            || in_stream.is_some_and(|coding| !is_right(coding.repairs, coding.packets))
        {
            let problem = "expected 1 to 8 repair packets for 1 to 32 packets".to_owned();
            return Err(NodeError::Config { key: "coding", problem });
        }
        if coding.cross_stream_within.is_zero() || coding.cross_stream_within > MOST_WITHIN {
            let problem = "expected `within` above 0 and at most 10 s".to_owned();
            return Err(NodeError::Config { key: "coding", problem });
        }
        Ok(())
    }
}
