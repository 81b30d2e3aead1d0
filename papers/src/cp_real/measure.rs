//! Measures through the emulated WAN with the product's own probe, started like any user's.

use std::collections::BTreeMap;

use tradewind_demo::{host_of, lanes};
use tradewind_probe::{RateReport, RttReport};
use tradewind_units::{Bandwidth, Duration, HostId, SiteId};

use crate::harness::process::{Question, Service};
use crate::harness::{LabContext, ProcessError};

/// The port of every host's responder for rate tests.
const RESPONDER_PORT: u16 = 7100;

/// The bounds on a measurement's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// Handshakes for each pair.
    pub(super) rtt_samples: u32,
    /// The time between two handshakes.
    pub(super) rtt_interval: Duration,
    /// Longest rate test.
    pub(super) rate_duration: Duration,
    /// The time for which a rate must be steady to end its test early.
    pub(super) steady_for: Duration,
    /// `true` when the rates between relays are measured, too.
    pub(super) between_relays: bool,
    /// Largest number of rounds of planning and measuring; the last plan may use unmeasured legs.
    pub(super) rounds: usize,
    /// The time for the transfers of a plan, after which invalid ones are not repeated.
    pub(super) to_carry: Duration,
}

impl Effort {
    /// The papers' effort: the minimum of 20 handshakes at 0.1 s `[CDD V]`.
    pub(super) const FULL: Self = Self {
        rtt_samples: 20,
        rtt_interval: Duration::from_millis(100),
        rate_duration: Duration::from_secs(8),
        steady_for: Duration::from_secs(1),
        between_relays: true,
        // Two to four suffice on the demo's mesh.
        rounds: 6,
        to_carry: Duration::from_secs(60),
    };
    /// Reduced effort, sufficient on a path without queues.
    pub(super) const QUICK: Self = Self {
        rtt_samples: 4,
        rtt_interval: Duration::from_millis(100),
        rate_duration: Duration::from_secs(4),
        steady_for: Duration::from_millis(500),
        between_relays: false,
        rounds: 2,
        to_carry: Duration::from_secs(8),
    };
}

/// An ordered pair of sites.
pub(super) type Pair = (SiteId, SiteId);

/// A rate test.
#[derive(Debug, Clone)]
pub(super) struct RateTest {
    /// The sending and the receiving site.
    pub(super) pair: Pair,
    /// The expected rate, as far as it is known.
    pub(super) expected: Bandwidth,
    /// The largest rate to send: more would be of no use to any path.
    pub(super) max_rate: Option<Bandwidth>,
}

impl RateTest {
    fn work(&self) -> lanes::Work {
        let rate = self.max_rate.map_or(self.expected, |most| most.min(self.expected));
        let (source, destination) = (host_of(&self.pair.0), host_of(&self.pair.1));
        lanes::Work { source, destination, peak: rate, load: rate }
    }
}

/// Probes on the hosts of a lab.
pub(super) struct Prober<'a> {
    context: &'a LabContext,
    effort: Effort,
    _responders: Vec<Service>,
}

impl<'a> Prober<'a> {
    /// Starts a responder on every host.
    pub(super) fn start(context: &'a LabContext, effort: Effort) -> Result<Self, ProcessError> {
        let LabContext { lab, scratch, program, stop } = context;
        let mut responders = Vec::new();
        for host in lab.hosts() {
            stop.check()?;
            let listen = format!("{}:{RESPONDER_PORT}", lab.address_v4(host)?);
            let mut command = lab.command(host, program)?;
            command.args(["probe", "responder", "--listen", &listen]);
            responders.push(Service::start(command, &format!("responder-{host}"), scratch)?.0);
        }
        Ok(Self { context, effort, _responders: responders })
    }

    /// Measures round-trip times from every host to every other.
    pub(super) fn rtts(&self) -> Result<BTreeMap<Pair, RttReport>, ProcessError> {
        let hosts: Vec<&HostId> = self.context.lab.hosts().collect();
        let mut questions = Vec::new();
        for host in &hosts {
            let mut command = self.context.lab.command(host, &self.context.program)?;
            command.args(["probe", "rtt", "--output", "json"]);
            command.args(["--samples", &self.effort.rtt_samples.to_string()]);
            command.args(["--interval", &format!("{} ms", self.effort.rtt_interval.as_millis())]);
            let others: Vec<&HostId> =
                hosts.iter().filter(|other| other != &host).copied().collect();
            for other in &others {
                command.arg(format!("{}:{RESPONDER_PORT}", self.context.lab.address_v4(other)?));
            }
            let question = Question::ask(command, &format!("rtt-{host}"), &self.context.scratch)?;
            questions.push((*host, others, question));
        }
        let mut reports = BTreeMap::new();
        for (host, others, question) in questions {
            let answers: Vec<RttReport> = question.answer(&self.context.stop)?;
            for (other, report) in others.into_iter().zip(answers) {
                reports.insert((self.site_of(host), self.site_of(other)), report);
            }
        }
        Ok(reports)
    }

    /// Measures rates of one connection each, several at once where they do not disturb each other.
    pub(super) fn rates(
        &self,
        tests: &[RateTest],
    ) -> Result<BTreeMap<Pair, RateReport>, ProcessError> {
        let work: Vec<lanes::Work> = tests.iter().map(RateTest::work).collect();
        let mut reports = BTreeMap::new();
        for group in lanes::groups(&work) {
            let mut questions = Vec::new();
            for index in group {
                questions.push((tests[index].pair.clone(), self.rate_question(&tests[index])?));
            }
            for (pair, question) in questions {
                reports.insert(pair, question.answer(&self.context.stop)?);
            }
        }
        Ok(reports)
    }

    fn rate_question(&self, test: &RateTest) -> Result<Question, ProcessError> {
        let (source, destination) = &test.pair;
        let [from, to] = [source, destination].map(host_of);
        let mut command = self.context.lab.command(&from, &self.context.program)?;
        command.args(["probe", "rate", "--output", "json"]);
        command.args(["--duration", &format!("{} ms", self.effort.rate_duration.as_millis())]);
        command.args(["--steady-for", &format!("{} ms", self.effort.steady_for.as_millis())]);
        if let Some(rate) = test.max_rate {
            command.args(["--max-rate", &rate.to_string()]);
        }
        command.arg(format!("{}:{RESPONDER_PORT}", self.context.lab.address_v4(&to)?));
        Question::ask(command, &format!("rate-{source}-{destination}"), &self.context.scratch)
    }

    /// Returns the effort of the measurements.
    pub(super) const fn effort(&self) -> Effort {
        self.effort
    }

    /// Returns the site of a host; the demo has one host per site, with the site's name.
    fn site_of(&self, host: &HostId) -> SiteId {
        SiteId::new(host.as_str()).expect("a host's name is a site's name")
    }
}
