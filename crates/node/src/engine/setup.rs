//! The parts of an engine: its identities and trust, its sockets, and the sessions' state machine.

use std::net::SocketAddr;
use std::sync::Arc;

use tradewind_grant::{IdentityKey, Sealer, Trust, Verifier};
use tradewind_net::entropy;
use tradewind_net::udp::UdpPort;
use tradewind_packet::session::{Limits, Now, Sessions, SessionsConfig};

use super::sockets::{Outlet, Sockets};
use crate::config::NodeConfig;
use crate::counts::Counts;
use crate::{NodeError, neighbours_options};

/// Returns the sealer of its own paths' headers, if it has a grant.
pub(super) fn sealer(config: &NodeConfig) -> Result<Option<Sealer>, NodeError> {
    let Some(grant) = &config.grant else { return Ok(None) };
    let refused = |error| NodeError::Config { key: "grant".into(), problem: format!("{error}") };
    Sealer::new(config.identity.clone(), grant.clone()).map(Some).map_err(refused)
}

/// Returns the identities that it accepts, the main one first.
pub(super) fn identities(config: &NodeConfig) -> Vec<IdentityKey> {
    std::iter::once(&config.identity).chain(&config.other_identities).cloned().collect()
}

/// Returns the operators whose grants it trusts, and their revocations.
pub(super) fn trust(config: &NodeConfig) -> Trust {
    Trust::new(config.operators.clone(), config.revocations.clone())
}

/// Returns the verifier of paths' headers.
pub(super) fn verifier(config: &NodeConfig, trust: &Arc<Trust>) -> Verifier {
    let mut verifier = Verifier::new(config.identity.clone(), config.operators.clone());
    verifier.set_identities(&identities(config));
    verifier.set_trust(Arc::clone(trust));
    verifier
}

/// Opens the sockets towards neighbours: with several workers, each has one of its own.
pub(super) fn sockets(
    config: &NodeConfig,
    port: UdpPort,
    counts: &Arc<Counts>,
) -> Result<Sockets, NodeError> {
    let own = match config.workers {
        1 => None,
        _ => {
            let any = SocketAddr::new(config.listen.ip(), 0);
            Some(Outlet::new(UdpPort::bind(any, &neighbours_options(config))?))
        }
    };
    Ok(Sockets::new(Outlet::new(port), own, Arc::clone(counts)))
}

/// Returns the sessions' state machine: without sessions, but with the rules of who may have one.
pub(super) fn sessions(
    config: &NodeConfig,
    trust: &Arc<Trust>,
    now: Now,
) -> Result<Sessions, NodeError> {
    let own = SessionsConfig {
        identity: config.identity.clone(),
        operators: config.operators.clone(),
        neighbours: config.neighbours.clone(),
        limits: Limits::default(),
    };
    let mut sessions = Sessions::new(own, now, entropy::bytes::<32>()?);
    sessions.set_identities(identities(config));
    sessions.set_trust(Arc::clone(trust), config.neighbours.clone());
    Ok(sessions)
}
