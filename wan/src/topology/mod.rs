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

/// A host's place in [`Topology::hosts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIndex(pub u16);

/// A site's place in [`Topology::sites`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteIndex(pub u16);

/// A link's place in [`Topology::links`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u16);

/// A whole emulated network; every value is filled in and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Seed of all randomness, unless the run gives another.
    pub seed: u64,
    /// The places, in the file's order.
    pub sites: Vec<Site>,
    /// The machines, in the file's order; a site without one has a host of its own name.
    pub hosts: Vec<Host>,
    /// Links that several pairs share.
    pub links: Vec<SharedLink>,
    /// Settings of every ordered pair of sites (a site with itself, too), row by source site.
    pub(crate) pairs: Vec<Pair>,
}

/// A place that holds hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Its name.
    pub id: SiteId,
    /// The cloud region it is, if it is one.
    pub region: Option<RegionId>,
    /// Where it lies, if the file or the catalogue says.
    pub location: Option<Coordinates>,
    /// Bytes in flight that bound each connection with an end here [CP VII].
    pub window: Option<Bytes>,
}

/// How a host's egress cap acts on a sender that is too fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapFlavour {
    /// The sender's own queue holds it back, without loss: done on the host, not in the core.
    #[default]
    BackPressure,
    /// A queue in the network, which drops what it cannot hold: done in the core.
    TailDrop,
}

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Its name.
    pub id: HostId,
    /// Where it stands.
    pub site: SiteIndex,
    /// Cap on what it sends, all connections together.
    pub egress: Option<Bandwidth>,
    /// Cap on what it receives, all connections together.
    pub ingress: Option<Bandwidth>,
    /// Cap on what each connection sends.
    pub per_connection: Option<Bandwidth>,
    /// How the egress cap acts.
    pub cap: CapFlavour,
    /// What may pass a cap at once after a silence.
    pub burst: Bytes,
    /// Room of each cap's queue in the network; `None`: 50 ms at its rate.
    pub queue: Option<Bytes>,
    /// Largest IP packet of its interface.
    pub mtu: Bytes,
    /// Congestion control of its connections, as the kernel names it.
    pub congestion_control: String,
    /// Largest receive buffer (`tcp_rmem`); `None`: the kernel's.
    pub receive_buffer: Option<Bytes>,
    /// Largest send buffer (`tcp_wmem`); `None`: the kernel's.
    pub send_buffer: Option<Bytes>,
    /// Initial window of its connections; `None`: the kernel's.
    pub initcwnd: Option<Segments>,
    /// Initial receive window of its connections; `None`: the kernel's.
    pub initrwnd: Option<Segments>,
    /// What differs for some destinations.
    pub(crate) routes: Vec<Route>,
}

/// What differs on a host for one destination site.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Route {
    pub(crate) to: SiteIndex,
    pub(crate) congestion_control: Option<String>,
    pub(crate) initcwnd: Option<Segments>,
    pub(crate) initrwnd: Option<Segments>,
}

/// What a host's kernel should do for connections to one other host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoute {
    /// Congestion control, as the kernel names it.
    pub congestion_control: String,
    /// Initial window.
    pub initcwnd: Option<Segments>,
    /// Initial receive window.
    pub initrwnd: Option<Segments>,
    /// Bound on the bytes in flight: the smaller window of the two sites.
    pub window: Option<Bytes>,
}

/// A link that several pairs share; each direction has this rate, queue and loss of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedLink {
    /// Its name.
    pub name: String,
    /// Rate in IP bytes; `None`: unlimited.
    pub rate: Option<Bandwidth>,
    /// Room of the queue before the rate.
    pub queue: Bytes,
    /// Marks capable segments when the queue holds more than this.
    pub ecn_threshold: Option<Bytes>,
    /// What it loses.
    pub loss: Loss,
}

/// Which side of a shared link a pair uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the first site of a pair's `between` to the second.
    Forward,
    /// The other way.
    Backward,
}

/// One ordered pair of sites.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// One-way delay.
    pub delay: Duration,
    /// Largest extra delay.
    pub jitter: Duration,
    /// Rate in IP bytes; `None`: unlimited.
    pub rate: Option<Bandwidth>,
    /// Room of the queue before the rate.
    pub queue: Bytes,
    /// Marks capable segments when the queue holds more than this.
    pub ecn_threshold: Option<Bytes>,
    /// Largest IP packet.
    pub mtu: Bytes,
    /// Whether a sender of larger packets is told; else they vanish.
    pub icmp: bool,
    /// What it loses.
    pub loss: Loss,
    /// What it delivers late.
    pub reorder: Option<Reorder>,
    /// Share of segments that arrive twice.
    pub duplicate: Ratio,
    /// Shared links on the way, in order.
    pub via: Vec<(LinkIndex, Direction)>,
}

/// Everything that a link may lose; the causes act together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loss {
    /// Share of segments lost independently (Bernoulli).
    pub random: Ratio,
    /// Losses that come in bursts.
    pub burst: Option<BurstLoss>,
    /// Times without service.
    pub outages: Vec<Outage>,
}

/// Gilbert and Elliott's chain of two states, which steps with each segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurstLoss {
    /// Chance that a segment outside a burst begins one.
    pub enter: Ratio,
    /// Chance that a segment in a burst ends it; bursts last `1 / leave` segments on average.
    pub leave: Ratio,
    /// Share lost in a burst.
    pub inside: Ratio,
    /// Share lost outside of bursts.
    pub outside: Ratio,
}

/// When a link is out. Links that share an outage by `name` are out together.
#[derive(Debug, Clone, PartialEq)]
pub struct Outage {
    /// What failed.
    pub name: String,
    /// When.
    pub times: OutageTimes,
}

/// Times of an outage, counted from the network's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutageTimes {
    /// At `start` for `length`, and again `every` so often.
    Planned {
        /// Begin of the first.
        start: Duration,
        /// Length of each.
        length: Duration,
        /// From begin to begin; `None`: only once.
        every: Option<Duration>,
    },
    /// At random: exponential gaps, uniform lengths.
    Random {
        /// Mean time from an end to the next begin.
        mean_gap: Duration,
        /// Shortest.
        shortest: Duration,
        /// Longest.
        longest: Duration,
    },
}

/// Segments that others overtake.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reorder {
    /// Which share.
    pub share: Ratio,
    /// By how much they come later.
    pub late_by: Duration,
}

impl Topology {
    /// Reads a topology file. Regions and machine types are looked up in `catalogue`; pairs that
    /// state no round trip take it from the model of round trips over distance.
    ///
    /// # Errors
    /// One clear line: what is wrong, where, and what would be right.
    pub fn parse(text: &str, catalogue: &Catalogue) -> Result<Self, TopologyError> {
        resolve::topology(text, catalogue)
    }

    /// The host of that name.
    #[must_use]
    pub fn host(&self, id: &HostId) -> Option<HostIndex> {
        let place = self.hosts.iter().position(|host| host.id == *id)?;
        u16::try_from(place).ok().map(HostIndex)
    }

    /// The site of that name.
    #[must_use]
    pub fn site(&self, id: &SiteId) -> Option<SiteIndex> {
        let place = self.sites.iter().position(|site| site.id == *id)?;
        u16::try_from(place).ok().map(SiteIndex)
    }

    /// All sites by name.
    pub(crate) fn site_names(&self) -> BTreeMap<SiteId, SiteIndex> {
        let indices = (0..=u16::MAX).map(SiteIndex);
        self.sites.iter().map(|site| site.id.clone()).zip(indices).collect()
    }

    /// Settings of the ordered pair `from` -> `to`.
    ///
    /// # Panics
    /// When an index is not of this topology.
    #[must_use]
    pub fn pair(&self, from: SiteIndex, to: SiteIndex) -> &Pair {
        &self.pairs[usize::from(from.0) * self.sites.len() + usize::from(to.0)]
    }

    /// What the kernel of `from` should do for connections to `to`.
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
