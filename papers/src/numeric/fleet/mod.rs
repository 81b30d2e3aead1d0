//! A fleet of PoPs that learn, simulated in virtual time: `rt-cmax` and `rt-traffic` `[RT IV-B1]`.
//!
//! | module | holds |
//! |---|---|
//! | [`connection`] | a congestion window and its growth |
//! | [`sender`] | a PoP: its connections, its learner |
//! | [`traffic`] | requests to PoPs |
//! | [`cmax`] | `rt-cmax` |
//! | [`busy`] | `rt-traffic` |

pub mod busy;
pub mod cmax;
pub mod connection;
pub mod sender;
pub mod traffic;

use tradewind_jumpstart::Config;
use tradewind_units::Segments;

/// Returns the paper's algorithm with this upper bound.
fn riptide(c_max: Segments) -> Config {
    Config { window_max: c_max, ..Config::default() }
}

/// Returns the per cent of `windows` for which `is` holds.
fn percent(windows: &[f64], is: impl Fn(f64) -> bool) -> f64 {
    100.0 * windows.iter().filter(|window| is(**window)).count() as f64
        / windows.len().max(1) as f64
}

/// Returns whether a window is this, in whole segments.
fn at(window: f64, segments: Segments) -> bool {
    window as u32 == segments.as_u32()
}
