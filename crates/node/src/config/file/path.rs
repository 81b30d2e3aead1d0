//! One `[[packet]]`: from its section to a path, delivery policy or deposits.

use super::*;

impl PathSection {
    pub(super) fn resolve(mut self) -> Result<Path, NodeError> {
        let source = match (self.listen, self.to, self.tproxy.take(), self.tun.take()) {
            (Some(listen), Some(to), None, None) => TrafficSource::Port { listen, to },
            (None, None, Some(taken), None) => TrafficSource::Taken(taken),
            (None, None, None, Some(tunnel)) => TrafficSource::Tunnel(tunnel),
            _ => {
                let problem = "expected `listen` and `to`, or `tproxy`, or `tun`".to_owned();
                return Err(NodeError::Config { key: "packet", problem });
            }
        };
        if self.fragment && matches!(source, TrafficSource::Tunnel(_)) {
            let problem =
                "expected no `fragment` with `tun`: hosts are told how long packets may be";
            return Err(NodeError::Config { key: "fragment", problem: problem.to_owned() });
        }
        Ok(Path { source, delivery: self.delivery()? })
    }

    /// Returns the delivery policy, for packets of any source.
    pub(super) fn delivery(self) -> Result<DeliveryPolicy, NodeError> {
        let default = if self.relays.0.is_empty() { Wanted::Direct } else { Wanted::Forwarding };
        let wanted = self.service.unwrap_or(default);
        let (in_order, fragment) = (self.in_order, self.fragment);
        let carriage = Carriage { in_order, fragment, ..carriage(wanted, self.ways, self.budget)? };
        let brings_back = match wanted {
            Wanted::Direct | Wanted::Rendezvous => false,
            Wanted::Forwarding => carriage.paths == Paths::Both,
            Wanted::Auto | Wanted::Caching | Wanted::Coding => true,
        };
        if in_order && !brings_back {
            let problem = "expected only where something may come back: with caching, coding, \
                           auto, or forwarding over both ways";
            return Err(NodeError::Config { key: "in_order", problem: problem.to_owned() });
        }
        let max_loss = match (wanted, self.max_loss) {
            (Wanted::Auto, given) => Some(given.unwrap_or_else(max_loss)),
            (_, None) => None,
            (_, Some(_)) => {
                let problem = "expected only with `service = \"auto\"`".to_owned();
                return Err(NodeError::Config { key: "max_loss", problem });
            }
        };
        if wanted != Wanted::Auto && (self.costs.is_some() || self.coding.is_some()) {
            let key = if self.costs.is_some() { "costs" } else { "coding" };
            let problem = "expected only with `service = \"auto\"`".to_owned();
            return Err(NodeError::Config { key, problem });
        }
        let assumed = self.coding.unwrap_or_default().assumed(self.costs)?;
        if self.keep.is_some() {
            let problem = "expected only with `service = \"rendezvous\"`".to_owned();
            return Err(NodeError::Config { key: "keep", problem });
        }
        let (far, relays) = (self.far.placed()?, self.relays.0);
        let copies = self.copies.map(CopiesSection::resolve);
        Ok(DeliveryPolicy { far, relays, carriage, max_loss, copies, assumed })
    }

    pub(super) fn resolve_deposits(self) -> Result<Deposits, NodeError> {
        let refused = |key, problem: &str| Err(NodeError::Config { key, problem: problem.into() });
        let Self { listen, to, tproxy, tun, far, relays, keep, .. } = self;
        let (Some(listen), Some(to), None, None) = (listen, to, tproxy, tun) else {
            return refused("packet", "expected `listen` and `to` with a rendezvous");
        };
        if self.ways.is_some()
            || self.max_loss.is_some()
            || self.copies.is_some()
            || self.costs.is_some()
            || self.coding.is_some()
            || self.budget.is_some()
            || self.in_order
            || self.fragment
        {
            let problem = "expected no key of choosing, such as `budget`, `ways`, `costs` or \
                `copies`: packets wait";
            return refused("packet", problem);
        }
        let relay = match relays.0 {
            Via::Relays(relays) if relays.len() == 1 => relays[0],
            _ => return refused("relays", "expected exactly one: where packets wait"),
        };
        let keep = keep.map_or(rendezvous::KEEP, |Keep(keep)| keep);
        Ok(Deposits { listen, to, far: far.recipient(), relay, keep })
    }
}
