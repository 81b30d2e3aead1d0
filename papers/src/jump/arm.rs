//! One method of starting connections, with its learner.

use std::net::IpAddr;
use std::time::Duration;

use tradewind_jumpstart::{Config, Control, Learner, Mode};
use tradewind_jumpstart_daemon::observe::sample_of;
use tradewind_lab::Lab;
use tradewind_net::clock::monotonic;
use tradewind_net::initial_window::{InitialWindow, InitialWindows};
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::{Bandwidth, HostId, Ratio, Segments};

use crate::harness::exchange::{ConnectionPair, Done, Fetch, FileListener, Looks, Over, exchange};
use crate::harness::{LabContext, ProcessError};

/// Method of starting connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Start {
    /// As the kernel does by default.
    Default,
    /// `[RT Algorithm 1]`.
    Riptide,
    /// At the learned rate.
    Paced,
}

impl Start {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Default, Self::Riptide, Self::Paced];

    /// Returns its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Riptide => "riptide",
            Self::Paced => "paced",
        }
    }
}

/// A sender towards one receiver, with its learner.
pub(crate) struct Arm<'a> {
    context: &'a LabContext,
    windows: &'a InitialWindows,
    /// The sender.
    pub(crate) from: HostId,
    /// The receiver, which fetches.
    pub(crate) to: HostId,
    remote: IpAddr,
    learner: Option<Learner>,
    looked_at: u64,
}

/// Start of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Given {
    /// Its initial window, and the rate behind it; none: the kernel's default.
    pub(crate) window: Option<InitialWindow>,
    /// Its highest rate, and the time for which that holds.
    pub(crate) paced: Option<(Bandwidth, Duration)>,
}

impl<'a> Arm<'a> {
    /// Creates an arm that knows nothing yet.
    pub(crate) fn new(
        context: &'a LabContext,
        windows: &'a InitialWindows,
        start: Start,
        c_max: Segments,
        (from, to): (HostId, HostId),
    ) -> Result<Self, ProcessError> {
        let config = |mode| Config {
            window_max: c_max,
            // There is no control share: the default window is an arm of its own.
            control: Control::Connections(Ratio::ZERO),
            ..Config::of(mode)
        };
        let mut learner = match start {
            Start::Default => None,
            Start::Riptide => Some(Learner::new(config(Mode::Riptide))),
            Start::Paced => Some(Learner::new(config(Mode::Paced))),
        };
        // Sampled connections begin by default, so that none of their losses counts as a jump's.
        learner.iter_mut().for_each(Learner::expect_reports);
        let remote = IpAddr::V4(context.lab.address_v4(&to)?);
        Ok(Self { context, windows, from, to, remote, learner, looked_at: 0 })
    }

    /// Returns the lab.
    pub(crate) const fn lab(&self) -> &Lab {
        &self.context.lab
    }

    /// Samples a connection: a round of the learner.
    fn look(&mut self, info: &TcpInfo, id: u64) {
        let Some(learner) = &mut self.learner else { return };
        if let Some(sample) = sample_of(id, self.remote, info) {
            learner.observe(&sample);
        }
        let _ = learner.decide(monotonic());
        self.looked_at += 1;
    }

    /// Downloads over a new connection that starts by default, and samples it.
    pub(crate) fn train(
        &mut self,
        bytes: u64,
        settle: Duration,
    ) -> Result<ConnectionPair, ProcessError> {
        let file_listener = FileListener::open(self.context, &self.from, None)?;
        let fetch = Fetch {
            at: Duration::ZERO,
            over: Over::New(&self.to, &file_listener),
            bytes,
            paced: None,
        };
        let id = 1000 + self.looked_at;
        let link = one(exchange(self.context, vec![fetch], settle, None)?).link;
        self.look(&link.info()?, id);
        Ok(link)
    }

    /// Downloads over a new connection that starts by default, and samples it at intervals while it
    /// runs, as a daemon does; `also` learns from the same samples. Returns the last one.
    pub(crate) fn train_by_bulk(
        &mut self,
        bytes: u64,
        every: Duration,
        also: &mut Self,
        settle: Duration,
    ) -> Result<Option<TcpInfo>, ProcessError> {
        let (context, to) = (self.context, self.to.clone());
        let file_listener = FileListener::open(context, &self.from, None)?;
        let fetch =
            Fetch { at: Duration::ZERO, over: Over::New(&to, &file_listener), bytes, paced: None };
        let id = 1000 + self.looked_at;
        let mut last = None;
        let mut each = |_: usize, info: &TcpInfo| {
            self.look(info, id);
            also.look(info, id);
            last = Some(*info);
        };
        exchange(context, vec![fetch], settle, Some(Looks { every, each: &mut each }))?;
        Ok(last)
    }

    /// Downloads once more over an open connection, and samples it.
    pub(crate) fn again(
        &mut self,
        link: ConnectionPair,
        bytes: u64,
    ) -> Result<ConnectionPair, ProcessError> {
        let id = 1000 + self.looked_at;
        let fetch = Fetch { at: Duration::ZERO, over: Over::Idle(link), bytes, paced: None };
        let link = one(exchange(self.context, vec![fetch], Duration::ZERO, None)?).link;
        self.look(&link.info()?, id);
        Ok(link)
    }

    /// Returns the start of the next connection.
    pub(crate) fn give(&mut self) -> Given {
        let now = monotonic();
        let start = self.learner.as_mut().and_then(|learner| learner.start(now, self.remote, None));
        let Some(start) = start else { return Given::default() };
        Given {
            window: Some(InitialWindow { segments: start.window, rate: start.pacing }),
            // A loan counts from when the connection is established, as where a program in the
            // kernel gives it.
            paced: start.pacing.map(|rate| (rate, start.until.since(now))),
        }
    }

    /// Returns the learned rate, in Mbit/s of payload; none in `riptide`, and where no sample
    /// showed one.
    pub(crate) fn learned_mbps(&self) -> Option<f64> {
        self.learner.as_ref()?.explain(self.remote, monotonic())?.rate_mbps
    }

    /// Downloads `bytes` over each of several new connections that begin at these times.
    pub(crate) fn burst(
        &mut self,
        bytes: u64,
        starts: &[Duration],
        settle: Duration,
    ) -> Result<Vec<Done>, ProcessError> {
        let given: Vec<Given> = starts.iter().map(|_| self.give()).collect();
        let open = |given: &Given| {
            FileListener::open(
                self.context,
                &self.from,
                given.window.map(|window| (self.windows, window)),
            )
        };
        let file_listeners: Vec<FileListener> =
            given.iter().map(open).collect::<Result<_, ProcessError>>()?;
        let fetch = |((at, given), file_listener)| {
            let (at, given): (&Duration, &Given) = (at, given);
            Fetch { at: *at, over: Over::New(&self.to, file_listener), bytes, paced: given.paced }
        };
        let fetches = starts.iter().zip(&given).zip(&file_listeners).map(fetch).collect();
        exchange(self.context, fetches, settle, None)
    }
}

/// Returns the only element.
pub(crate) fn one<T>(mut all: Vec<T>) -> T {
    all.pop().expect("as many came back as were asked for")
}
