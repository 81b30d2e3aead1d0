//! Whose names are looked up within which limit.

use tradewind_units::Source;

use super::session::{GatewayService, Listener};
use crate::quota::Place;
use crate::resolver::Lookups;

impl GatewayService {
    /// Returns the lookups that a client's names count as, and what keeps its place among those
    /// that look names up. Clients are told apart by listener and source; programs of this host
    /// have one source, so a listener's share them, with a larger limit.
    pub(super) fn lookups_of(
        &self,
        entrance: &Listener,
        source: Source,
    ) -> (Lookups, Option<Place<(usize, Source)>>) {
        if source.is_loopback() {
            return (entrance.own_lookups.clone(), None);
        }
        let place = self.askers.enter((entrance.number, source), None);
        let lookups = place.as_ref().map_or_else(Lookups::of_one, |place| place.lookups.clone());
        (lookups, place)
    }
}
