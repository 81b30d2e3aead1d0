//! The papers' experiments: those that compute, and those on the lab.
//!
//! | module | holds |
//! |---|---|
//! | [`list`] | the experiments by name |
//! | [`report`] | records as tables and pages |
//! | [`harness`] | what all experiments share; it imports none of them |
//!
//! Every other module is one experiment, or a family of them.

mod contention;
mod cp_real;
mod download;
pub mod harness;
mod jump;
pub mod list;
mod modelled;
pub mod numeric;
mod opening;
mod packets;
mod rates;
mod regions;
pub mod report;
mod sharing;
mod soak;
