//! The papers' experiments and the demo, end to end, and their report.

pub mod demo;
pub mod experiment;
mod jump;
mod lab_run;
pub mod numeric;
pub mod report;
pub mod scenario;
