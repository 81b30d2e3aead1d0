//! The routes of a running gateway: the table, the health of every path in it, and the choice of a
//! path.
//!
//! A table is replaced as a whole. Paths that the new table has as well keep their health, and a
//! session keeps its path.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use tradewind_desired::{Hop, Route, RouteTable};
use tradewind_grant::{
    self as grant, Destination, DestinationRule, GrantError, Policy, PublicIdentity, Status,
};
use tradewind_stream::failure::Failure;
use tradewind_stream::process::live::Live;
use tradewind_stream::session::open_flows::OpenFlows;
use tradewind_units::{Ratio, Timestamp};

use super::health::{Health, State};
use super::names::Names;
use super::unreached::Unreached;

/// A path over relays.
#[derive(Debug)]
pub(super) struct RelayPath {
    pub(super) hops: Vec<Hop>,
    pub(super) route: grant::Route,
    /// True if it has an alternative and so is probed.
    pub(super) is_watched: bool,
    health: Arc<Mutex<Health>>,
    pub(super) unreached: Arc<Unreached>,
}

/// The identity of a path across tables.
type Key = Vec<(PublicIdentity, SocketAddr)>;

fn key(hops: &[Hop]) -> Key {
    hops.iter().map(|hop| (hop.identity, hop.address)).collect()
}

impl RelayPath {
    pub(super) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether both have the same last relay.
    fn ends_with(&self, other: &Self) -> bool {
        let last = |path: &Self| path.hops.last().map(|hop| hop.identity);
        last(self) == last(other)
    }

    /// Returns the names of its relays in order.
    pub(super) fn name(&self) -> String {
        let names: Vec<_> = self.hops.iter().map(|hop| hop.name.as_str()).collect();
        names.join(" > ")
    }

    /// Fails if a relay of the path has a name and no address yet.
    pub(super) fn check_placed(&self) -> Result<(), Failure> {
        let Some(hop) = self.hops.iter().find(|hop| !hop.is_placed()) else { return Ok(()) };
        let message = format!("relay `{}`: its name has no address yet", hop.name);
        Err(Failure::new(Status::NameNotFound, message).of_overlay())
    }

    /// Notes a failure of a session that can only be the path's fault.
    pub(super) fn blame(&self, now: Timestamp, cause: &str) {
        if self.is_watched {
            self.health().failed(now, cause);
        }
    }
}

/// One option to carry a flow.
#[derive(Debug, Clone)]
pub(super) enum PathOption {
    Refuse,
    Direct,
    Relays(Arc<RelayPath>),
}

impl PathOption {
    /// Returns its name in logs; `None` for a refusal.
    pub(super) fn name(&self) -> Option<String> {
        match self {
            Self::Refuse => None,
            Self::Direct => Some("direct".to_owned()),
            Self::Relays(path) => Some(path.name()),
        }
    }

    /// Returns what is dialled first for a session to `to`; `None` for a refusal.
    pub(super) fn dialled(&self, to: &Destination) -> Option<Destination> {
        match self {
            Self::Refuse => None,
            Self::Direct => Some(to.clone()),
            Self::Relays(path) => Some(Destination::Address(path.route.hops()[0].address)),
        }
    }

    fn state(&self, now: Timestamp) -> State {
        match self {
            Self::Relays(path) if path.is_watched => path.health().state(now),
            // Direct is not probed: that would dial the destination for nothing.
            _ => State::Good,
        }
    }

    /// Returns the rank among alternatives for a session to `to`.
    fn rank(&self, to: Option<&Destination>, now: Timestamp) -> u8 {
        match (self, to) {
            (Self::Relays(path), Some(to)) if path.unreached.holds(to, now) => State::Dead.rank(),
            _ => self.state(now).rank(),
        }
    }
}

/// A table and its paths.
#[derive(Debug)]
pub(super) struct Routing {
    pub(super) table: RouteTable,
    /// The policy for dials on direct routes.
    pub(super) policy: Policy,
    /// The options of each rule, in the table's order, the default's last.
    pub(super) rules: Vec<Vec<PathOption>>,
    paths: BTreeMap<Key, Arc<RelayPath>>,
}

impl Routing {
    fn new(
        table: RouteTable,
        watch_all: bool,
        old: Option<&Self>,
        now: Timestamp,
    ) -> Result<Self, GrantError> {
        let mut watched: BTreeMap<Key, bool> = BTreeMap::new();
        for (_, routes) in table.rules() {
            for route in routes {
                if let Route::Relays(hops) = route {
                    *watched.entry(key(hops)).or_default() |= watch_all || routes.len() > 1;
                }
            }
        }
        let mut paths = BTreeMap::new();
        for route in table.routes() {
            let Route::Relays(hops) = route else { continue };
            let key = key(hops);
            let known = old.and_then(|old| old.paths.get(&key)).filter(|path| path.is_watched);
            let (health, unreached) = known.map_or_else(
                || (Arc::new(Mutex::new(Health::new(now))), Arc::default()),
                |path| (Arc::clone(&path.health), Arc::clone(&path.unreached)),
            );
            let hop = |hop: &Hop| grant::Hop { address: hop.address, identity: hop.identity };
            let route = grant::Route::new(hops.iter().map(hop).collect())?;
            let (hops, is_watched) = (hops.clone(), watched[&key]);
            let path = RelayPath { hops, route, is_watched, health, unreached };
            paths.entry(key).or_insert_with(|| Arc::new(path));
        }
        let option = |route: &Route| match route {
            Route::Refuse => PathOption::Refuse,
            Route::Direct => PathOption::Direct,
            Route::Relays(hops) => PathOption::Relays(Arc::clone(&paths[&key(hops)])),
        };
        let rules = table.rules().map(|(_, routes)| routes.iter().map(option).collect()).collect();
        let policy = direct_policy(&table);
        Ok(Self { table, policy, rules, paths })
    }

    /// Allows direct routes to loopback addresses if `is_allowed`.
    fn set_loopback(&mut self, is_allowed: bool) {
        self.policy.allow_loopback = is_allowed;
        if is_allowed {
            self.policy.destinations.extend(rules(["127.0.0.0/8:*", "[::1]/128:*"]));
        }
    }

    /// Returns the options for `destination`, in the table's order of preference.
    pub(super) fn options(&self, destination: &Destination) -> &[PathOption] {
        &self.rules[self.table.routes_to(destination).0]
    }

    /// Returns the paths over relays, each once.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Arc<RelayPath>> {
        self.paths.values()
    }

    /// Sets for every path the least round trip of its good alternatives. Probes end at a path's
    /// last relay, so only paths with the same last relay are comparable: the rest of the way to
    /// the destination is not measured.
    pub(super) fn compare(&self, now: Timestamp) {
        for path in self.paths.values().filter(|path| path.is_watched) {
            let with_it = |options: &&Vec<PathOption>| {
                options
                    .iter()
                    .any(|one| matches!(one, PathOption::Relays(other) if Arc::ptr_eq(path, other)))
            };
            let others =
                self.rules.iter().filter(with_it).flatten().filter_map(|option| match option {
                    PathOption::Relays(other)
                        if !Arc::ptr_eq(path, other) && path.ends_with(other) =>
                    {
                        let mut health = other.health();
                        (health.state(now) == State::Good).then(|| health.low()).flatten()
                    }
                    _ => None,
                });
            let least = others.min();
            path.health().set_alternative(least);
        }
    }
}

fn rules(texts: [&str; 2]) -> [DestinationRule; 2] {
    texts.map(|text| text.parse().expect("a rule"))
}

/// Returns the policy for a gateway's own dials: public addresses, and private ones within the
/// range of a direct route; never its relays.
fn direct_policy(table: &RouteTable) -> Policy {
    let public = rules(["0.0.0.0/0:*", "[::]/0:*"]);
    let is_direct = |(rule, routes): (Option<&DestinationRule>, &[Route])| {
        rule.filter(|_| routes.contains(&Route::Direct)).cloned()
    };
    let hops = table.routes().filter_map(|route| match route {
        Route::Relays(hops) => Some(hops),
        Route::Refuse | Route::Direct => None,
    });
    let relays: BTreeSet<SocketAddr> = hops.flatten().map(|hop| hop.address).collect();
    Policy {
        destinations: public.into_iter().chain(table.rules().filter_map(is_direct)).collect(),
        relays: relays.into_iter().collect(),
        ..Policy::default()
    }
}

/// Returns the order in which to try `options`: the table's order, but slow paths after good ones,
/// and last those that are dead or recently could not reach `to`.
pub(super) fn order(
    options: &[PathOption],
    to: Option<&Destination>,
    now: Timestamp,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..options.len()).collect();
    if options.len() > 1 {
        order.sort_by_cached_key(|index| (options[*index].rank(to, now), *index));
    }
    order
}

/// Draws a session into the control arm if `lot`, a random number, is within `share`: moves the
/// direct path to the front of `order`. Only sessions whose first path is the route's own and over
/// relays are drawn, and only where there is a direct path.
pub(super) fn draw_control(
    options: &[PathOption],
    order: &mut [usize],
    share: Ratio,
    lot: u32,
) -> bool {
    let is_drawn = f64::from(lot) < share.as_f64() * (f64::from(u32::MAX) + 1.0);
    let is_overlay = order.first() == Some(&0) && matches!(options[0], PathOption::Relays(_));
    let direct = order.iter().position(|index| matches!(options[*index], PathOption::Direct));
    let Some(place) = direct.filter(|_| is_drawn && is_overlay) else { return false };
    order[..=place].rotate_right(1);
    true
}

/// The routes in force. A reader that holds the current [`Routing`] sees one whole table.
#[derive(Debug)]
pub(super) struct Routes {
    live: Live<Routing>,
    begun: Instant,
    watches_all: bool,
    /// Sessions that tried another path before the destination was dialled.
    retries: AtomicU64,
    /// The open sessions of each flow.
    pub(super) open_flows: OpenFlows,
    /// The addresses of relays that are given by name.
    pub(super) names: Names,
    allow_loopback: bool,
}

impl Routes {
    /// Creates the routes of `table`. Paths that have an alternative are probed; with `watch_all`,
    /// all paths.
    pub(super) fn new(table: RouteTable, watch_all: bool) -> Result<Self, GrantError> {
        Self::with_loopback(table, watch_all, false)
    }

    /// Creates them likewise; with `allow_loopback`, direct routes may lead to loopback: for tests
    /// and labs.
    pub(super) fn with_loopback(
        table: RouteTable,
        watch_all: bool,
        allow_loopback: bool,
    ) -> Result<Self, GrantError> {
        let mut routing = Routing::new(table, watch_all, None, Timestamp::ZERO)?;
        routing.set_loopback(allow_loopback);
        Ok(Self {
            live: Live::new(routing),
            begun: Instant::now(),
            watches_all: watch_all,
            retries: AtomicU64::new(0),
            open_flows: OpenFlows::default(),
            names: Names::default(),
            allow_loopback,
        })
    }

    pub(super) fn current(&self) -> Arc<Routing> {
        self.live.current()
    }

    /// Prepares another table, keeping the health of the paths that it shares with the one in
    /// force.
    pub(super) fn prepare(&self, table: RouteTable) -> Result<Routing, GrantError> {
        let current = self.current();
        let table = self.names.place(&table);
        let mut routing = Routing::new(table, self.watches_all, Some(&current), self.now())?;
        routing.set_loopback(self.allow_loopback);
        Ok(routing)
    }

    /// Replaces the table by itself with new addresses, if those of named relays have changed.
    pub(super) fn place_again(&self) {
        loop {
            let current = self.current();
            if self.names.place(&current.table) == current.table {
                return;
            }
            let routing = match self.prepare(current.table.clone()) {
                Ok(routing) => routing,
                Err(error) => return tracing::error!("routes: {error}"),
            };
            // Does not overwrite a table that was set meanwhile.
            if self.live.replace_if(&current, routing) {
                return;
            }
        }
    }

    /// Puts another table in force; open sessions keep their paths.
    pub(super) fn replace(&self, routing: Routing) {
        self.live.replace(routing);
    }

    pub(super) fn count_retry(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    /// Returns the number of times that a session left a path for another one.
    pub(super) fn retries(&self) -> u64 {
        self.retries.load(Relaxed)
    }

    /// Returns a watch on the number of times that the table was replaced.
    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.live.version()
    }

    /// Returns the time since the gateway's start, as used by the health.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.begun.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_grant::IdentityKey;
    use tradewind_units::Duration;

    fn hop(number: u8) -> Hop {
        Hop {
            name: format!("relay-{number}").parse().unwrap(),
            address: ([192, 0, 2, number], 7000).into(),
            identity: IdentityKey::from_entropy([number; 32]).public(),
        }
    }

    fn table(paths: &[&[u8]], direct: bool) -> RouteTable {
        let relays = |path: &&[u8]| Route::Relays(path.iter().map(|number| hop(*number)).collect());
        let mut routes: Vec<_> = paths.iter().map(relays).collect();
        routes.extend(direct.then_some(Route::Direct));
        RouteTable::with_fallbacks(Vec::new(), routes).unwrap()
    }

    #[test]
    fn paths_are_ordered_by_health() {
        let routes = Routes::new(table(&[&[1, 2], &[3]], true), false).unwrap();
        let routing = routes.current();
        let now = Timestamp::ZERO + Duration::from_secs(1);
        let options = routing.options(&"198.51.100.1:80".parse().unwrap());
        let path = |index: usize| match &options[index] {
            PathOption::Relays(path) => path,
            other => panic!("{other:?}"),
        };
        assert_eq!(order(options, None, now), [0, 1, 2]);
        path(0).blame(now, "no route to host");
        assert_eq!(order(options, None, now), [1, 2, 0]);
        path(1).blame(now, "no route to host");
        assert_eq!(order(options, None, now), [2, 0, 1], "direct is the last resort");
    }

    #[test]
    fn control_arm_is_drawn_by_its_share_where_there_is_a_direct_path() {
        let share = |value| Ratio::new(value).unwrap();
        let draw = |routes: &Routes, share: Ratio, lot: u32| {
            let (routing, now) = (routes.current(), routes.now());
            let options = routing.options(&"198.51.100.1:80".parse().unwrap());
            let mut order = order(options, None, now);
            let before = order.clone();
            let is_drawn = draw_control(options, &mut order, share, lot);
            assert_eq!(is_drawn, order != before);
            (is_drawn, order)
        };
        let routes = Routes::new(table(&[&[1, 2], &[3]], true), false).unwrap();
        assert_eq!(draw(&routes, share(0.5), 7), (true, vec![2, 0, 1]));
        let lots = || (0..1000).map(|number| number * (u32::MAX / 1000));
        for (value, expected) in [(0.0, 0), (0.02, 20), (0.5, 500), (1.0, 1000)] {
            let drawn = lots().filter(|lot| draw(&routes, share(value), *lot).0).count();
            assert!(drawn.abs_diff(expected) <= 1, "{drawn} of 1000 by {value}");
        }
        // Its first path is dead, so it would take another one: that shows nothing of the plan.
        let routing = routes.current();
        let options = routing.options(&"198.51.100.1:80".parse().unwrap());
        let PathOption::Relays(first) = &options[0] else { panic!("{:?}", options[0]) };
        first.blame(routes.now(), "no route to host");
        assert!(!draw(&routes, Ratio::ONE, 0).0);
        let no_direct = Routes::new(table(&[&[1, 2], &[3]], false), false).unwrap();
        let only_direct = Routes::new(table(&[], true), false).unwrap();
        for routes in [no_direct, only_direct] {
            assert!(lots().all(|lot| !draw(&routes, Ratio::ONE, lot).0));
        }
    }

    #[test]
    fn unreached_destination_lowers_a_path() {
        let routes = Routes::new(table(&[&[1, 2], &[3]], false), false).unwrap();
        let routing = routes.current();
        let to: Destination = "198.51.100.1:80".parse().unwrap();
        let options = routing.options(&to);
        let PathOption::Relays(first) = &options[0] else { panic!("{:?}", options[0]) };
        let now = Timestamp::ZERO + Duration::from_secs(1);
        first.unreached.note(&to, now);
        assert_eq!(order(options, Some(&to), now), [1, 0]);
        assert_eq!(order(options, Some(&"198.51.100.1:81".parse().unwrap()), now), [0, 1]);
        assert_eq!(order(options, None, now), [0, 1]);
    }

    #[test]
    fn round_trips_compare_only_same_last_relay() {
        for (other, expected) in [(&[4, 2][..], State::Slow), (&[3], State::Good)] {
            let routes = Routes::new(table(&[&[1, 2], other], false), false).unwrap();
            let routing = routes.current();
            let options = routing.options(&"198.51.100.1:80".parse().unwrap());
            let at = |millis| Timestamp::ZERO + Duration::from_millis(millis);
            let paths = options.iter().map(|option| match option {
                PathOption::Relays(path) => path,
                other => panic!("{other:?}"),
            });
            for (sent, (path, rtt)) in (0..5)
                .flat_map(|probe| paths.clone().zip([220, 60]).map(move |path| (probe * 400, path)))
            {
                let legs = vec![Duration::from_millis(rtt)];
                path.health().answered(0, at(sent), at(sent + rtt), legs);
                routing.compare(at(sent + rtt));
            }
            let first = paths.clone().next().unwrap();
            let state = first.health().state(at(2000));
            assert_eq!(state, expected, "beside a path over {other:?}");
        }
    }

    #[test]
    fn health_outlives_a_reload() {
        let routes = Routes::new(table(&[&[1], &[2]], false), false).unwrap();
        let now = Timestamp::ZERO + Duration::from_secs(1);
        for path in routes.current().paths() {
            path.blame(now, "no route to host");
        }
        let old = routes.current();
        routes.replace(routes.prepare(table(&[&[3], &[1]], true)).unwrap());
        let routing = routes.current();
        let to = "198.51.100.1:80".parse().unwrap();
        assert_eq!(order(routing.options(&to), None, now), [0, 2, 1], "the old path is still dead");
        assert_eq!(
            order(old.options(&to), None, now),
            [0, 1],
            "whoever holds the old table sees it whole"
        );
    }

    #[test]
    fn only_path_is_never_blamed() {
        let routes = Routes::new(table(&[&[1]], false), false).unwrap();
        let routing = routes.current();
        let path = routing.paths().next().unwrap();
        path.blame(Timestamp::ZERO, "no route to host");
        assert_eq!(path.health().state(Timestamp::ZERO), State::Unproven);
    }
}
