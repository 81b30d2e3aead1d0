//! Measures through the emulated WAN with the product's own probe, started as any user would start it.

use std::collections::BTreeMap;

use tradewind_lab::Lab;
use tradewind_probe::{RateReport, RttReport};
use tradewind_units::{Bandwidth, Duration, HostId, SiteId};

use super::process::{Question, Scratch, Service};
use super::{DemoError, Stop, lanes};

/// Where every host answers rate tests.
const RESPONDER_PORT: u16 = 7100;

/// What bounds a measurement's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// Handshakes for each pair.
    pub(super) rtt_samples: u32,
    /// From one handshake to the next.
    pub(super) rtt_interval: Duration,
    /// Longest rate test.
    pub(super) rate_duration: Duration,
}

impl Effort {
    /// As the papers: the minimum of 20 handshakes at 0.1 s `[CDD V]`.
    pub(super) const FULL: Self = Self {
        rtt_samples: 20,
        rtt_interval: Duration::from_millis(100),
        rate_duration: Duration::from_secs(8),
    };
    /// Enough on a path without queues.
    pub(super) const QUICK: Self = Self {
        rtt_samples: 4,
        rtt_interval: Duration::from_millis(100),
        rate_duration: Duration::from_secs(4),
    };
}

/// An ordered pair of places.
pub(super) type Pair = (SiteId, SiteId);

/// The probe on the hosts of a lab.
pub(super) struct Prober<'a> {
    lab: &'a Lab,
    program: &'a std::path::Path,
    scratch: &'a Scratch,
    stop: &'a Stop,
    effort: Effort,
    _responders: Vec<Service>,
}

impl<'a> Prober<'a> {
    /// Starts a responder on every host.
    pub(super) fn start(
        lab: &'a Lab,
        program: &'a std::path::Path,
        scratch: &'a Scratch,
        stop: &'a Stop,
        effort: Effort,
    ) -> Result<Self, DemoError> {
        let mut responders = Vec::new();
        for host in lab.hosts() {
            stop.check()?;
            let listen = format!("{}:{RESPONDER_PORT}", lab.address_v4(host)?);
            let mut command = lab.command(host, program)?;
            command.args(["probe", "responder", "--listen", &listen]);
            responders.push(Service::start(command, &format!("responder-{host}"), scratch)?.0);
        }
        Ok(Self { lab, program, scratch, stop, effort, _responders: responders })
    }

    /// Round-trip times from every host to every other; `done` is told how many hosts have answered.
    pub(super) fn rtts(
        &self,
        mut done: impl FnMut(u64),
    ) -> Result<BTreeMap<Pair, RttReport>, DemoError> {
        let hosts: Vec<&HostId> = self.lab.hosts().collect();
        let mut questions = Vec::new();
        for host in &hosts {
            let mut command = self.lab.command(host, self.program)?;
            command.args(["probe", "rtt", "--output", "json"]);
            command.args(["--samples", &self.effort.rtt_samples.to_string()]);
            command.args(["--interval", &format!("{} ms", self.effort.rtt_interval.as_millis())]);
            let others: Vec<&HostId> =
                hosts.iter().filter(|other| other != &host).copied().collect();
            for other in &others {
                command.arg(format!("{}:{RESPONDER_PORT}", self.lab.address_v4(other)?));
            }
            let question = Question::ask(command, &format!("rtt-{host}"), self.scratch)?;
            questions.push((*host, others, question));
        }
        let mut reports = BTreeMap::new();
        for (count, (host, others, question)) in questions.into_iter().enumerate() {
            let answers: Vec<RttReport> = question.answer(self.stop)?;
            for (other, report) in others.into_iter().zip(answers) {
                reports.insert((self.site_of(host), self.site_of(other)), report);
            }
            done(count as u64 + 1);
        }
        Ok(reports)
    }

    /// Rates of one connection over these pairs; several at once where they share no host and the machine can carry
    /// their expected rates. `done` is told how many have ended.
    pub(super) fn rates(
        &self,
        pairs: &[(Pair, Bandwidth)],
        mut done: impl FnMut(u64),
    ) -> Result<BTreeMap<Pair, RateReport>, DemoError> {
        let tests: Vec<lanes::Work> = pairs
            .iter()
            .map(|((source, destination), expected)| lanes::Work {
                source: source.clone(),
                destination: destination.clone(),
                peak: *expected,
                load: *expected,
            })
            .collect();
        let mut reports = BTreeMap::new();
        for group in lanes::groups(&tests) {
            let mut questions = Vec::new();
            for index in group {
                let pair = &pairs[index].0;
                questions.push((pair.clone(), self.rate_question(pair)?));
            }
            for (pair, question) in questions {
                reports.insert(pair, question.answer(self.stop)?);
                done(reports.len() as u64);
            }
        }
        Ok(reports)
    }

    fn rate_question(&self, (source, destination): &Pair) -> Result<Question, DemoError> {
        let [from, to] = [source, destination].map(super::host_of);
        let mut command = self.lab.command(&from, self.program)?;
        command.args(["probe", "rate", "--output", "json"]);
        command.args(["--duration", &format!("{} ms", self.effort.rate_duration.as_millis())]);
        command.arg(format!("{}:{RESPONDER_PORT}", self.lab.address_v4(&to)?));
        Question::ask(command, &format!("rate-{source}-{destination}"), self.scratch)
    }

    /// The demo has one host a site, of the site's name.
    fn site_of(&self, host: &HostId) -> SiteId {
        SiteId::new(host.as_str()).expect("a host's name is a site's name")
    }
}
