//! The faults of a soak, one after the other.

use std::time::{Duration, Instant};

use tradewind_lab::LabError;
use tradewind_net::{descriptors, processes};
use tradewind_units::{HostId, Ratio};
use tradewind_wan::PairChange;

use super::scenario::{Fault, Scenario, What};
use crate::harness::chain::SplitChain;
use crate::harness::{LabContext, ProcessError};

/// The interval at which a wait checks for a stop request.
const LOOK: Duration = Duration::from_millis(100);
/// The share of packets lost in a lossy network.
const LOSS: f64 = 0.02;

/// A fault that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    /// The kind of fault.
    pub(super) what: What,
    /// The affected chain; `None` when the network affected both.
    pub(super) chain: Option<usize>,
    /// The begin.
    pub(super) began: Instant,
    /// The end.
    pub(super) ended: Instant,
}

/// The sequence of faults.
pub(super) struct Faults<'a> {
    lab_context: &'a LabContext,
    scenario: &'a Scenario,
    next: usize,
    past: Vec<Past>,
}

impl<'a> Faults<'a> {
    /// Creates the sequence of a scenario's faults.
    pub(super) const fn new(lab_context: &'a LabContext, scenario: &'a Scenario) -> Self {
        Self { lab_context, scenario, next: 0, past: Vec::new() }
    }

    /// Returns the faults that have ended.
    pub(super) fn past(self) -> Vec<Past> {
        self.past
    }

    /// Alternates calms and faults for a round; no fault begins that would end after the round, or
    /// that does not belong to it.
    pub(super) fn hurt_in(
        &mut self,
        (round, quick): (u32, bool),
        chains: &mut [SplitChain],
    ) -> Result<(), ProcessError> {
        let until = Instant::now() + self.scenario.round(quick);
        loop {
            self.wait(self.scenario.calm().min(until.saturating_duration_since(Instant::now())))?;
            let faults = &self.scenario.faults;
            while faults
                .get(self.next % faults.len().max(1))
                .is_some_and(|fault| !self.scenario.has_in_round(fault.what, round, quick))
            {
                self.next += 1;
            }
            let Some(fault) = faults.get(self.next % faults.len().max(1)) else {
                return self.wait(until.saturating_duration_since(Instant::now()));
            };
            if Instant::now() + fault.lasts() > until {
                return self.wait(until.saturating_duration_since(Instant::now()));
            }
            // Each pass of the list affects the other chain.
            let chain = (self.next / faults.len()) % chains.len();
            let began = Instant::now();
            self.hurt(*fault, &mut chains[chain])?;
            let is_of_network = matches!(fault.what, What::Loss | What::Outage);
            let hurt = (!is_of_network).then_some(chain);
            self.past.push(Past { what: fault.what, chain: hurt, began, ended: Instant::now() });
            self.next += 1;
        }
    }

    fn hurt(&self, fault: Fault, chain: &mut SplitChain) -> Result<(), ProcessError> {
        let lasts = fault.lasts();
        let first = chain.relays[0].service.as_ref().map(|service| service.process());
        let first = first.expect("only second relays are killed");
        match fault.what {
            What::Loss => self.lose(LOSS, lasts),
            What::Outage => self.lose(1.0, lasts),
            What::Kill => {
                chain.kill(1);
                self.wait(lasts)?;
                chain.revive(self.lab_context, 1)
            }
            What::Pause => {
                processes::pause(first).map_err(LabError::from)?;
                self.wait(lasts)?;
                Ok(processes::resume(first).map_err(LabError::from)?)
            }
            What::Descriptors => {
                let has = descriptors::count(first).map_err(LabError::from)?;
                let before = descriptors::limit(first, has).map_err(LabError::from)?;
                self.wait(lasts)?;
                descriptors::limit(first, before).map_err(LabError::from)?;
                Ok(())
            }
        }
    }

    /// Makes packets between the relays be lost with probability `share`, for `lasts`.
    fn lose(&self, share: f64, lasts: Duration) -> Result<(), ProcessError> {
        let topology = self.lab_context.lab.topology();
        let site = |host: &HostId| {
            let known = topology.hosts.iter().find(|known| known.id == *host);
            topology.sites[usize::from(known.expect("the scenario was checked").site.0)].id.clone()
        };
        let [west, east] = &self.scenario.relays;
        let mut change = PairChange::new(site(west), site(east), true);
        for share in [share, 0.0] {
            change.loss = Some(Ratio::new(share).expect("a share"));
            self.lab_context.lab.apply(&change)?;
            if share > 0.0 {
                self.wait(lasts)?;
            }
        }
        Ok(())
    }

    fn wait(&self, span: Duration) -> Result<(), ProcessError> {
        let until = Instant::now() + span;
        loop {
            self.lab_context.stop.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}
