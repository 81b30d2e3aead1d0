//! A way to start connections, and the learner behind it.

use std::net::IpAddr;
use std::time::Duration;

use tradewind_jumpstart::{Config, Control, Learner, Mode};
use tradewind_lab::Lab;
use tradewind_net::clock::monotonic;
use tradewind_net::first_window::{FirstWindow, FirstWindows};
use tradewind_net::tcp_info::TcpInfo;
use tradewind_tuner::observe::sample_of;
use tradewind_units::{Bandwidth, HostId, Ratio, Segments};

use crate::demo::DemoError;
use crate::lab_run::Ground;
use crate::lab_run::exchange::{Done, Door, Fetch, Link, Looks, Over, exchange};

/// How connections start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Start {
    /// As the kernel has it.
    Default,
    /// `[RT Algorithm 1]`.
    Riptide,
    /// At the learned rate.
    Paced,
}

impl Start {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Default, Self::Riptide, Self::Paced];

    /// A word.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Riptide => "riptide",
            Self::Paced => "paced",
        }
    }
}

/// A sender towards one receiver, and what it knows.
pub(crate) struct Arm<'a> {
    ground: &'a Ground,
    windows: &'a FirstWindows,
    /// Who sends.
    pub(crate) from: HostId,
    /// Who fetches.
    pub(crate) to: HostId,
    remote: IpAddr,
    learner: Option<Learner>,
    looked_at: u64,
}

/// How a connection will start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Given {
    /// Its first window, and the rate behind it; none: as the kernel has it.
    pub(crate) window: Option<FirstWindow>,
    /// Its greatest rate, and for how long.
    pub(crate) paced: Option<(Bandwidth, Duration)>,
}

impl<'a> Arm<'a> {
    /// Knows nothing yet.
    pub(crate) fn new(
        ground: &'a Ground,
        windows: &'a FirstWindows,
        start: Start,
        c_max: Segments,
        (from, to): (HostId, HostId),
    ) -> Result<Self, DemoError> {
        let config = |mode| Config {
            window_max: c_max,
            // Nobody is held back: the default window is an arm of its own.
            control: Control::Connections(Ratio::ZERO),
            ..Config::of(mode)
        };
        let mut learner = match start {
            Start::Default => None,
            Start::Riptide => Some(Learner::new(config(Mode::Riptide))),
            Start::Paced => Some(Learner::new(config(Mode::Paced))),
        };
        // What it looks at begins by default, so that no loss of its is a jump's.
        learner.iter_mut().for_each(Learner::expect_to_be_told);
        let remote = IpAddr::V4(ground.lab.address_v4(&to)?);
        Ok(Self { ground, windows, from, to, remote, learner, looked_at: 0 })
    }

    /// Where it runs.
    pub(crate) const fn lab(&self) -> &Lab {
        &self.ground.lab
    }

    /// A look at a connection: a round of the learner.
    fn look(&mut self, info: &TcpInfo, id: u64) {
        let Some(learner) = &mut self.learner else { return };
        if let Some(sample) = sample_of(id, self.remote, info) {
            learner.observe(&sample);
        }
        let _ = learner.decide(monotonic());
        self.looked_at += 1;
    }

    /// One download over a new connection that starts by default, and a look at it.
    pub(crate) fn train(&mut self, bytes: u64, settle: Duration) -> Result<Link, DemoError> {
        let door = Door::open(self.ground, &self.from, None)?;
        let fetch =
            Fetch { at: Duration::ZERO, over: Over::New(&self.to, &door), bytes, paced: None };
        let id = 1000 + self.looked_at;
        let link = one(exchange(self.ground, vec![fetch], settle, None)?).link;
        self.look(&link.info()?, id);
        Ok(link)
    }

    /// One download over a new connection that starts by default, with a look every so often while it runs, as a daemon
    /// does; `also` learns from the same looks. Returns what the last look saw.
    pub(crate) fn train_by_bulk(
        &mut self,
        bytes: u64,
        every: Duration,
        also: &mut Self,
        settle: Duration,
    ) -> Result<Option<TcpInfo>, DemoError> {
        let (ground, to) = (self.ground, self.to.clone());
        let door = Door::open(ground, &self.from, None)?;
        let fetch = Fetch { at: Duration::ZERO, over: Over::New(&to, &door), bytes, paced: None };
        let id = 1000 + self.looked_at;
        let mut last = None;
        let mut each = |_: usize, info: &TcpInfo| {
            self.look(info, id);
            also.look(info, id);
            last = Some(*info);
        };
        exchange(ground, vec![fetch], settle, Some(Looks { every, each: &mut each }))?;
        Ok(last)
    }

    /// One more download over a connection that stands, and a look at it.
    pub(crate) fn again(&mut self, link: Link, bytes: u64) -> Result<Link, DemoError> {
        let id = 1000 + self.looked_at;
        let fetch = Fetch { at: Duration::ZERO, over: Over::Kept(link), bytes, paced: None };
        let link = one(exchange(self.ground, vec![fetch], Duration::ZERO, None)?).link;
        self.look(&link.info()?, id);
        Ok(link)
    }

    /// How the next connection starts.
    pub(crate) fn give(&mut self) -> Given {
        let now = monotonic();
        let start = self.learner.as_mut().and_then(|learner| learner.start(now, self.remote, None));
        let Some(start) = start else { return Given::default() };
        Given {
            window: Some(FirstWindow { segments: start.window, rate: start.pacing }),
            // A loan counts from when the connection stands, as where a program in the kernel gives it.
            paced: start.pacing.map(|rate| (rate, start.until.since(now))),
        }
    }

    /// The rate that was learned, in Mbit/s of payload; none in `riptide`, and where nothing showed one.
    pub(crate) fn learned_mbps(&self) -> Option<f64> {
        self.learner.as_ref()?.explain(self.remote, monotonic())?.rate_mbps
    }

    /// Downloads of `bytes` each over new connections that begin at these times.
    pub(crate) fn burst(
        &mut self,
        bytes: u64,
        starts: &[Duration],
        settle: Duration,
    ) -> Result<Vec<Done>, DemoError> {
        let given: Vec<Given> = starts.iter().map(|_| self.give()).collect();
        let open = |given: &Given| {
            Door::open(self.ground, &self.from, given.window.map(|window| (self.windows, window)))
        };
        let doors: Vec<Door> = given.iter().map(open).collect::<Result<_, DemoError>>()?;
        let fetch = |((at, given), door)| {
            let (at, given): (&Duration, &Given) = (at, given);
            Fetch { at: *at, over: Over::New(&self.to, door), bytes, paced: given.paced }
        };
        let fetches = starts.iter().zip(&given).zip(&doors).map(fetch).collect();
        exchange(self.ground, fetches, settle, None)
    }
}

/// The only one.
pub(crate) fn one<T>(mut all: Vec<T>) -> T {
    all.pop().expect("as many came back as were asked for")
}
