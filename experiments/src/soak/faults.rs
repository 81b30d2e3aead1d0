//! The faults of a soak, one after the other.

use std::time::{Duration, Instant};

use tradewind_lab::LabError;
use tradewind_net::{descriptors, processes};
use tradewind_units::{HostId, Ratio};
use tradewind_wan::PairChange;

use super::scenario::{Fault, Scenario, What};
use crate::demo::DemoError;
use crate::lab_run::Ground;
use crate::lab_run::chain::SplitChain;

/// How often a wait looks whether to give up.
const LOOK: Duration = Duration::from_millis(100);
/// The share of packets that a lossy network loses.
const LOSS: f64 = 0.02;

/// A fault that is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    /// What it was.
    pub(super) what: What,
    /// The chain that it hurt; the network hurts both.
    pub(super) chain: Option<usize>,
    /// From when.
    pub(super) began: Instant,
    /// Until when.
    pub(super) ended: Instant,
}

/// The faults in turn.
pub(super) struct Faults<'a> {
    ground: &'a Ground,
    scenario: &'a Scenario,
    next: usize,
    past: Vec<Past>,
}

impl<'a> Faults<'a> {
    /// All of a scenario.
    pub(super) const fn new(ground: &'a Ground, scenario: &'a Scenario) -> Self {
        Self { ground, scenario, next: 0, past: Vec::new() }
    }

    /// Those that are over.
    pub(super) fn past(self) -> Vec<Past> {
        self.past
    }

    /// Goes on for a round with a fault, a calm, a fault; none begins that would last longer, or that is not of this round.
    pub(super) fn hurt_in(
        &mut self,
        (round, quick): (u32, bool),
        chains: &mut [SplitChain],
    ) -> Result<(), DemoError> {
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
            // Each round of the list hurts the other chain.
            let chain = (self.next / faults.len()) % chains.len();
            let began = Instant::now();
            self.hurt(*fault, &mut chains[chain])?;
            let is_of_network = matches!(fault.what, What::Loss | What::Outage);
            let hurt = (!is_of_network).then_some(chain);
            self.past.push(Past { what: fault.what, chain: hurt, began, ended: Instant::now() });
            self.next += 1;
        }
    }

    fn hurt(&self, fault: Fault, chain: &mut SplitChain) -> Result<(), DemoError> {
        let lasts = fault.lasts();
        let first = chain.relays[0].service.as_ref().map(|service| service.process());
        let first = first.expect("only second relays are killed");
        match fault.what {
            What::Loss => self.lose(LOSS, lasts),
            What::Outage => self.lose(1.0, lasts),
            What::Kill => {
                chain.kill(1);
                self.wait(lasts)?;
                chain.revive(self.ground, 1)
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

    /// Loses this share of what passes between the relays.
    fn lose(&self, share: f64, lasts: Duration) -> Result<(), DemoError> {
        let topology = self.ground.lab.topology();
        let site = |host: &HostId| {
            let known = topology.hosts.iter().find(|known| known.id == *host);
            topology.sites[usize::from(known.expect("the scenario was checked").site.0)].id.clone()
        };
        let [west, east] = &self.scenario.relays;
        let mut change = PairChange::new(site(west), site(east), true);
        for share in [share, 0.0] {
            change.loss = Some(Ratio::new(share).expect("a share"));
            self.ground.lab.apply(&change)?;
            if share > 0.0 {
                self.wait(lasts)?;
            }
        }
        Ok(())
    }

    fn wait(&self, span: Duration) -> Result<(), DemoError> {
        let until = Instant::now() + span;
        loop {
            self.ground.stop.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}
