//! The open sessions of each flow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tradewind_units::FlowId;

/// The open sessions of each flow: each of them holds an [`OpenSession`].
#[derive(Debug, Default)]
pub struct OpenFlows(Mutex<BTreeMap<FlowId, Arc<()>>>);

/// An open session, until it is dropped.
#[derive(Debug)]
pub struct OpenSession {
    _of_flow: Arc<()>,
}

impl OpenFlows {
    /// Counts a session of a flow.
    #[must_use]
    pub fn enter(&self, flow: &FlowId) -> OpenSession {
        let mut flows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = flows.get(flow) {
            return OpenSession { _of_flow: Arc::clone(known) };
        }
        let of_flow = Arc::clone(flows.entry(flow.clone()).or_default());
        OpenSession { _of_flow: of_flow }
    }

    /// Returns the number of each flow that has some.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<FlowId, usize> {
        let mut flows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's own is no session.
        let sessions = |of_flow: &Arc<()>| Arc::strong_count(of_flow) - 1;
        flows.retain(|_, of_flow| sessions(of_flow) > 0);
        let counts = flows.iter().map(|(flow, of_flow)| (flow.clone(), sessions(of_flow)));
        counts.filter(|(_, sessions)| *sessions > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_count_while_they_are_held() {
        let (flows, [a, b]) = (OpenFlows::default(), ["a", "b"].map(|it| FlowId::new(it).unwrap()));
        let first = flows.enter(&a);
        let others = [flows.enter(&a), flows.enter(&b)];
        assert_eq!(flows.counts(), [(a.clone(), 2), (b, 1)].into());
        drop(others);
        assert_eq!(flows.counts(), [(a.clone(), 1)].into());
        drop(first);
        assert_eq!(flows.counts(), BTreeMap::new());
        let _again = flows.enter(&a);
        assert_eq!(flows.counts(), [(a, 1)].into());
    }
}
