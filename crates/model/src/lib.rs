//! Regions, prices and the papers' formulas: rate, completion time and cost of a path.
//!
//! | module | holds | source |
//! |---|---|---|
//! | [`catalogue`] | regions, egress prices, machines; dated and overridable | the clouds' lists |
//! | [`geo`] | coordinates, distance, and a distance-to-RTT model with its error | fitted, `docs/explanation/rtt-model.md` |
//! | [`leg`] | one hop between neighbours and its rate | [CP IV-B], \[TRN\] |
//! | [`tcp`] | slow-start rounds, rate under loss | Mathis 1997, RFC 9438 |
//! | [`fct`] | completion time of a path of any length, start-up included | [CP IV-B], \[CDD\] |
//! | [`cost`] | cost of a path | [CP VII-A] |
//! | [`measurement`] | a probe's results, and a leg made of them | |
//! | [`packet`] | delay and cost of each packet service | [JQ 3, 5.1] |
//! | [`sharing`] | shares of one host's flows in its machine's cap | \[TRN\] |
//! | [`estimator`] | gain of a third relay over two | \[CDD\] |
//! | [`voice`] | quality of a call: R and MOS from delay and losses | ITU-T G.107 |
//! | [`statistics`] | means, medians and ratios of repeated measurements | Student's t |
//!
//! Everything is a pure function of its arguments. Rates are of payload; a caller that states a cap
//! in other bytes accounts for headers.

pub mod catalogue;
pub mod cost;
pub mod estimator;
pub mod fct;
pub mod geo;
pub mod leg;
pub mod measurement;
pub mod packet;
pub mod sharing;
pub mod statistics;
pub mod tcp;
pub mod voice;

pub use catalogue::{Catalogue, Continent, Egress, Region};
pub use fct::{StartUp, path_fct};
pub use geo::{Coordinates, RttModel};
pub use leg::Leg;
pub use measurement::LegMeasurement;

/// An error in an input to the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The catalogue's text is no TOML of the right form.
    #[error("catalogue, line {line}: {message}")]
    CatalogueText {
        /// The line, counted from 1.
        line: usize,
        /// The error there.
        message: String,
    },
    /// An entry of the catalogue makes no sense.
    #[error("catalogue, {entry}: {message}")]
    CatalogueEntry {
        /// The entry, e.g. `region aws:us-east-1`.
        entry: String,
        /// The error in it.
        message: String,
    },
    /// A region that the catalogue does not hold.
    #[error("region `{0}` is not in the catalogue")]
    UnknownRegion(tradewind_units::RegionId),
    /// A region whose cloud has no price for such traffic.
    #[error("the catalogue has no price from `{from}` to {to}")]
    NoPrice {
        /// The region that sends.
        from: tradewind_units::RegionId,
        /// The receiver: a region or `the Internet`.
        to: String,
    },
    /// Coordinates off the globe.
    #[error(
        "coordinates: a latitude from -90 to 90 and a longitude from -180 to 180, \
         not {latitude}, {longitude}"
    )]
    Coordinates {
        /// Degrees north, as given.
        latitude: String,
        /// Degrees east, as given.
        longitude: String,
    },
}
