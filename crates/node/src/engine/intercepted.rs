//! Intercepted datagrams: the sockets to which they are redirected, and those from which replies
//! leave.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tradewind_config::packet::Intercepted;
use tradewind_grant::DestinationRule;
use tradewind_net::interception::{ANSWERED_HOPS, Capture};
use tradewind_net::udp::{UdpOptions, UdpPort};

use super::local::Port;
use crate::NodeError;
use crate::counts::Counts;
use crate::handover::Handover;
use crate::interceptor::{Gate, ranges};

/// A listener for intercepted datagrams of one family.
pub(crate) struct InterceptedLocal {
    pub(super) listener: UdpPort,
    destinations: Vec<DestinationRule>,
    /// Set if those of this host itself are intercepted, too.
    pub(super) local_output: bool,
    gate: Arc<Gate>,
    /// The socket mark of replies, which must not be intercepted themselves.
    mark: Option<u32>,
    /// Sockets on the addresses that applications write to, for replies.
    answers: BTreeMap<SocketAddr, Port>,
}

impl InterceptedLocal {
    /// Opens the listener for intercepted datagrams of the family of `destinations`.
    pub(super) fn open(
        handover: &mut Handover,
        intercepted: &Intercepted,
        (destinations, is_ipv6): (Vec<DestinationRule>, bool),
        mark: Option<u32>,
    ) -> Result<Self, NodeError> {
        let here = if is_ipv6 {
            SocketAddr::from((Ipv6Addr::LOCALHOST, intercepted.port))
        } else {
            SocketAddr::from((Ipv4Addr::LOCALHOST, intercepted.port))
        };
        let (transparent, tells_dscp, tells_age) = (true, true, true);
        let options = UdpOptions { transparent, tells_dscp, tells_age, ..UdpOptions::default() };
        let first = destinations.first().map(ToString::to_string).unwrap_or_default();
        let listener = handover.applications((here, first), &options)?;
        let gate = Arc::new(Gate::of_datagrams(Capture {
            destinations: ranges(&destinations),
            listeners: vec![listener.address()],
            local_output: intercepted.local_output,
        }));
        let (local_output, answers) = (intercepted.local_output, BTreeMap::new());
        Ok(Self { listener, destinations, local_output, gate, mark, answers })
    }

    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Returns whether datagrams to `to` are intercepted: others come only if an application writes
    /// to the listener itself.
    pub(super) fn takes(&self, to: SocketAddr) -> bool {
        self.destinations.iter().any(|rule| rule.covers_address(to))
    }

    /// Opens a socket that replies from `to`, unless there is one.
    pub(super) fn begin(&mut self, to: SocketAddr) -> Option<()> {
        if let Entry::Vacant(place) = self.answers.entry(to) {
            let (transparent, hops, mark) = (true, Some(ANSWERED_HOPS), self.mark);
            let options = UdpOptions { transparent, hops, mark, ..UdpOptions::default() };
            place.insert(Port::new(UdpPort::bind(to, &options).ok()?));
        }
        Some(())
    }

    pub(super) fn end(&mut self, to: SocketAddr) {
        self.answers.remove(&to);
    }

    pub(super) fn push(
        &mut self,
        counts: &Counts,
        from: Option<SocketAddr>,
        to: SocketAddr,
        payload: &[u8],
    ) {
        if let Some(answers) = from.and_then(|from| self.answers.get_mut(&from)) {
            answers.push(counts, to, payload);
        }
    }

    pub(super) fn flush(&mut self, counts: &Counts) {
        self.answers.values_mut().for_each(|answers| answers.flush(counts));
    }
}
