//! Listeners that cannot exist beside each other.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

/// Returns the first listener that conflicts with an earlier one, after that one: both have the
/// same address, or one of them is the wildcard of their family and the port is the same. Port 0 is
/// another one each time. One on `[::]` that takes IPv4 as well counts twice, as in
/// [`of_both_families`].
pub fn first_clash<K: Clone>(
    listeners: impl IntoIterator<Item = (K, SocketAddr)>,
) -> Option<[(K, SocketAddr); 2]> {
    let mut by_port: BTreeMap<(bool, u16), Vec<(K, SocketAddr)>> = BTreeMap::new();
    for (key, address) in listeners.into_iter().filter(|(_, address)| address.port() != 0) {
        let earlier = by_port.entry((address.is_ipv4(), address.port())).or_default();
        let clashes = |(_, known): &&(K, SocketAddr)| {
            known.ip().is_unspecified() || address.ip().is_unspecified() || *known == address
        };
        if let Some(other) = earlier.iter().find(clashes) {
            return Some([other.clone(), (key, address)]);
        }
        earlier.push((key, address));
    }
    None
}

/// Returns the addresses that a socket at `address` occupies if one on `[::]` takes IPv4 as well.
pub fn of_both_families(address: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    let is_both = address.is_ipv6() && address.ip().is_unspecified();
    let v4 = is_both.then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())));
    std::iter::once(address).chain(v4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_clash_by_address_and_wildcard() {
        let clash = |texts: &[&str]| {
            let all = texts.iter().enumerate().map(|(at, text)| (at, text.parse().unwrap()));
            first_clash(all).map(|[(first, _), (second, _)]| [first, second])
        };
        assert_eq!(clash(&["127.0.0.1:7", "127.0.0.2:7", "127.0.0.1:7"]), Some([0, 2]));
        assert_eq!(clash(&["0.0.0.0:7", "127.0.0.1:7"]), Some([0, 1]));
        assert_eq!(clash(&["[::1]:7", "[::]:7"]), Some([0, 1]));
        assert_eq!(clash(&["0.0.0.0:7", "[::]:7", "127.0.0.1:8"]), None);
        assert_eq!(clash(&["127.0.0.1:0", "127.0.0.1:0", "0.0.0.0:0"]), None);
        assert_eq!(clash(&["[fe80::1%1]:7", "[fe80::1%2]:7"]), None);
    }

    #[test]
    fn wildcard_of_both_families_clashes_with_either() {
        let clashes = |texts: [&str; 2]| {
            let [both, other] = texts.map(|text| text.parse().unwrap());
            let all = of_both_families(both).map(|address| ("both", address));
            first_clash(all.chain([("other", other)])).is_some()
        };
        for other in ["127.0.0.1:7", "0.0.0.0:7", "[::1]:7"] {
            assert!(clashes(["[::]:7", other]), "{other}");
        }
        assert!(!clashes(["[::]:7", "127.0.0.1:8"]) && !clashes(["[::1]:7", "127.0.0.1:7"]));
        assert!(!clashes(["0.0.0.0:7", "[::1]:7"]) && !clashes(["[::]:0", "127.0.0.1:0"]));
    }
}
