//! Regions, prices and the papers' formulas: rate, completion time and cost of a path.
//!
//! | module | holds | source |
//! |---|---|---|
//! | [`catalogue`] | regions, egress prices, machines; dated and overridable | the clouds' lists |
//! | [`geo`] | coordinates, distance, and a distance-to-RTT model with its error | fitted, `docs/rtt-model.md` |
//! | [`leg`] | one hop between neighbours and its rate | [CP IV-B], \[TRN\] |
//! | [`tcp`] | slow-start rounds, rate under loss | Mathis 1997, RFC 9438 |
//! | [`fct`] | completion time of a path of any length, start-up included | [CP IV-B], \[CDD\] |
//! | [`cost`] | what a path costs | [CP VII-A] |
//! | [`measurement`] | what a probe saw, and a leg made of it | |
//! | [`sharing`] | what each flow of one host gets of its machine's cap | \[TRN\] |
//! | [`estimator`] | gain of a third relay over two | \[CDD\] |
//! | [`voice`] | how a call sounds: R and MOS from delay and losses | ITU-T G.107 |
//! | [`statistics`] | means, medians and ratios of repeated measurements | Student's t |
//!
//! Everything is a pure function of its arguments. A rate here is that of payload; headers are the
//! business of whoever sets a cap in other bytes.

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

/// Why an input to the model was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The catalogue's text is no TOML of the right form.
    #[error("catalogue, line {line}: {message}")]
    CatalogueText {
        /// Where, counted from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// An entry of the catalogue makes no sense.
    #[error("catalogue, {entry}: {message}")]
    CatalogueEntry {
        /// Which entry, e.g. `region aws:us-east-1`.
        entry: String,
        /// What is wrong with it.
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
        /// Where to: a region or `the Internet`.
        to: String,
    },
    /// Coordinates off the globe.
    #[error(
        "coordinates: a latitude from -90 to 90 and a longitude from -180 to 180, not {latitude}, {longitude}"
    )]
    Coordinates {
        /// Degrees north, as given.
        latitude: String,
        /// Degrees east, as given.
        longitude: String,
    },
}
