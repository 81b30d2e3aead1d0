//! What each link did with the segments it got.

use tradewind_units::{HostId, SiteId};

/// Why a segment was lost. The list is closed: nothing vanishes for another reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropCause {
    /// The queue before a rate had no room.
    QueueFull,
    /// Random loss (Bernoulli).
    Random,
    /// Loss in a burst (Gilbert-Elliott).
    Burst,
    /// The link was out.
    Outage,
    /// Larger than the path's MTU.
    TooBig,
}

impl DropCause {
    /// All causes.
    pub const ALL: [Self; 5] =
        [Self::QueueFull, Self::Random, Self::Burst, Self::Outage, Self::TooBig];
}

/// Which link a count belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkName {
    /// All connections' caps of one host together.
    Connections(HostId),
    /// What a host sends.
    Egress(HostId),
    /// A named link, in the direction its pairs call forward.
    Forward(String),
    /// A named link, in the other direction.
    Backward(String),
    /// From a site to another.
    Pair(SiteId, SiteId),
    /// What a host receives.
    Ingress(HostId),
}

impl std::fmt::Display for LinkName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connections(host) => write!(f, "connections of {host}"),
            Self::Egress(host) => write!(f, "egress of {host}"),
            Self::Forward(name) => write!(f, "link {name} forward"),
            Self::Backward(name) => write!(f, "link {name} backward"),
            Self::Pair(from, to) => write!(f, "{from}->{to}"),
            Self::Ingress(host) => write!(f, "ingress of {host}"),
        }
    }
}

/// Counts of segments. Always `entered + duplicated == delivered + all dropped + in_flight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Came in.
    pub entered: u64,
    /// Came out at the far end.
    pub delivered: u64,
    /// IP bytes of the segments that came out.
    pub delivered_bytes: u64,
    /// Were made by duplication.
    pub duplicated: u64,
    /// Got the mark "congestion experienced" here.
    pub marked: u64,
    /// Wait or travel.
    pub in_flight: u64,
    dropped: [u64; DropCause::ALL.len()],
}

impl Tally {
    /// Segments lost for `cause`.
    #[must_use]
    pub fn dropped(&self, cause: DropCause) -> u64 {
        self.dropped[cause as usize]
    }

    /// Segments lost for any cause.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    pub(crate) fn deliver(&mut self, bytes: u32) {
        self.delivered += 1;
        self.delivered_bytes += u64::from(bytes);
    }

    pub(crate) fn drop_many(&mut self, cause: DropCause, segments: u64) {
        self.dropped[cause as usize] += segments;
    }

    /// Whether nothing appeared or vanished unaccounted.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        self.entered + self.duplicated == self.delivered + self.dropped_total() + self.in_flight
    }
}

/// One link's counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkCounters {
    /// Which link.
    pub name: LinkName,
    /// Its counts.
    pub tally: Tally,
}

/// All counts of a [`crate::Wan`] at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// The network as a whole, end to end.
    pub total: Tally,
    /// Each link that exists (a host without a cap has none), in a stable order.
    pub links: Vec<LinkCounters>,
}
