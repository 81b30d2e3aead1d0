//! The paths that a gateway puts flows on: rules by destination, of which the first match decides.
//! A rule holds its best route first, then its fallbacks in order.
//!
//! ```toml
//! default = "refuse"          # or "direct", or names of relays
//! default_fallback = []       # what to take instead, in order; "direct" may be the last
//!
//! [[relay]]
//! name = "hamina"
//! address = "192.0.2.1:7000"   # or a name, "relay.example.com:7000", which the gateway looks up
//! identity = "twid_..."
//!
//! [[relay]]
//! name = "tokyo"
//! address = "192.0.2.2:7000"
//! identity = "twid_..."
//!
//! [[route]]
//! destination = "198.51.100.0/24:*"
//! via = ["hamina"]
//! fallback = [["tokyo"], "direct"]
//! ```

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_grant::header::HOP_LIMIT;
use tradewind_grant::{Destination, DestinationRule, PublicIdentity};
use tradewind_units::RelayId;

/// Most relays of a path, as many as a hop header holds.
pub const MAX_RELAYS: usize = HOP_LIMIT;
/// Most routes of one rule, the first and its fallbacks. Chosen: each relayed one is probed all the
/// time, and when four have failed, more than paths has been lost.
pub const MAX_ROUTES: usize = 4;

/// One relay of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hop {
    /// Its name, for people.
    pub name: RelayId,
    /// Its address.
    #[serde(deserialize_with = "tradewind_units::address::one")]
    pub address: SocketAddr,
    /// The identity that it must prove.
    pub identity: PublicIdentity,
}

impl Hop {
    /// Returns whether its address is known: that of a relay given by name is unspecified until it
    /// is resolved.
    #[must_use]
    pub fn is_placed(&self) -> bool {
        !self.address.ip().is_unspecified()
    }
}

/// The route of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Refused.
    Refuse,
    /// Direct, without relays.
    Direct,
    /// Over these relays in this order: one to [`MAX_RELAYS`], without repetition.
    Relays(Vec<Hop>),
}

/// The reason why a route table or a plan cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DesiredError {
    /// Two relays have one name.
    #[error("relay `{0}` is listed twice")]
    RelayTwice(RelayId),
    /// A route names a relay that is not listed.
    #[error("{route}: relay `{relay}` is not listed under `relay`")]
    UnknownRelay {
        /// The route, by its destination.
        route: String,
        /// The name.
        relay: RelayId,
    },
    /// The inventory has no destination for a flow of the plan.
    #[error("flow `{0}` is planned, but where it goes is not said: name it in `[destinations]`")]
    UnknownFlow(tradewind_units::FlowId),
    /// The inventory lacks a packet flow of the plan.
    #[error("packet flow `{0}` is planned, but no `[[packet]]` names it as its `flow`")]
    UnknownPacketFlow(tradewind_units::FlowId),
    /// The inventory lacks the packet address of a relay that a packet flow takes.
    #[error(
        "packet flow `{flow}`: relay `{relay}` is not listed under `packet_relay`, \
         which says where \
         it takes packets"
    )]
    UnknownPacketRelay {
        /// The flow.
        flow: tradewind_units::FlowId,
        /// The relay.
        relay: RelayId,
    },
    /// A price of packet flows is missing.
    #[error(transparent)]
    Model(#[from] tradewind_model::ModelError),
    /// A path contains one relay twice.
    #[error("{route}: relay `{relay}` is on the path twice")]
    Loop {
        /// The route, by its destination.
        route: String,
        /// The name.
        relay: RelayId,
    },
    /// A path of no relays, or of too many.
    #[error(
        "{route}: a path has 1 to {MAX_RELAYS} relays, not {count}; without relays it is `direct`"
    )]
    PathLength {
        /// The route, by its destination.
        route: String,
        /// Its length.
        count: usize,
    },
    /// Too many routes to one destination.
    #[error("{route}: {count} routes; expected at most {MAX_ROUTES}, fallbacks included")]
    RouteCount {
        /// The route, by its destination.
        route: String,
        /// Number of routes.
        count: usize,
    },
    /// A fallback that can never be used, or that is there already.
    #[error("{route}: {}: {problem}", place(*number))]
    Fallback {
        /// The route, by its destination.
        route: String,
        /// Number of the fallback, from 1; 0 for the first route.
        number: usize,
        /// Problem of the fallback.
        problem: &'static str,
    },
    /// A word that is no route.
    #[error("{route}: expected `direct`, `refuse` or a list of relays, not `{word}`")]
    Word {
        /// The route, by its destination.
        route: String,
        /// The word.
        word: String,
    },
}

/// The routes of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(try_from = "TableText", into = "TableText")]
pub struct RouteTable {
    rules: Vec<(DestinationRule, Vec<Route>)>,
    default: Vec<Route>,
    /// Names that the relays' addresses were given as, if they are names.
    names: BTreeMap<RelayId, Destination>,
}

impl Default for RouteTable {
    /// Returns a table that refuses everything.
    fn default() -> Self {
        Self { rules: Vec::new(), default: vec![Route::Refuse], names: BTreeMap::new() }
    }
}

impl RouteTable {
    /// Creates a table of `rules`, of which the first match decides, and a `default`; without
    /// fallbacks.
    ///
    /// # Errors
    /// When a path is empty, too long, or contains one relay twice.
    pub fn new(rules: Vec<(DestinationRule, Route)>, default: Route) -> Result<Self, DesiredError> {
        let rules = rules.into_iter().map(|(rule, route)| (rule, vec![route])).collect();
        Self::with_fallbacks(rules, vec![default])
    }

    /// Creates a table whose rules hold several routes each, the best first.
    ///
    /// # Errors
    /// As [`RouteTable::new`]; also when a rule has no route or more than [`MAX_ROUTES`], has one
    /// twice, combines `refuse` with others, or goes on after `direct`.
    pub fn with_fallbacks(
        rules: Vec<(DestinationRule, Vec<Route>)>,
        default: Vec<Route>,
    ) -> Result<Self, DesiredError> {
        for (rule, routes) in &rules {
            check_all(&route_name(rule), routes)?;
        }
        check_all("default", &default)?;
        Ok(Self { rules, default, names: BTreeMap::new() })
    }

    /// Returns the first route of a flow to `destination`. A name is matched as it is, never
    /// resolved.
    #[must_use]
    pub fn route(&self, destination: &Destination) -> &Route {
        let routes = self.routes_to(destination).1;
        routes.first().expect("a rule has at least one route")
    }

    /// Returns the routes of a flow to `destination`, the best first, and the index of the matching
    /// rule: the number of rules for the default.
    #[must_use]
    pub fn routes_to(&self, destination: &Destination) -> (usize, &[Route]) {
        let covers = |rule: &DestinationRule| match destination {
            Destination::Address(address) => rule.covers_address(*address),
            Destination::Name { name, port } => rule.covers_name(name, *port),
        };
        let found = self.rules.iter().enumerate().find(|(_, (rule, _))| covers(rule));
        found.map_or((self.rules.len(), &self.default), |(index, (_, routes))| (index, routes))
    }

    /// Returns the names that relays' addresses were given as, with their ports.
    pub fn names(&self) -> impl Iterator<Item = &Destination> {
        self.names.values()
    }

    /// Returns the table with the addresses of named relays replaced by those that `find` returns;
    /// a relay that it does not find gets the unspecified address.
    #[must_use]
    pub fn placed(&self, find: impl Fn(&Destination) -> Option<SocketAddr>) -> Self {
        let place = |hop: &mut Hop| {
            if let Some(name) = self.names.get(&hop.name) {
                hop.address = find(name).unwrap_or_else(|| nowhere(name));
            }
        };
        let mut placed = self.clone();
        let ruled = placed.rules.iter_mut().flat_map(|(_, routes)| routes);
        for route in ruled.chain(&mut placed.default) {
            if let Route::Relays(hops) = route {
                hops.iter_mut().for_each(place);
            }
        }
        placed
    }

    /// Returns all routes, the default's last.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.rules.iter().flat_map(|(_, routes)| routes).chain(&self.default)
    }

    /// Returns every rule with its routes; the default, which has no destination, is the last.
    pub fn rules(&self) -> impl Iterator<Item = (Option<&DestinationRule>, &[Route])> {
        let rules = self.rules.iter().map(|(rule, routes)| (Some(rule), routes.as_slice()));
        rules.chain([(None, self.default.as_slice())])
    }
}

/// Returns the address of a relay that is not yet resolved.
fn nowhere(name: &Destination) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, name.port()).into()
}

/// Returns the name of the route with this number, for errors.
fn place(number: usize) -> String {
    match number {
        0 => "first".to_owned(),
        number => format!("fallback {number}"),
    }
}

fn route_name(rule: &DestinationRule) -> String {
    format!("route to `{rule}`")
}

fn check_all(name: &str, routes: &[Route]) -> Result<(), DesiredError> {
    let count = routes.len();
    if !(1..=MAX_ROUTES).contains(&count) {
        return Err(DesiredError::RouteCount { route: name.to_owned(), count });
    }
    for (number, route) in routes.iter().enumerate() {
        check(name, route)?;
        let problem = match route {
            _ if routes[..number].contains(route) => "this route is there already",
            Route::Refuse if count > 1 => "`refuse` stands alone",
            Route::Direct if number + 1 < count => {
                "nothing follows `direct`, which never fails over"
            }
            _ => continue,
        };
        return Err(DesiredError::Fallback { route: name.to_owned(), number, problem });
    }
    Ok(())
}

fn check(name: &str, route: &Route) -> Result<(), DesiredError> {
    let Route::Relays(hops) = route else { return Ok(()) };
    if !(1..=MAX_RELAYS).contains(&hops.len()) {
        return Err(DesiredError::PathLength { route: name.to_owned(), count: hops.len() });
    }
    for (index, hop) in hops.iter().enumerate() {
        if hops[..index].iter().any(|earlier| earlier.identity == hop.identity) {
            let relay = hop.name.clone();
            return Err(DesiredError::Loop { route: name.to_owned(), relay });
        }
    }
    Ok(())
}

/// The routes of flows.
#[derive(Debug, Clone, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
struct TableText {
    /// The route of destinations that no `route` covers: `direct`, `refuse`, or names of relays.
    #[serde(default = "refuse")]
    default: Via,
    /// The routes to take instead of `default`, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    default_fallback: Vec<Via>,
    /// The relays that routes name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    relay: Vec<RelayText>,
    /// The routes by destination; the first that covers a destination decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    route: Vec<RouteText>,
}

/// A relay that routes name.
#[derive(Debug, Clone, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
struct RelayText {
    /// Its name in routes.
    name: RelayId,
    /// Its address, or a name with a port, which the gateway looks up.
    address: Destination,
    /// The identity that it must prove.
    identity: PublicIdentity,
}

/// The route to some destinations.
#[derive(Debug, Clone, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
struct RouteText {
    /// The destinations: a name or a range of addresses, with ports, as applications request them.
    destination: DestinationRule,
    /// The route: `direct`, `refuse`, or names of 1 to 8 relays in order.
    via: Via,
    /// The routes to take instead, in order, at most three; `direct` may be the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fallback: Vec<Via>,
}

/// A route as a word or by its relays.
#[derive(Debug, Clone, Deserialize, JsonSchema, Serialize)]
#[serde(untagged, expecting = "expected `direct`, `refuse` or a list of relays' names")]
#[schemars(title = "`direct`, `refuse` or names")]
enum Via {
    Word(#[schemars(regex(pattern = "^(direct|refuse)$"))] String),
    Relays(Vec<RelayId>),
}

fn refuse() -> Via {
    Via::Word("refuse".to_owned())
}

impl TryFrom<TableText> for RouteTable {
    type Error = DesiredError;

    fn try_from(text: TableText) -> Result<Self, DesiredError> {
        let (mut relays, mut names) = (BTreeMap::new(), BTreeMap::new());
        for RelayText { name, address: given, identity } in text.relay {
            let address = match &given {
                Destination::Address(address) => *address,
                Destination::Name { .. } => nowhere(&given),
            };
            if matches!(given, Destination::Name { .. }) {
                names.insert(name.clone(), given);
            }
            let hop = Hop { name: name.clone(), address, identity };
            if relays.insert(name.clone(), hop).is_some() {
                return Err(DesiredError::RelayTwice(name));
            }
        }
        let route = |name: &str, via: Via| match via {
            Via::Word(word) if word == "direct" => Ok(Route::Direct),
            Via::Word(word) if word == "refuse" => Ok(Route::Refuse),
            Via::Word(word) => Err(DesiredError::Word { route: name.to_owned(), word }),
            Via::Relays(names) => {
                let hop = |relay: RelayId| {
                    relays
                        .get(&relay)
                        .cloned()
                        .ok_or_else(|| DesiredError::UnknownRelay { route: name.to_owned(), relay })
                };
                names.into_iter().map(hop).collect::<Result<_, _>>().map(Route::Relays)
            }
        };
        let routes = |name: &str, first: Via, others: Vec<Via>| {
            let all = [first].into_iter().chain(others);
            all.map(|via| route(name, via)).collect::<Result<Vec<_>, _>>()
        };
        let rule = |text: RouteText| {
            let routes = routes(&route_name(&text.destination), text.via, text.fallback)?;
            Ok((text.destination, routes))
        };
        let rules = text.route.into_iter().map(rule).collect::<Result<_, DesiredError>>()?;
        let default = routes("default", text.default, text.default_fallback)?;
        Ok(Self { names, ..Self::with_fallbacks(rules, default)? })
    }
}

impl From<RouteTable> for TableText {
    fn from(table: RouteTable) -> Self {
        let RouteTable { rules, default, names } = table;
        let mut relays = BTreeMap::new();
        let mut via = |route: Route| match route {
            Route::Direct => Via::Word("direct".to_owned()),
            Route::Refuse => refuse(),
            Route::Relays(hops) => Via::Relays(
                hops.into_iter()
                    .map(|hop| {
                        let Hop { name, address, identity } = hop;
                        let given = names.get(&name).cloned();
                        let address = given.unwrap_or(Destination::Address(address));
                        let text = RelayText { name: name.clone(), address, identity };
                        relays.insert(name.clone(), text);
                        name
                    })
                    .collect(),
            ),
        };
        let mut split = |routes: Vec<Route>| {
            let mut routes = routes.into_iter().map(&mut via);
            (routes.next().unwrap_or_else(refuse), routes.collect())
        };
        let rule = |(destination, routes)| {
            let (via, fallback) = split(routes);
            RouteText { destination, via, fallback }
        };
        let route = rules.into_iter().map(rule).collect();
        let (default, default_fallback) = split(default);
        Self { default, default_fallback, relay: relays.into_values().collect(), route }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_grant::IdentityKey;

    fn relays() -> String {
        ["hamina", "tokyo"]
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let identity = IdentityKey::from_entropy([index as u8 + 1; 32]).public();
                format!(
                    "[[relay]]\nname = '{name}'\naddress = '192.0.2.{index}:7000'\n\
                     identity = '{identity}'\n"
                )
            })
            .collect()
    }

    fn parse(rest: &str) -> Result<RouteTable, String> {
        let (default, routes) = rest.split_at(rest.find("[[route]]").unwrap_or(rest.len()));
        toml::from_str(&format!("{default}\n{}{routes}", relays()))
            .map_err(|error: toml::de::Error| error.message().to_owned())
    }

    fn names(route: &Route) -> Vec<&str> {
        match route {
            Route::Relays(hops) => hops.iter().map(|hop| hop.name.as_str()).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn first_matching_rule_decides() {
        let table = parse(
            "default = 'direct'
            [[route]]
            destination = '198.51.100.0/24:80'
            via = ['hamina', 'tokyo']
            [[route]]
            destination = '198.51.100.0/24:*'
            via = ['tokyo']
            [[route]]
            destination = '*.example.com:443'
            via = 'refuse'",
        )
        .unwrap();
        let route = |text: &str| table.route(&text.parse().unwrap());
        assert_eq!(names(route("198.51.100.7:80")), ["hamina", "tokyo"]);
        assert_eq!(names(route("198.51.100.7:81")), ["tokyo"]);
        assert_eq!(route("www.example.com:443"), &Route::Refuse);
        assert_eq!(route("203.0.113.1:80"), &Route::Direct);
    }

    #[test]
    fn rule_with_ordered_routes_round_trips() {
        let table = parse(
            "default = ['tokyo']\ndefault_fallback = ['direct']
            [[route]]
            destination = '10.0.0.0/8:*'
            via = ['hamina', 'tokyo']
            fallback = [['tokyo'], 'direct']",
        )
        .unwrap();
        let (rule, routes) = table.routes_to(&"10.1.2.3:80".parse().unwrap());
        assert_eq!((rule, names(&routes[0])), (0, vec!["hamina", "tokyo"]));
        assert_eq!((names(&routes[1]), &routes[2]), (vec!["tokyo"], &Route::Direct));
        let (rule, routes) = table.routes_to(&"192.0.2.1:80".parse().unwrap());
        assert_eq!((rule, routes.len()), (1, 2), "the default");
        let text = toml::to_string(&table).unwrap();
        assert_eq!(toml::from_str::<RouteTable>(&text).unwrap(), table, "{text}");
    }

    #[test]
    fn empty_table_refuses_everything() {
        let table: RouteTable = toml::from_str("").unwrap();
        assert_eq!(table.route(&"192.0.2.1:80".parse().unwrap()), &Route::Refuse);
    }

    #[test]
    fn table_survives_a_round_trip() {
        let table = parse(
            "default = ['tokyo']\n[[route]]\ndestination = '10.0.0.0/8:*'\n\
             via = ['hamina', 'tokyo']",
        )
        .unwrap();
        let text = toml::to_string(&table).unwrap();
        assert_eq!(toml::from_str::<RouteTable>(&text).unwrap(), table, "{text}");
    }

    #[test]
    fn named_relay_has_no_address_until_resolved() {
        let text = format!("default = ['hamina', 'tokyo']\n{}", relays());
        let named = text.replace("192.0.2.1:7000", "Tokyo.example.com:7001");
        let table: RouteTable = toml::from_str(&named).unwrap();
        let hops = |table: &RouteTable| match table.routes().next() {
            Some(Route::Relays(hops)) => hops.clone(),
            other => panic!("{other:?}"),
        };
        let placed: Vec<_> = hops(&table).iter().map(Hop::is_placed).collect();
        assert_eq!(placed, [true, false]);
        let names: Vec<_> = table.names().map(ToString::to_string).collect();
        assert_eq!(names, ["tokyo.example.com:7001"]);
        let at: SocketAddr = "198.51.100.9:7001".parse().unwrap();
        let found = table.placed(|name| (name.port() == 7001).then_some(at));
        assert_eq!(hops(&found)[1].address, at);
        assert_eq!(hops(&found)[0], hops(&table)[0]);
        assert_eq!(found.placed(|_| None), table, "gone again");
        let text = toml::to_string(&found).unwrap();
        assert_eq!(toml::from_str::<RouteTable>(&text).unwrap(), table, "{text}");
        let wrong = named.replace("Tokyo.example.com:7001", "tokyo.example.com");
        let error = toml::from_str::<RouteTable>(&wrong).err().unwrap();
        assert!(error.message().contains("`address:port` or `name:port`"), "{error}");
    }

    #[test]
    fn invalid_tables_are_refused() {
        for (text, expected) in [
            ("default = ['lima']", "default: relay `lima` is not listed under `relay`"),
            ("default = ['tokyo', 'tokyo']", "default: relay `tokyo` is on the path twice"),
            (
                "default = 'fast'",
                "default: expected `direct`, `refuse` or a list of relays, not `fast`",
            ),
            (
                "default = 'direct'\n[[route]]\ndestination = '10.0.0.0/8:*'\nvia = []",
                "route to `10.0.0.0/8:*`: a path has 1 to 8 relays, not 0; \
                 without relays it is `direct`",
            ),
            (
                "default = ['tokyo']\ndefault_fallback = [['hamina'], ['tokyo']]",
                "default: fallback 2: this route is there already",
            ),
            (
                "default = 'direct'\ndefault_fallback = [['hamina']]",
                "default: first: nothing follows `direct`, which never fails over",
            ),
            (
                "default = ['tokyo']\ndefault_fallback = ['refuse']",
                "default: fallback 1: `refuse` stands alone",
            ),
            (
                "default = ['tokyo']\ndefault_fallback = [['lima']]",
                "default: relay `lima` is not listed under `relay`",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
    }
}
