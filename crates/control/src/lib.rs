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
//! | [`bounds`] | its bounds on rate and spend, as types |
//! | [`record`] | the records that the state consists of |
//! | [`state`] | the state that records add up to |
//! | [`event`] | events, and what is decided on them |
//! | [`controller`] | the state machine |
//! | `enrolment` | how hosts join |
//! | [`operator`] | what the operator declares |
//! | [`proxies`] | the proxies of gateways, and what is learned from them, as types |
//! | [`learned`] | how destinations are learned, and become flows |
//! | `reports` | what hosts report |
//! | [`imported`] | the form of measurements that others made |
//! | `import` | how these are taken in |
//! | [`sessions`] | sessions that gateways report: open, and ended ones by day |
//! | [`relayed`] | what relays carried by their own counts, beside what gateways tell |
//! | [`relayed_days`] | the rows of that, by day |
//! | `usage` | the same by flow and hour |
//! | [`history`] | the hours of one flow, and the forecast made of them |
//! | [`forecast`] | forecasts of what flows carry, and their back-test |
//! | [`demand`] | what a flow is expected to carry in a day: declared, or forecast |
//! | [`packet_flow`] | packet flows: declared, planned, and what became of their packets |
//! | `packets` | their part in plans, and what gateways report of them |
//! | [`by_path`] | their packets by the path that carried them, and those that it lost |
//! | [`path_loss`] | the loss that their packets are expected to suffer |
//! | [`schedule`] | which probes a host runs next |
//! | [`knowledge`] | the measurements that plans are made from |
//! | [`legs`] | the planner's legs, from measurements |
//! | `passive` | what connections show of legs |
//! | `take_back` | paths that measure worse than predicted |
//! | `watched` | the neighbours whose connections a host watches |
//! | `planning` | the planning problem, and plans as records |
//! | [`joint`] | the plan of streams and packet flows as one, on hosts |
//! | [`front`] | the plans of several budgets |
//! | [`what_if`] | plans under changes that are only supposed |
//! | `staleness` | why a new plan should be made |
//! | `rollout` | how a plan is put into effect: make before break |
//! | [`tenant`] | tenants and their tokens, as types |
//! | [`tenants`] | groups of flows with budgets and accounts of their own |
//! | `prices` | what machines and traffic cost |
//! | [`predict`] | predicted completion times of sessions |
//! | `predicted` | predicted speedups of the sessions that gateways report |
//! | [`predicted_days`] | the rows of that, by day |
//! | [`prediction_error`] | how far measured speedups were from predicted ones |
//! | [`settings`] | the operator's settings |
//! | [`terms`] | prices and relay types of the operator's own |
//! | [`jumpstart`] | which hosts learn initial windows, and what that gains |
//! | [`learner`] | what learners report |
//! | `learner_reports` | how that is taken in, and added up by day |
//! | `money` | machines metered, the alarm and the stop of the budget |
//! | [`billed`] | bills of clouds, imported by day and host |
//! | [`transfer_times`] | completion times of timed transfers, as types |
//! | [`transfers`] | how they are taken in, and their quantiles |
//! | [`gain`] | what the overlay gains, and what it costs |
//! | `documents` | what each host should run |
//! | [`explain`] | why a flow takes its path, and not another |
//! | `index` | what is looked up at each report |
//! | `draft` | the records of a decision while they are made |

mod account;
pub mod billed;
pub mod bounds;
pub mod by_path;
pub mod ceiling;
pub mod controller;
pub mod demand;
mod documents;
mod draft;
mod enrolment;
pub mod event;
pub mod explain;
mod flow_costs;
pub mod forecast;
pub mod front;
pub mod gain;
pub mod history;
mod import;
pub mod imported;
mod index;
pub mod invite;
pub mod joint;
pub mod jumpstart;
pub mod knowledge;
pub mod learned;
pub mod learner;
mod learner_reports;
pub mod legs;
pub mod message;
mod money;
pub mod operator;
pub mod packet_flow;
mod packets;
mod passive;
pub mod path_loss;
pub mod path_now;
mod planning;
pub mod predict;
mod predicted;
pub mod predicted_days;
pub mod prediction_error;
mod prices;
pub mod proxies;
pub mod record;
pub mod relayed;
pub mod relayed_days;
mod removed;
mod reports;
mod rollout;
pub mod schedule;
pub mod sessions;
pub mod settings;
mod sharing;
mod staleness;
pub mod state;
mod take_back;
pub mod tenant;
pub mod tenants;
pub mod terms;
#[cfg(test)]
mod testing;
pub mod transfer_times;
pub mod transfers;
mod usage;
mod watched;
pub mod what_if;

pub use ceiling::Ceiling;
pub use controller::{Answer, Controller, Decision, Event, Keys, Refusal};
pub use event::{JumpstartRequest, SettingsRequest};
pub use invite::{Invite, InviteSecret};
pub use prices::machine_of_day;
pub use record::Record;
pub use rollout::awaited_relays;
pub use state::State;
