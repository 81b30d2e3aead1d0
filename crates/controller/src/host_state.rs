//! The state of a host, as operators see it.

use tradewind_control::State;
use tradewind_control::message::ProcessStatus;
use tradewind_control::record::Host;
use tradewind_control::state::SEEN_WITHIN;

use crate::links::Links;
use crate::view::HostState;

/// Returns the state of a host now.
pub(crate) fn host_state(state: &State, links: &Links, host: &Host, now_ms: u64) -> HostState {
    if !host.is_trusted {
        return HostState::Revoked;
    }
    if links.is_silent(&host.identity) {
        return HostState::Away;
    }
    let is_reachable = state.is_reachable(&host.id, now_ms, SEEN_WITHIN);
    let seen = match state.seen.get(&host.id).filter(|_| is_reachable) {
        Some(seen) => seen,
        None if is_reachable => return HostState::Awaited,
        None => return HostState::Away,
    };
    let wanted = state.documents.get(&host.id).map(|document| document.version);
    if seen.refused.as_ref().is_some_and(|refused| Some(refused.version) == wanted) {
        return HostState::Refuses;
    }
    if seen.processes.iter().any(ProcessStatus::fails) {
        return HostState::Failing;
    }
    if seen.applied != wanted {
        return HostState::Behind;
    }
    if host.is_drained { HostState::Drained } else { HostState::Well }
}
