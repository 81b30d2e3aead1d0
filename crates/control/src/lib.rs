//! The control plane, pure: what hosts there are, what was measured, what is planned, and what each
//! host should run.
//!
//! [`Controller`] is a state machine. [`Controller::decide`] takes an event and returns records and
//! an answer; the caller stores the records, then passes each to [`Controller::apply`], then
//! answers. So whatever was answered survives a crash, and the same records give the same state.
//! Time and entropy are arguments: the whole control plane runs in virtual time under a seed.
//!
//! | module | holds |
//! |---|---|
//! | [`invite`] | invites, which let one host join |
//! | [`message`] | the messages between controller and agents |
//! | [`ceiling`] | the most that a host's owner allows a controller |
//! | [`record`] | the records that the state consists of |
//! | [`state`] | the state that records add up to |
//! | [`event`] | events, and what is decided on them |
//! | [`controller`] | the state machine |
//! | `enrolment` | how hosts join |
//! | `operator` | what the operator declares |
//! | `reports` | what hosts report |
//! | [`imported`] | the form of measurements that others made |
//! | `import` | how these are taken in |
//! | `sessions` | sessions that gateways report, added up by day |
//! | `usage` | the same by flow and hour |
//! | [`forecast`] | forecasts of what flows carry, and their back-test |
//! | [`demand`] | what a flow is expected to carry in a day: declared, or forecast |
//! | [`packet_flow`] | packet flows: declared, planned, and what became of their packets |
//! | `packets` | their part in plans, and what gateways report of them |
//! | [`schedule`] | which probes a host runs next |
//! | [`knowledge`] | the planner's legs, from measurements |
//! | `passive` | what connections show of legs |
//! | `take_back` | paths that measure worse than predicted |
//! | `watched` | the neighbours whose connections a host watches |
//! | `planning` | the planning problem, and plans as records |
//! | `staleness` | why a new plan should be made |
//! | `rollout` | how a plan is put into effect: make before break |
//! | `prices` | what machines and traffic cost |
//! | `predict` | predicted completion times of sessions |
//! | `money` | machines metered, the alarm and the stop of the budget |
//! | [`gain`] | what the overlay gains, and what it costs |
//! | `documents` | what each host should run |
//! | [`explain`] | why a flow takes its path, and not another |
//! | `index` | what is looked up at each report |
//! | `draft` | the records of a decision while they are made |

pub mod ceiling;
pub mod controller;
pub mod demand;
mod documents;
mod draft;
mod enrolment;
pub mod event;
pub mod explain;
pub mod forecast;
pub mod gain;
mod import;
pub mod imported;
mod index;
pub mod invite;
pub mod knowledge;
pub mod message;
mod money;
mod operator;
pub mod packet_flow;
mod packets;
mod passive;
mod planning;
mod predict;
mod prices;
pub mod record;
mod reports;
mod rollout;
pub mod schedule;
mod sessions;
mod staleness;
pub mod state;
mod take_back;
#[cfg(test)]
mod testing;
mod usage;
mod watched;

pub use ceiling::Ceiling;
pub use controller::{Answer, Controller, Decision, Event, Keys, Refusal};
pub use event::SettingsRequest;
pub use invite::{Invite, InviteSecret};
pub use record::Record;
pub use state::State;
