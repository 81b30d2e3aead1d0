//! Limits on the name lookups of each client.

use tradewind_stream::limits::quota::Place;
use tradewind_stream::resolver::Lookups;
use tradewind_units::Source;

use super::service::{GatewayService, Listener};

impl GatewayService {
    /// Returns the lookups that a client's names are counted among, and the client's place among
    /// the clients that resolve names. Clients are distinguished by listener and source; programs
    /// of this host have one source, so those of a listener share one limit, which is larger.
    pub(super) fn lookups_of(
        &self,
        listener: &Listener,
        source: Source,
    ) -> (Lookups, Option<Place<(usize, Source)>>) {
        if source.is_loopback() {
            return (listener.own_lookups.clone(), None);
        }
        let place = self.askers.enter((listener.number, source), None);
        let lookups = place.as_ref().map_or_else(Lookups::of_one, |place| place.lookups.clone());
        (lookups, place)
    }
}
