//! Counters of each link's segments.

use tradewind_units::{HostId, SiteId};

/// The reason why a segment was lost. The list is complete: no segment is lost for another reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropCause {
    /// The queue before a rate was full.
    QueueFull,
    /// Random loss (Bernoulli).
    Random,
    /// Loss in a burst (Gilbert-Elliott).
    Burst,
    /// The link was in an outage.
    Outage,
    /// Larger than the path's MTU.
    TooBig,
}

impl DropCause {
    /// All causes.
    pub const ALL: [Self; 5] =
        [Self::QueueFull, Self::Random, Self::Burst, Self::Outage, Self::TooBig];
}

/// The link to which a count belongs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkName {
    /// The per-connection caps of one host, together.
    Connections(HostId),
    /// The egress of a host.
    Egress(HostId),
    /// A named link, in its forward direction.
    Forward(String),
    /// A named link, in its backward direction.
    Backward(String),
    /// The link from one site to another.
    Pair(SiteId, SiteId),
    /// The ingress of a host.
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
    /// Segments that entered.
    pub entered: u64,
    /// Segments that were delivered at the remote end.
    pub delivered: u64,
    /// IP bytes of the delivered segments.
    pub delivered_bytes: u64,
    /// Segments that were created by duplication.
    pub duplicated: u64,
    /// Segments that got the mark "congestion experienced" here.
    pub marked: u64,
    /// Segments in the queue or on the wire.
    pub in_flight: u64,
    dropped: [u64; DropCause::ALL.len()],
}

impl Tally {
    /// Returns the number of segments lost for `cause`.
    #[must_use]
    pub fn dropped(&self, cause: DropCause) -> u64 {
        self.dropped[cause as usize]
    }

    /// Returns the number of segments lost for any cause.
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

    /// Returns whether every segment is accounted for.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        self.entered + self.duplicated == self.delivered + self.dropped_total() + self.in_flight
    }
}

/// The counts of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkCounters {
    /// The link.
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
