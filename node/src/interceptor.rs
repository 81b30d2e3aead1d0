//! Rules of the kernel that take applications' packets off their way while there is a far endpoint to carry them to: datagrams to sockets
//! (TPROXY), whole packets into TUN devices.
//!
//! Whatever goes wrong, packets go their old way: the rules are in force only while the far endpoint answers, the kernel removes
//! them when this process ends, however it ends, and they lapse when it hangs, or a worker does (`net::interception`, `ticks`). Setting and
//! removing them starts programs, so that a thread of its own does it.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::JoinHandle;

use ipnet::IpNet;
use tradewind_grant::DestinationRule;
use tradewind_net::interception::{BEAT_EVERY, Capture, Detour, Interception};
use tradewind_net::iproute::{Tool, ask};
use tradewind_net::{NetError, clock};
use tradewind_units::{Duration, Timestamp};

use crate::ticks::AllTicks;

/// Time between two looks at whether the far endpoints answer.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Looks without a beat before a worker is said to hang: 1.6 s.
const QUIET_LOOKS: u32 = 32;
/// Looks before rules that the kernel refused are tried again: 5 s.
const LOOKS_BEFORE_AGAIN: u32 = 100;

/// What a device must take before the kernel has IPv6 on it (RFC 8200).
pub(crate) const LEAST_IPV6_MTU: u16 = 1280;

/// What is to be taken, and whether now.
#[derive(Debug)]
pub(crate) struct Gate {
    wanted: Wanted,
    is_open: AtomicBool,
    /// Of a TUN device: the longest packet that its far endpoints' paths take.
    mtu: AtomicU16,
}

/// What is to be taken, and where it is led.
#[derive(Debug)]
enum Wanted {
    Datagrams(Capture),
    /// To what is sent under others' addresses.
    Answers(Vec<Range>),
    Packets {
        device: String,
        ranges: Vec<IpNet>,
    },
}

/// Addresses that share the first bits, and ports, as the kernel's interface has them.
type Range = (IpAddr, u8, RangeInclusive<u16>);

/// Rules while they are in force.
#[derive(Debug)]
enum Set {
    Datagrams(Interception),
    Packets(Detour),
}

impl Set {
    fn beat(&self) -> Result<(), NetError> {
        match self {
            Self::Datagrams(rules) => rules.beat(),
            Self::Packets(routes) => routes.beat(),
        }
    }
}

impl Gate {
    pub(crate) fn of_datagrams(capture: Capture) -> Self {
        Self::new(Wanted::Datagrams(capture))
    }

    /// Packets to what the rules cover go into `device`.
    pub(crate) fn of_packets(device: &str, rules: &[DestinationRule]) -> Self {
        let range = |rule: &DestinationRule| {
            let (base, bits) = rule.range()?;
            IpNet::new(base, bits).ok().map(|range| range.trunc())
        };
        let ranges = rules.iter().filter_map(range).collect();
        Self::new(Wanted::Packets { device: device.to_owned(), ranges })
    }

    fn new(wanted: Wanted) -> Self {
        Self { wanted, is_open: AtomicBool::new(false), mtu: AtomicU16::new(0) }
    }

    /// Whether the rules could be set.
    pub(crate) fn check(&self) -> Result<(), NetError> {
        match &self.wanted {
            Wanted::Datagrams(capture) => Interception::check_for_datagrams(capture),
            Wanted::Answers(_) => Ok(()),
            Wanted::Packets { .. } => ask(Tool::Ip, &["rule", "show"]).map(drop),
        }
    }

    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Relaxed);
    }

    pub(crate) fn set_mtu(&self, mtu: u16) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    fn set(&self) -> Result<Set, NetError> {
        Ok(match &self.wanted {
            Wanted::Datagrams(capture) => Set::Datagrams(Interception::set_for_datagrams(capture)?),
            Wanted::Answers(sources) => Set::Datagrams(Interception::set_for_answers(sources)?),
            Wanted::Packets { device, ranges } => {
                let takes_ipv6 = self.mtu.load(Ordering::Relaxed) >= LEAST_IPV6_MTU;
                let fits = |range: &&IpNet| takes_ipv6 || range.addr().is_ipv4();
                let ranges: Vec<_> = ranges.iter().filter(fits).copied().collect();
                let routes = Detour::set(device, &ranges)?;
                routes.shortfalls().for_each(|what| tracing::warn!("{device}: {what}"));
                Set::Packets(routes)
            }
        })
    }

    fn what(&self) -> &'static str {
        match &self.wanted {
            Wanted::Datagrams(_) => "datagrams",
            Wanted::Answers(_) => "answers",
            Wanted::Packets { .. } => "packets",
        }
    }
}

/// A gate's rules.
#[derive(Debug)]
pub(crate) struct Rules {
    gate: Arc<Gate>,
    in_force: Option<Set>,
    mtu: u16,
    /// Looks until the kernel is asked again.
    wait: u32,
}

impl Rules {
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        Self { gate, in_force: None, mtu: 0, wait: 0 }
    }

    /// What brings answers back to where datagrams are delivered under the addresses `sources`: it is in force from now on.
    pub(crate) fn of_answers(sources: &[DestinationRule]) -> Result<Self, NetError> {
        let gate = Gate::new(Wanted::Answers(ranges(sources)));
        gate.set_open(true);
        let in_force = Some(gate.set()?);
        Ok(Self { in_force, ..Self::new(Arc::new(gate)) })
    }

    fn follow(&mut self) {
        self.wait = self.wait.saturating_sub(1);
        if self.wait > 0 {
            return;
        }
        if let Err(error) = self.follow_mtu().and_then(|()| self.follow_gate()) {
            tracing::warn!(%error, "{} go their old way", self.gate.what());
            self.wait = LOOKS_BEFORE_AGAIN;
        }
    }

    /// Has what is in force hold on; what was taken away meanwhile is set again.
    fn beat(&mut self) {
        if let Some(Err(error)) = self.in_force.as_ref().map(Set::beat) {
            tracing::warn!(%error, "{} go their old way for a moment", self.gate.what());
            self.in_force = None;
        }
    }

    fn follow_gate(&mut self) -> Result<(), NetError> {
        let what = self.gate.what();
        match (&self.in_force, self.gate.is_open.load(Ordering::Relaxed)) {
            (None, true) => {
                self.in_force = Some(self.gate.set()?);
                tracing::info!("{what} are taken off their way");
            }
            (Some(_), false) => {
                tracing::warn!("the far gateway is silent: {what} go their old way");
                self.in_force = None;
            }
            _ => {}
        }
        Ok(())
    }

    /// Tells the kernel how long packets may be, before anything is routed into the device.
    fn follow_mtu(&mut self) -> Result<(), NetError> {
        let mtu = self.gate.mtu.load(Ordering::Relaxed);
        if let (Wanted::Packets { device, .. }, true) = (&self.gate.wanted, mtu != self.mtu) {
            // A device that was too narrow for IPv6 has lost such routes.
            self.in_force = None;
            ask(Tool::Ip, &["link", "set", device, "mtu", &mtu.to_string()])?;
            self.mtu = mtu;
        }
        Ok(())
    }
}

/// Those of all gates.
struct AllRules {
    rules: Vec<Rules>,
    workers: AllTicks,
    /// When they were last made to hold on.
    beaten: Timestamp,
    /// Looks since then.
    quiet_looks: u32,
}

impl AllRules {
    fn new(rules: Vec<Rules>, workers: AllTicks) -> Self {
        Self { rules, workers, beaten: clock::monotonic(), quiet_looks: 0 }
    }

    fn follow(&mut self) {
        self.quiet_looks = self.quiet_looks.saturating_add(1);
        if self.quiet_looks == QUIET_LOOKS {
            tracing::warn!("a worker hangs: what is taken off its way goes its old way");
        }
        for at in 0..self.rules.len() {
            self.rules[at].follow();
            // To set rules takes a while: others lapse only if one takes longer than they hold.
            self.beat(clock::monotonic());
        }
    }

    /// Has all hold on where that is due and each worker has gone on since.
    fn beat(&mut self, now: Timestamp) {
        if now.since(self.beaten) >= BEAT_EVERY && self.workers.have_all_gone_on() {
            self.rules.iter_mut().for_each(Rules::beat);
            (self.beaten, self.quiet_looks) = (now, 0);
        }
    }
}

/// The thread that follows all rules; what is in force ends with it.
#[derive(Debug)]
pub(crate) struct Interceptor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Interceptor {
    pub(crate) fn start(rules: Vec<Rules>, workers: AllTicks) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let mut all = AllRules::new(rules, workers);
        let follow = move || {
            while !is_stopped.load(Ordering::Relaxed) {
                all.follow();
                std::thread::park_timeout(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("interceptor".to_owned()).spawn(follow)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Interceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// The rules that are ranges, as the kernel's interface has them.
pub(crate) fn ranges(rules: &[DestinationRule]) -> Vec<Range> {
    let range = |rule: &DestinationRule| {
        let (base, bits) = rule.range()?;
        Some((base, bits, rule.ports()))
    };
    rules.iter().filter_map(range).collect()
}
