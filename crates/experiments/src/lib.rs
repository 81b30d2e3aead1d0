//! The papers' experiments and the demo, end to end, and their report.

mod contention;
pub mod demo;
mod download;
pub mod executor;
pub mod experiment;
mod jump;
mod lab_run;
mod modelled;
pub mod numeric;
mod opening;
mod packets;
mod parallel;
mod rates;
mod regions;
pub mod report;
pub mod scenario;
mod sharing;
mod soak;
