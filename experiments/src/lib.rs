//! The papers' experiments and the demo, end to end, and their report.

pub mod demo;
mod download;
pub mod experiment;
mod jump;
mod lab_run;
pub mod numeric;
mod parallel;
mod regions;
pub mod report;
pub mod scenario;
mod sharing;
