//! The links that a segment passes, in order: its connection's cap, its host's egress cap, the
//! named links of its pair of sites, the pair itself, the destination's ingress cap.

use std::collections::BTreeMap;

use tradewind_units::{Bandwidth, Bytes};

use crate::{
    counters::{LinkName, Tally},
    link::{Faults, Link, Wire},
    queue::Queue,
    segment::{Nanos, Segment},
    topology::{CapFlavour, Direction, Host, HostIndex, SiteIndex, Topology},
};

/// The hop of the egress cap. A connection's cap is hop 0; a pair's links begin at hop 2.
pub(crate) const EGRESS_HOP: u8 = 1;
const PAIR_HOP: u8 = 2;

/// The capacity of a cap's queue, as time at its rate, unless the host states it in bytes. Chosen:
/// half the bandwidth-delay product at 100 ms, which keeps CUBIC's sawtooth above the cap.
const CAP_QUEUE_SPAN: tradewind_units::Duration = tradewind_units::Duration::from_millis(50);

/// The links of a network and the routes over them.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    site_count: usize,
    hosts: Vec<HostLinks>,
    pub(crate) pairs: Vec<PairRoute>,
}

/// One host's own links.
#[derive(Debug, Clone)]
struct HostLinks {
    site: usize,
    egress: Option<usize>,
    ingress: Option<usize>,
    connection_cap: Option<ConnectionCap>,
}

/// The cap of each connection of a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionCap {
    rate: Bandwidth,
    burst: Bytes,
    room: Bytes,
    pub(crate) tally: usize,
}

impl ConnectionCap {
    /// Creates the link of a new connection.
    pub(crate) fn link(self) -> Link {
        let queue = Queue::new(Some(self.rate), self.room).with_burst(self.burst);
        Link::limiter(queue, self.tally)
    }
}

/// The links of one ordered pair of sites; the pair's own is the last.
#[derive(Debug, Clone)]
pub(crate) struct PairRoute {
    links: Vec<usize>,
    pub(crate) mtu: Bytes,
    pub(crate) icmp: bool,
}

impl PairRoute {
    /// Returns the pair's own link.
    pub(crate) fn own_link(&self) -> usize {
        *self.links.last().expect("a pair's route ends with the pair's own link")
    }
}

/// The next step of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// To this link.
    Link(usize),
    /// No link at this hop.
    Skip,
    /// To the destination host.
    Arrived,
}

impl Routes {
    /// Returns the pair from one host's site to another's; `None` when there is no route.
    pub(crate) fn pair_between(&self, from: HostIndex, to: HostIndex) -> Option<usize> {
        let from_host = self.hosts.get(usize::from(from.0))?;
        let to_host = self.hosts.get(usize::from(to.0))?;
        (from != to).then(|| from_host.site * self.site_count + to_host.site)
    }

    /// Returns the pair of two sites.
    pub(crate) fn pair_of_sites(&self, from: SiteIndex, to: SiteIndex) -> usize {
        usize::from(from.0) * self.site_count + usize::from(to.0)
    }

    pub(crate) fn connection_cap(&self, host: HostIndex) -> Option<ConnectionCap> {
        self.hosts[usize::from(host.0)].connection_cap
    }

    pub(crate) fn ingress(&self, host: u16) -> Option<usize> {
        self.hosts[usize::from(host)].ingress
    }

    /// Returns whether segments of this pair and host pass other links before the pair's own.
    pub(crate) fn has_links_before_pair(&self, segment: &Segment) -> bool {
        let host = &self.hosts[usize::from(segment.source)];
        self.pairs[segment.pair as usize].links.len() > 1
            || host.egress.is_some()
            || host.connection_cap.is_some()
    }

    /// Returns the step at the segment's hop.
    pub(crate) fn next(&self, segment: &Segment) -> Next {
        let optional = |link: Option<usize>| link.map_or(Next::Skip, Next::Link);
        if segment.hop == EGRESS_HOP {
            return optional(self.hosts[usize::from(segment.source)].egress);
        }
        let links = &self.pairs[segment.pair as usize].links;
        let place = usize::from(segment.hop - PAIR_HOP);
        match links.get(place) {
            Some(link) => Next::Link(*link),
            None if place == links.len() => {
                optional(self.hosts[usize::from(segment.destination)].ingress)
            }
            None => Next::Arrived,
        }
    }

    /// Sets the lead of each link that several pairs share to the least delay of those pairs.
    pub(crate) fn refresh_leads(&self, links: &mut [Link]) {
        let mut hosts_at = vec![0; self.site_count];
        let mut egresses_of = vec![Vec::new(); self.site_count];
        for host in &self.hosts {
            hosts_at[host.site] += 1;
            egresses_of[host.site].extend(host.egress);
        }
        let mut least: BTreeMap<usize, Nanos> = BTreeMap::new();
        for (index, pair) in self.pairs.iter().enumerate() {
            let (from, to) = (index / self.site_count, index % self.site_count);
            if from == to && hosts_at[from] < 2 {
                continue;
            }
            let delay = links[pair.own_link()].wire.delay;
            let before_own = &pair.links[..pair.links.len() - 1];
            for link in before_own.iter().chain(&egresses_of[from]) {
                let entry = least.entry(*link).or_insert(delay);
                *entry = delay.min(*entry);
            }
        }
        for (link, lead) in least {
            links[link].lead = Some(lead);
        }
    }
}

/// The parts of a network built from a topology.
pub(crate) struct Fabric {
    pub(crate) routes: Routes,
    pub(crate) links: Vec<Link>,
    pub(crate) names: Vec<LinkName>,
    pub(crate) tallies: Vec<Tally>,
}

/// Builds links and routes from a topology.
pub(crate) struct Builder<'a> {
    topology: &'a Topology,
    seed: u64,
    links: Vec<Link>,
    names: Vec<LinkName>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(topology: &'a Topology, seed: u64) -> Self {
        Self { topology, seed, links: Vec::new(), names: Vec::new() }
    }

    pub(crate) fn build(mut self) -> Fabric {
        let hosts = self.topology.hosts.iter().map(|host| self.host_links(host)).collect();
        let shared: Vec<(usize, usize)> =
            (0..self.topology.links.len()).map(|index| self.shared_link(index)).collect();
        let site_count = self.topology.sites.len();
        let mut pairs = Vec::with_capacity(site_count * site_count);
        for index in 0..site_count * site_count {
            pairs.push(self.pair_route(index / site_count, index % site_count, &shared));
        }
        let routes = Routes { site_count, hosts, pairs };
        let mut links = self.links;
        routes.refresh_leads(&mut links);
        let tallies = vec![Tally::default(); self.names.len()];
        Fabric { routes, links, names: self.names, tallies }
    }

    fn add(&mut self, name: LinkName, make: impl FnOnce(usize) -> Link) -> usize {
        let link = make(self.add_tally(name));
        self.links.push(link);
        self.links.len() - 1
    }

    fn add_tally(&mut self, name: LinkName) -> usize {
        self.names.push(name);
        self.names.len() - 1
    }

    fn host_links(&mut self, host: &Host) -> HostLinks {
        let room = |rate: Bandwidth| {
            host.queue.unwrap_or_else(|| rate.volume_in(CAP_QUEUE_SPAN).max(Bytes::new(150_000)))
        };
        let capped = |rate: Bandwidth, tally| {
            Link::limiter(Queue::new(Some(rate), room(rate)).with_burst(host.burst), tally)
        };
        let connection_cap = host.per_connection.map(|rate| ConnectionCap {
            rate,
            burst: host.burst,
            room: room(rate),
            tally: self.add_tally(LinkName::Connections(host.id.clone())),
        });
        let policed = host.egress.filter(|_| host.cap == CapFlavour::TailDrop);
        let egress = policed
            .map(|rate| self.add(LinkName::Egress(host.id.clone()), |tally| capped(rate, tally)));
        let ingress = host.ingress.map(|rate| {
            self.add(LinkName::Ingress(host.id.clone()), |tally| Link {
                is_ingress: true,
                ..capped(rate, tally)
            })
        });
        HostLinks { site: usize::from(host.site.0), egress, ingress, connection_cap }
    }

    fn shared_link(&mut self, index: usize) -> (usize, usize) {
        let shared = &self.topology.links[index];
        let seed = self.seed;
        let mut side = |name: LinkName| {
            let faults = Faults::new(&shared.loss, seed, &name.to_string());
            let queue = Queue::new(shared.rate, shared.queue).with_ecn(shared.ecn_threshold);
            self.add(name, |tally| Link {
                faults: Some(Box::new(faults)),
                ..Link::limiter(queue, tally)
            })
        };
        (
            side(LinkName::Forward(shared.name.clone())),
            side(LinkName::Backward(shared.name.clone())),
        )
    }

    fn pair_route(&mut self, from: usize, to: usize, shared: &[(usize, usize)]) -> PairRoute {
        let sites = &self.topology.sites;
        let pair = &self.topology.pairs[from * sites.len() + to];
        let name = LinkName::Pair(sites[from].id.clone(), sites[to].id.clone());
        let key = name.to_string();
        let faults = Faults::of_pair(pair, self.seed, &key);
        let wire = Wire::of_pair(pair, self.seed, &key);
        let queue = Queue::new(pair.rate, pair.queue).with_ecn(pair.ecn_threshold);
        let own = self.add(name, |tally| Link {
            faults: Some(Box::new(faults)),
            wire,
            ..Link::limiter(queue, tally)
        });
        let via = pair.via.iter().map(|(link, direction)| {
            let (forward, backward) = shared[usize::from(link.0)];
            if *direction == Direction::Forward { forward } else { backward }
        });
        PairRoute { links: via.chain([own]).collect(), mtu: pair.mtu, icmp: pair.icmp }
    }
}
