//! Sites, hosts, pairs and links, as a topology file describes them.

use std::collections::BTreeMap;

use tradewind_model::{Catalogue, geo::Coordinates};
use tradewind_units::{Bandwidth, Bytes, Duration, HostId, Ratio, RegionId, Segments, SiteId};

mod error;
mod hosts;
pub(crate) mod limits;
mod loss;
mod pairs;
mod resolve;
mod text;

pub use error::TopologyError;
pub(crate) use text::Limit;

/// The index of a host in [`Topology::hosts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIndex(pub u16);

/// The index of a site in [`Topology::sites`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteIndex(pub u16);

/// The index of a link in [`Topology::links`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u16);

/// A whole emulated network; every value is filled in and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Seed of all randomness, unless the run sets another.
    pub seed: u64,
    /// The sites, in the file's order.
    pub sites: Vec<Site>,
    /// The hosts, in the file's order; a site without one has a host of its own name.
    pub hosts: Vec<Host>,
    /// Links that several pairs share.
    pub links: Vec<SharedLink>,
    /// Settings of every ordered pair of sites (including a site with itself), row by source site.
    pub(crate) pairs: Vec<Pair>,
}

/// A location with hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Its name.
    pub id: SiteId,
    /// The cloud region of the site, if it has one.
    pub region: Option<RegionId>,
    /// The coordinates, if the file or the catalogue states them.
    pub location: Option<Coordinates>,
    /// The bound on the bytes in flight of each connection with an end here [CP VII].
    pub window: Option<Bytes>,
}

/// The effect of a host's egress cap on a sender that is too fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapFlavour {
    /// The sender's own queue blocks without loss: enforced on the host, not in the core.
    #[default]
    BackPressure,
    /// A queue in the network drops when it is full: enforced in the core.
    TailDrop,
}

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Its name.
    pub id: HostId,
    /// The site at which it is located.
    pub site: SiteIndex,
    /// The cap on sent traffic, all connections together.
    pub egress: Option<Bandwidth>,
    /// The cap on received traffic, all connections together.
    pub ingress: Option<Bandwidth>,
    /// The cap on the sent traffic of each connection.
    pub per_connection: Option<Bandwidth>,
    /// The effect of the egress cap.
    pub cap: CapFlavour,
    /// The burst that passes a cap at once after an idle time.
    pub burst: Bytes,
    /// The capacity of each cap's queue in the network; `None` means 50 ms at its rate.
    pub queue: Option<Bytes>,
    /// Largest IP packet of its interface.
    pub mtu: Bytes,
    /// Congestion control of its connections, as the kernel names it.
    pub congestion_control: String,
    /// Largest receive buffer (`tcp_rmem`); `None` means the kernel's.
    pub receive_buffer: Option<Bytes>,
    /// Largest send buffer (`tcp_wmem`); `None` means the kernel's.
    pub send_buffer: Option<Bytes>,
    /// Initial congestion window of its connections; `None` means the kernel's.
    pub initcwnd: Option<Segments>,
    /// Initial receive window of its connections; `None` means the kernel's.
    pub initrwnd: Option<Segments>,
    /// Settings for connections to some destinations.
    pub(crate) routes: Vec<Route>,
}

/// Settings of a host for one destination site.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Route {
    pub(crate) to: SiteIndex,
    pub(crate) congestion_control: Option<String>,
    pub(crate) initcwnd: Option<Segments>,
    pub(crate) initrwnd: Option<Segments>,
}

/// Kernel settings of a host for connections to one other host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoute {
    /// Congestion control, as the kernel names it.
    pub congestion_control: String,
    /// Initial congestion window.
    pub initcwnd: Option<Segments>,
    /// Initial receive window.
    pub initrwnd: Option<Segments>,
    /// Bound on the bytes in flight: the smaller window of the two sites.
    pub window: Option<Bytes>,
}

/// A link that several pairs share; each direction has its own rate, queue and loss.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedLink {
    /// Its name.
    pub name: String,
    /// Rate in IP bytes; `None` means unlimited.
    pub rate: Option<Bandwidth>,
    /// Capacity of the queue before the rate.
    pub queue: Bytes,
    /// The queue length above which ECN-capable segments are marked.
    pub ecn_threshold: Option<Bytes>,
    /// The losses of the link.
    pub loss: Loss,
}

/// The direction in which a pair uses a shared link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the first site of a pair's `between` to the second.
    Forward,
    /// From the second site to the first.
    Backward,
}

/// One ordered pair of sites.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// One-way delay.
    pub delay: Duration,
    /// Largest extra delay.
    pub jitter: Duration,
    /// Rate in IP bytes; `None` means unlimited.
    pub rate: Option<Bandwidth>,
    /// Capacity of the queue before the rate.
    pub queue: Bytes,
    /// The queue length above which ECN-capable segments are marked.
    pub ecn_threshold: Option<Bytes>,
    /// Largest IP packet.
    pub mtu: Bytes,
    /// `true` when senders of larger packets get an ICMP error; otherwise such packets are dropped
    /// silently.
    pub icmp: bool,
    /// The losses of the pair.
    pub loss: Loss,
    /// Segments that are delivered late.
    pub reorder: Option<Reorder>,
    /// Share of segments that arrive twice.
    pub duplicate: Ratio,
    /// Shared links on the way, in order.
    pub via: Vec<(LinkIndex, Direction)>,
}

/// All losses of a link; the causes act together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loss {
    /// Share of segments lost independently (Bernoulli).
    pub random: Ratio,
    /// Losses in bursts.
    pub burst: Option<BurstLoss>,
    /// Times without service.
    pub outages: Vec<Outage>,
}

/// Gilbert and Elliott's chain of two states, which steps with each segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurstLoss {
    /// The probability that a segment outside a burst begins one.
    pub enter: Ratio,
    /// The probability that a segment in a burst ends it; bursts last `1 / leave` segments on
    /// average.
    pub leave: Ratio,
    /// The share of segments lost in a burst.
    pub inside: Ratio,
    /// The share of segments lost outside of bursts.
    pub outside: Ratio,
}

/// An outage of a link. Links that share an outage by `name` are out together.
#[derive(Debug, Clone, PartialEq)]
pub struct Outage {
    /// The name of the failure.
    pub name: String,
    /// The times of the outage.
    pub times: OutageTimes,
}

/// Times of an outage, counted from the network's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutageTimes {
    /// At `start` for `length`, repeated with the period `every`.
    Planned {
        /// Begin of the first outage.
        start: Duration,
        /// Length of each outage.
        length: Duration,
        /// The time from begin to begin; `None` means only one outage.
        every: Option<Duration>,
    },
    /// At random: exponential gaps, uniform lengths.
    Random {
        /// Mean time from an end to the next begin.
        mean_gap: Duration,
        /// Shortest outage.
        shortest: Duration,
        /// Longest outage.
        longest: Duration,
    },
}

/// Segments that others overtake.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reorder {
    /// The share of segments.
    pub share: Ratio,
    /// Their additional delay.
    pub late_by: Duration,
}

impl Topology {
    /// Parses a topology file. Regions and machine types are looked up in `catalogue`; pairs that
    /// state no round trip take it from the model of round trips over distance.
    ///
    /// # Errors
    /// One clear line with the error, its place and the expected form.
    pub fn parse(text: &str, catalogue: &Catalogue) -> Result<Self, TopologyError> {
        resolve::topology(text, catalogue)
    }

    /// Returns the host of that name.
    #[must_use]
    pub fn host(&self, id: &HostId) -> Option<HostIndex> {
        let place = self.hosts.iter().position(|host| host.id == *id)?;
        u16::try_from(place).ok().map(HostIndex)
    }

    /// Returns the site of that name.
    #[must_use]
    pub fn site(&self, id: &SiteId) -> Option<SiteIndex> {
        let place = self.sites.iter().position(|site| site.id == *id)?;
        u16::try_from(place).ok().map(SiteIndex)
    }

    /// Returns all sites by name.
    pub(crate) fn site_names(&self) -> BTreeMap<SiteId, SiteIndex> {
        let indices = (0..=u16::MAX).map(SiteIndex);
        self.sites.iter().map(|site| site.id.clone()).zip(indices).collect()
    }

    /// Returns the settings of the ordered pair `from` -> `to`.
    ///
    /// # Panics
    /// When an index is not of this topology.
    #[must_use]
    pub fn pair(&self, from: SiteIndex, to: SiteIndex) -> &Pair {
        &self.pairs[usize::from(from.0) * self.sites.len() + usize::from(to.0)]
    }

    /// Returns the kernel settings of `from` for connections to `to`.
    ///
    /// # Panics
    /// When an index is not of this topology.
    #[must_use]
    pub fn route(&self, from: HostIndex, to: HostIndex) -> HostRoute {
        let (host, peer) = (&self.hosts[usize::from(from.0)], &self.hosts[usize::from(to.0)]);
        let route = host.routes.iter().find(|route| route.to == peer.site);
        let window_of = |site: SiteIndex| self.sites[usize::from(site.0)].window;
        HostRoute {
            congestion_control: route
                .and_then(|route| route.congestion_control.clone())
                .unwrap_or_else(|| host.congestion_control.clone()),
            initcwnd: route.and_then(|route| route.initcwnd).or(host.initcwnd),
            initrwnd: route.and_then(|route| route.initrwnd).or(host.initrwnd),
            window: window_of(host.site).into_iter().chain(window_of(peer.site)).min(),
        }
    }
}
