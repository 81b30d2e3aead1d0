//! The kernel's real routes, in a namespace made for the test.

use super::*;
use crate::iproute::{Tool, batch};
use crate::netns::Namespace;
use crate::skipped;

fn windows(congestion: u32) -> Windows {
    Windows { congestion: Segments::new(congestion).unwrap(), receive: None }
}

/// Runs `test` on routes of a namespace with two links; reports if none can be made.
fn in_namespace(name: &str, test: impl FnOnce(&Namespace, &mut Routes) + Send) {
    let may = crate::capability::may_make_networks();
    let Some(namespace) = may.then(Namespace::create).and_then(Result::ok) else {
        skipped(&format!("{name}: no right to make network namespaces"));
        return;
    };
    let lines = [
        "link add wa type veth peer name wb",
        "addr add 10.1.0.1/24 dev wa",
        "addr add 10.2.0.1/24 dev wb",
        "addr add 2001:db8:1::1/64 dev wa nodad",
        "link set lo up",
        "link set wa up",
        "link set wb up",
        "route add default via 10.1.0.254 mtu 1400",
        "route add 10.9.0.0/16 nexthop via 10.1.0.2 weight 2 nexthop via 10.2.0.2",
        "route add 10.8.0.0/16 via 10.1.0.3 initcwnd 60",
        "route add 10.7.7.7/32 via 10.1.0.4",
        "route add 2001:db8:f::/48 via 2001:db8:1::2",
        "route add 2001:db8:e::/48 nexthop via 2001:db8:1::2 dev wa \
         nexthop via 2001:db8:1::3 dev wa",
        "nexthop add id 7 via 10.1.0.9 dev wa",
        "route add 10.6.0.0/16 nhid 7",
        "route add 10.4.0.0/16 via 10.44.0.1 dev wa onlink",
    ];
    ip(&namespace, &lines);
    let mut routes = namespace.run(Routes::open).unwrap().unwrap();
    test(&namespace, &mut routes);
}

fn ip(namespace: &Namespace, lines: &[&str]) {
    let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    batch(namespace, Tool::Ip, &lines).unwrap();
}

/// Returns our routes as printed by `ip route`.
fn shown(namespace: &Namespace, family: &str) -> String {
    let show = || {
        let arguments = [family, "route", "show", "proto", "82"];
        std::process::Command::new("ip").args(arguments).output().unwrap().stdout
    };
    String::from_utf8(namespace.run(show).unwrap()).unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn copy_has_next_hops_and_metrics() {
    in_namespace("copy_has_next_hops_and_metrics", |namespace, routes| {
        assert_eq!(routes.set(net("10.9.1.2/32"), windows(80)).unwrap(), Placed::Set);
        let ecmp = shown(namespace, "-4");
        for part in
            ["10.9.1.2", "initcwnd 80", "via 10.1.0.2 dev wa weight 2", "via 10.2.0.2 dev wb"]
        {
            assert!(ecmp.contains(part), "{part} in {ecmp}");
        }
        routes.remove(net("10.9.1.2/32")).unwrap();
        assert_eq!(shown(namespace, "-4"), "");
        routes.set(net("192.0.2.0/28"), windows(40)).unwrap();
        let receive = Some(Segments::new(100).unwrap());
        routes.set(net("192.0.2.0/28"), Windows { receive, ..windows(50) }).unwrap();
        let initrwnd = format!("initrwnd {}", routes.buffers.max(receive).unwrap().as_u32());
        let plain = shown(namespace, "-4");
        assert_eq!(plain.lines().count(), 1, "{plain}");
        for part in
            ["192.0.2.0/28 via 10.1.0.254 dev wa", "mtu 1400", "initcwnd 50", initrwnd.as_str()]
        {
            assert!(plain.contains(part), "{part} in {plain}");
        }
        assert_eq!(routes.set(net("2001:db8:f::5/128"), windows(70)).unwrap(), Placed::Set);
        let six = shown(namespace, "-6");
        assert!(
            six.contains("2001:db8:f::5 via 2001:db8:1::2 dev wa") && six.contains("initcwnd 70"),
            "{six}"
        );
        assert_eq!(routes.sweep().unwrap(), 2);
        assert_eq!(shown(namespace, "-4") + &shown(namespace, "-6"), "");
    });
}

#[test]
fn next_hop_ids_onlink_and_ipv6_multipath_are_copied() {
    in_namespace("next_hop_ids_onlink_and_ipv6_multipath_are_copied", |namespace, routes| {
        for prefix in ["10.6.1.1/32", "10.4.1.1/32", "2001:db8:e::1/128"] {
            assert_eq!(routes.set(net(prefix), windows(33)).unwrap(), Placed::Set, "{prefix}");
        }
        let four = shown(namespace, "-4");
        assert!(four.contains("10.6.1.1 nhid 7 via 10.1.0.9 dev wa"), "{four}");
        assert!(
            four.contains("10.4.1.1 via 10.44.0.1 dev wa") && four.contains("onlink"),
            "{four}"
        );
        let six = shown(namespace, "-6");
        for hop in ["nexthop via 2001:db8:1::2 dev wa", "nexthop via 2001:db8:1::3 dev wa"] {
            assert!(six.contains(hop), "{hop} in {six}");
        }
        routes.follow();
        ip(namespace, &["nexthop replace id 7 via 10.2.0.9 dev wb"]);
        let touched = routes.follow().into_iter().map(|(prefix, placed)| (prefix, placed.unwrap()));
        assert_eq!(touched.collect::<Vec<_>>(), [(net("10.6.1.1/32"), Placed::Set)]);
        assert!(shown(namespace, "-4").contains("10.6.1.1 nhid 7 via 10.2.0.9 dev wb"));
        assert_eq!(routes.sweep().unwrap(), 3);
    });
}

#[test]
fn foreign_routes_are_unchanged() {
    in_namespace("foreign_routes_are_unchanged", |namespace, routes| {
        let before = all(namespace);
        for (prefix, placed) in [
            ("10.7.7.7/32", Placed::Foreign),
            ("10.9.0.0/16", Placed::Foreign),
            ("10.9.0.0/8", Placed::Foreign),
            ("10.8.0.1/32", Placed::Unneeded),
            ("10.1.0.1/32", Placed::NoRoute),
            ("2001:db8:aaaa::1/128", Placed::NoRoute),
        ] {
            assert_eq!(routes.set(net(prefix), windows(50)).unwrap(), placed, "{prefix}");
        }
        assert_eq!(routes.sweep().unwrap(), 0);
        assert_eq!(all(namespace), before);
    });
}

#[test]
fn copy_is_never_below_its_original() {
    let test = "copy_is_never_below_its_original";
    in_namespace(test, |namespace, routes| {
        ip(namespace, &["route replace 10.8.0.0/16 via 10.1.0.3 initcwnd 60 initrwnd 500"]);
        let (prefix, receive) = (net("10.8.1.1/32"), Some(Segments::new(100).unwrap()));
        for (congestion, placed) in [
            (80, Placed::Set),
            (77, Placed::Set),
            (20, Placed::Unneeded),
            (60, Placed::Unneeded),
            (80, Placed::Set),
        ] {
            let wanted = Windows { receive, ..windows(congestion) };
            assert_eq!(routes.set(prefix, wanted).unwrap(), placed, "{congestion}");
            let shown = shown(namespace, "-4");
            match placed {
                Placed::Set => {
                    let metrics = format!("initcwnd {congestion} initrwnd 500");
                    assert!(shown.contains(&metrics), "{metrics} in {shown}");
                }
                _ => assert_eq!(shown, "", "{congestion}"),
            }
        }
        // Without a requested receive window, the original's stays as well.
        routes.set(prefix, windows(90)).unwrap();
        assert!(shown(namespace, "-4").contains("initcwnd 90 initrwnd 500"));
        // The original's windows are those of the current original.
        routes.follow();
        ip(namespace, &["route replace 10.8.0.0/16 via 10.1.0.3 initcwnd 20"]);
        assert_eq!(followed(routes, "10.8.1.1/32"), Some(Placed::Set));
        assert_eq!(routes.set(prefix, windows(30)).unwrap(), Placed::Set);
        assert!(!shown(namespace, "-4").contains("initrwnd"));
    });
}

fn all(namespace: &Namespace) -> String {
    let show = || {
        let run =
            |family| std::process::Command::new("ip").args([family, "route"]).output().unwrap();
        [run("-4").stdout, run("-6").stdout].concat()
    };
    String::from_utf8(namespace.run(show).unwrap()).unwrap()
}

/// Returns the result for our route to `prefix` after foreign changes.
fn followed(routes: &mut Routes, prefix: &str) -> Option<Placed> {
    let mut outcome = routes.follow().into_iter();
    outcome.find(|(other, _)| *other == net(prefix)).map(|(_, placed)| placed.unwrap())
}

#[test]
fn copy_follows_its_original() {
    in_namespace("copy_follows_its_original", |namespace, routes| {
        routes.set(net("10.9.1.2/32"), windows(80)).unwrap();
        routes.set(net("192.0.2.1/32"), windows(30)).unwrap();
        // The kernel reports new links with a delay.
        let changed = routes.read_changes().prefixes;
        let ours = [net("10.9.1.2/32"), net("192.0.2.1/32")];
        assert!(!ours.iter().any(|prefix| changed.contains(prefix)), "our own changes are no news");
        ip(namespace, &["route replace 10.9.0.0/16 via 10.2.0.9"]);
        assert_eq!(followed(routes, "10.9.1.2/32"), Some(Placed::Set));
        assert!(
            shown(namespace, "-4").contains("10.9.1.2 via 10.2.0.9 dev wb"),
            "{}",
            shown(namespace, "-4")
        );
        // A foreign route for the same host: ours is removed.
        ip(namespace, &["route add 10.9.1.2/32 via 10.1.0.77"]);
        assert_eq!(followed(routes, "10.9.1.2/32"), Some(Placed::Foreign));
        assert!(!shown(namespace, "-4").contains("10.9.1.2"));
        ip(namespace, &["link set wa down"]);
        assert_eq!(followed(routes, "192.0.2.1/32"), Some(Placed::NoRoute));
        assert_eq!(shown(namespace, "-4"), "");
    });
}

#[test]
fn link_change_affects_only_copies_over_it() {
    in_namespace("link_change_affects_only_copies_over_it", |namespace, routes| {
        ip(
            namespace,
            &[
                "link add wc type veth peer name wd",
                "addr add 10.3.0.1/24 dev wc",
                "link set wd up",
                "link set wc up",
                "route add 10.30.0.0/16 via 10.3.0.9",
            ],
        );
        let (over, beside) = (net("10.30.1.1/32"), net("10.9.1.2/32"));
        for prefix in [over, beside, net("2001:db8:f::5/128")] {
            assert_eq!(routes.set(prefix, windows(80)).unwrap(), Placed::Set, "{prefix}");
        }
        routes.follow();
        let touched = |routes: &mut Routes| -> Vec<(IpNet, Placed)> {
            let touched = routes.follow().into_iter();
            touched.map(|(prefix, placed)| (prefix, placed.unwrap())).collect()
        };
        // The route over it vanishes without a notification, and the default route takes over.
        ip(namespace, &["link set wc down"]);
        assert_eq!(touched(routes), [(over, Placed::Set)]);
        assert!(shown(namespace, "-4").contains("10.30.1.1 via 10.1.0.254 dev wa"));
        // The routes that return with it lead to none of them.
        ip(namespace, &["link set wc up", "link add we type veth peer name wf", "link set we up"]);
        assert_eq!(touched(routes), []);
        ip(namespace, &["route add 10.30.0.0/16 via 10.3.0.9"]);
        assert_eq!(touched(routes), [(over, Placed::Set)]);
        assert!(shown(namespace, "-4").contains("10.30.1.1 via 10.3.0.9 dev wc"));
    });
}

#[test]
fn copy_leaves_a_link_without_carrier_like_its_original() {
    let test = "copy_leaves_a_link_without_carrier_like_its_original";
    in_namespace(test, |namespace, routes| {
        let ignored = || sysctl::set("net.ipv4.conf.all.ignore_routes_with_linkdown", "1");
        namespace.run(ignored).unwrap().unwrap();
        ip(
            namespace,
            &[
                "link add wc type veth peer name wd",
                "addr add 10.3.0.1/24 dev wc",
                "link set wd up",
                "link set wc up",
                "route add 10.30.0.0/16 via 10.3.0.9",
            ],
        );
        let prefix = net("10.30.1.1/32");
        assert_eq!(routes.set(prefix, windows(80)).unwrap(), Placed::Set);
        // The kernel reports a carrier change with a delay.
        let until_it_goes_by = |routes: &mut Routes, route: &str| {
            let goes_by = |_| {
                routes.follow();
                std::thread::sleep(std::time::Duration::from_millis(10));
                shown(namespace, "-4").contains(route)
            };
            assert!((0..3000).any(goes_by), "{route}: {}", shown(namespace, "-4"));
        };
        ip(namespace, &["link set wd down"]);
        until_it_goes_by(routes, "10.30.1.1 via 10.1.0.254 dev wa");
        ip(namespace, &["link set wd up"]);
        until_it_goes_by(routes, "10.30.1.1 via 10.3.0.9 dev wc");
    });
}

#[test]
fn refused_copy_does_not_affect_others() {
    in_namespace("refused_copy_does_not_affect_others", |namespace, routes| {
        ip(namespace, &["route add 10.88.0.0/16 via 10.2.0.3"]);
        let (refused, moved) = (net("10.8.1.1/32"), net("10.88.1.1/32"));
        for prefix in [refused, moved] {
            assert_eq!(routes.set(prefix, windows(80)).unwrap(), Placed::Set);
        }
        routes.follow();
        // The first one's route has changed and still exists, but its next hop is unreachable.
        ip(namespace, &["route replace 10.8.0.0/16 via 10.1.0.4", "route del 10.1.0.0/24 dev wa"]);
        ip(namespace, &["route replace 10.88.0.0/16 via 10.2.0.4"]);
        let outcome = routes.follow();
        let of = |prefix| outcome.iter().find(|(other, _)| *other == prefix).map(|(_, o)| o);
        assert!(matches!(of(refused), Some(Err(_))), "{outcome:?}");
        assert!(matches!(of(moved), Some(Ok(Placed::Set))), "{outcome:?}");
        let shown = shown(namespace, "-4");
        assert_eq!(shown.lines().count(), 1, "{shown}");
        assert!(shown.contains("10.88.1.1 via 10.2.0.4"), "{shown}");
        assert_eq!(routes.ours().map(|(prefix, _)| prefix).collect::<Vec<_>>(), [moved]);
    });
}

/// Returns the route to an address, in the output of `ip route`.
fn route(namespace: &Namespace, to: &[&str]) -> String {
    let words = [&["route", "get", "fibmatch"], to].concat();
    namespace.run(|| crate::iproute::ask(Tool::Ip, &words)).unwrap().unwrap()
}

/// Adds or removes the rules of a tunnel for all traffic, as wg-quick does.
fn vpn_rules(namespace: &Namespace, act: &str) {
    for family in ["-4", "-6"] {
        for rule in [
            ["not", "fwmark", "51820", "table", "51820"].as_slice(),
            &["table", "main", "suppress_prefixlength", "0"],
        ] {
            let words = [&[family, "rule", act], rule].concat();
            namespace.run(|| crate::iproute::ask(Tool::Ip, &words)).unwrap().unwrap();
        }
    }
}

#[test]
fn copies_follow_the_rules_of_a_new_vpn() {
    in_namespace("copies_follow_the_rules_of_a_new_vpn", |namespace, routes| {
        let (four, six, inside) = ("192.0.2.1", "2001:db8:bbbb::1", "10.9.1.2");
        ip(
            namespace,
            &[
                "route add ::/0 via 2001:db8:1::9 dev wa",
                "link add vpn type veth peer name vpn-peer",
                "link set vpn up",
                "link set vpn-peer up",
                "route add default dev vpn table 51820",
                "route add ::/0 dev vpn table 51820",
            ],
        );
        for address in [four, six, inside] {
            let prefix = address.parse::<std::net::IpAddr>().unwrap().into();
            assert_eq!(routes.set(prefix, windows(80)).unwrap(), Placed::Set, "{address}");
        }
        routes.follow();
        // Only rules change.
        vpn_rules(namespace, "add");
        routes.follow();
        for to in [four, six] {
            let route = route(namespace, &[to]);
            assert!(route.contains("dev vpn") && route.contains("initcwnd 80"), "{route}");
        }
        let marked = route(namespace, &[four, "mark", "51820"]);
        assert!(marked.contains("via 10.1.0.254 dev wa"), "{marked}");
        let inside_route = route(namespace, &[inside]);
        assert!(
            inside_route.contains("dev wa") && inside_route.contains("initcwnd 80"),
            "{inside_route}"
        );
        // And back.
        vpn_rules(namespace, "del");
        routes.follow();
        for to in [four, six] {
            let route = route(namespace, &[to]);
            assert!(route.contains("dev wa") && route.contains("initcwnd 80"), "{route}");
        }
    });
}

#[test]
fn no_copy_is_set_where_a_rule_suppresses_its_original() {
    let test = "no_copy_is_set_where_a_rule_suppresses_its_original";
    in_namespace(test, |namespace, routes| {
        let (default, other) = (net("192.0.2.1/32"), net("10.9.1.2/32"));
        for prefix in [default, other] {
            assert_eq!(routes.set(prefix, windows(80)).unwrap(), Placed::Set);
        }
        routes.follow();
        // Only marked traffic enters the tunnel; a copy in the main table would bypass it.
        ip(
            namespace,
            &[
                "route add default via 10.2.0.9 dev wb table 51820",
                "rule add fwmark 7 table 51820",
                "rule add table main suppress_prefixlength 0",
            ],
        );
        assert_eq!(followed(routes, "192.0.2.1/32"), Some(Placed::Foreign));
        let marked = route(namespace, &["192.0.2.1", "mark", "7"]);
        assert!(marked.contains("via 10.2.0.9 dev wb"), "{marked}");
        let plain = route(namespace, &["192.0.2.1"]);
        assert!(plain.contains("via 10.1.0.254") && !plain.contains("initcwnd"), "{plain}");
        assert_eq!(routes.ours().map(|(prefix, _)| prefix).collect::<Vec<_>>(), [other]);
        ip(namespace, &["rule del table main suppress_prefixlength 0"]);
        routes.follow();
        assert_eq!(routes.set(default, windows(80)).unwrap(), Placed::Set);
    });
}

#[test]
fn other_link_changes_affect_no_route() {
    let mut links = Links::default();
    let link_with = |flags| {
        let mut link = LinkMessage::default();
        (link.header.index, link.header.flags) = (3, flags);
        link
    };
    let up = LinkFlags::Up | LinkFlags::Running | LinkFlags::LowerUp;
    for (flags, turned) in [
        (up, true),
        (up, false),
        (up | LinkFlags::Promisc, false),
        (LinkFlags::Up, true),
        (LinkFlags::empty(), true),
        (LinkFlags::Multicast, false),
        (up, true),
    ] {
        assert_eq!(links.has_turned(&link_with(flags)), turned, "{flags:?}");
    }
}

#[test]
fn missing_rights_are_reported() {
    let mut routes = Routes::open().unwrap();
    let prefix = net("192.0.2.1/32");
    let may = crate::capability::may_change_routes();
    let leads_there = !may && routes.base_of(prefix).unwrap().is_ok();
    if may || !leads_there {
        return skipped(
            "missing_rights_are_reported: this process may change routes, or none leads out",
        );
    }
    let error = routes.set(prefix, windows(20)).unwrap_err().to_string();
    assert!(error.contains("CAP_NET_ADMIN"), "{error}");
}
