//! Policy routing rules that depend on the length of a route's prefix.
//!
//! `ip rule add lookup main suppress_prefixlength 0`, which VPNs set, ignores a table's default
//! route. A copy of that route for one destination has a longer prefix and would not be ignored:
//! traffic that such rules lead into a tunnel would bypass it.

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::{RuleAttribute, RuleMessage};

use super::kernel::{prefix_of, table_of};

/// The kernel's value for a rule without such a limit.
const NO_LIMIT: u32 = u32::MAX;

/// The family, the table, and the longest suppressed prefix length of each such rule.
#[derive(Debug, Default)]
pub(super) struct Suppressions(Vec<(AddressFamily, u32, u32)>);

impl Suppressions {
    /// Adds the suppression of `rule`, if it has one.
    pub(super) fn add(&mut self, rule: &RuleMessage) {
        let (mut table, mut longest) = (u32::from(rule.header.table), NO_LIMIT);
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Table(number) => table = *number,
                RuleAttribute::SuppressPrefixLen(length) => longest = *length,
                _ => {}
            }
        }
        if longest != NO_LIMIT {
            self.0.push((rule.header.family, table, longest));
        }
    }

    /// Returns whether a rule suppresses `base` and would not suppress a copy of it for `prefix`.
    pub(super) fn spare_copy(&self, base: &RouteMessage, prefix: IpNet) -> bool {
        let (family, table) = (base.header.address_family, table_of(base));
        let original = prefix_of(base).map_or(0, |prefix| prefix.prefix_len());
        self.0.iter().any(|&(of, at, longest)| {
            let passes_over = |length: u8| u32::from(length) <= longest;
            (of, at) == (family, table)
                && passes_over(original)
                && !passes_over(prefix.prefix_len())
        })
    }
}
