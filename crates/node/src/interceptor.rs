//! Kernel rules that intercept applications' packets while there is a remote endpoint to carry them
//! to: datagrams into sockets (TPROXY), whole packets into TUN devices.
//!
//! Whatever goes wrong, packets take their original path: the rules are in force only while the
//! remote endpoint answers, the kernel removes them when this process ends, however it ends, and
//! they lapse when it hangs, or a worker does (`net::interception`, `ticks`). Setting and removing
//! them starts programs, so a thread of its own does it, and another one renews those in force
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use ipnet::IpNet;
use tradewind_grant::DestinationRule;
use tradewind_net::NetError;
use tradewind_net::interception::{
    AddressRange, Capture, Detour, Interception, Keeper, Shortfall, Watchdog,
};
use tradewind_net::iproute::{Tool, ask};
use tradewind_net::periodic::Periodic;
use tradewind_units::Duration;

use crate::ticks::AllTicks;

/// Interval of the checks whether the remote endpoints answer.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Checks before rules that the kernel refused are tried again: 5 s.
const LOOKS_BEFORE_AGAIN: u32 = 100;

/// Least MTU of a device for which the kernel enables IPv6 on it (RFC 8200).
pub(crate) const MIN_IPV6_MTU: u16 = 1280;

/// The packets of one interception, and whether they are intercepted now.
#[derive(Debug)]
pub(crate) struct Gate {
    redirect: Redirect,
    /// For packets one flag for each range, otherwise one for all.
    is_open: Vec<AtomicBool>,
    /// Of a TUN device: the longest packet that its remote endpoints' paths take. Of datagrams: the
    /// longest that is intercepted.
    mtu: AtomicU16,
}

/// The packets of an interception, and where they are redirected.
#[derive(Debug)]
enum Redirect {
    Datagrams(Capture),
    /// Replies to datagrams that are sent under others' addresses.
    Answers(Vec<AddressRange>),
    Packets {
        device: String,
        ranges: Vec<IpNet>,
    },
}

impl Gate {
    pub(crate) fn of_datagrams(capture: Capture) -> Self {
        Self::new(Redirect::Datagrams(capture), 1)
    }

    /// Returns a gate of the packets to `ranges`, which are routed into `device`.
    pub(crate) fn of_packets(device: &str, ranges: Vec<IpNet>) -> Self {
        let parts = ranges.len();
        Self::new(Redirect::Packets { device: device.to_owned(), ranges }, parts)
    }

    fn new(redirect: Redirect, parts: usize) -> Self {
        let is_open = std::iter::repeat_with(AtomicBool::default).take(parts).collect();
        Self { redirect, is_open, mtu: AtomicU16::new(0) }
    }

    /// Checks whether the rules can be set.
    pub(crate) fn check(&self) -> Result<(), NetError> {
        match &self.redirect {
            Redirect::Datagrams(capture) => Interception::check_for_datagrams(capture),
            Redirect::Answers(_) => Ok(()),
            Redirect::Packets { .. } => ask(Tool::Ip, &["rule", "show"]).map(drop),
        }
    }

    /// Opens or closes it for all packets.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.iter().for_each(|part| part.store(is_open, Ordering::Relaxed));
    }

    /// Opens or closes it for packets to the range at `at` alone.
    pub(crate) fn set_range_open(&self, at: usize, is_open: bool) {
        if let Some(part) = self.is_open.get(at) {
            part.store(is_open, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_mtu(&self, mtu: u16) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    fn is_open(&self) -> bool {
        self.is_open.iter().any(|part| part.load(Ordering::Relaxed))
    }

    fn what(&self) -> &'static str {
        match &self.redirect {
            Redirect::Datagrams(_) => "datagrams",
            Redirect::Answers(_) => "answers",
            Redirect::Packets { .. } => "packets",
        }
    }
}

/// Rules in force.
#[derive(Debug)]
enum Set {
    Datagrams {
        rules: Interception,
        /// The longest datagram that is intercepted; 0: any.
        longest: u16,
    },
    Packets {
        routes: Detour,
        /// The ranges that are routed into the device.
        led: Vec<IpNet>,
    },
}

impl Set {
    /// Sets rules that intercept no more than they must: packets of no range yet.
    fn of(redirect: &Redirect) -> Result<Self, NetError> {
        Ok(match redirect {
            Redirect::Datagrams(capture) => {
                Self::Datagrams { rules: Interception::set_for_datagrams(capture)?, longest: 0 }
            }
            Redirect::Answers(sources) => {
                Self::Datagrams { rules: Interception::set_for_answers(sources)?, longest: 0 }
            }
            Redirect::Packets { device, ranges } => {
                let routes = Detour::open(device, ranges)?;
                if let Some(error) = routes.unguarded() {
                    tracing::warn!(
                        "{device}: packets wait in the device if this process hangs, and do not \
                         return to their original path: {error}"
                    );
                }
                Self::Packets { routes, led: Vec::new() }
            }
        })
    }

    /// Returns the watchdog that keeps them in force, where there is one.
    fn watchdog(&self) -> Option<&Arc<Watchdog>> {
        match self {
            Self::Datagrams { rules, .. } => Some(rules.watchdog()),
            Self::Packets { routes, .. } => routes.watchdog(),
        }
    }

    /// Routes packets to the open ranges of `gate` into the device, whose MTU is `mtu`; for
    /// datagrams, sets the longest that is intercepted.
    fn follow(&mut self, gate: &Gate, mtu: u16) -> Result<(), NetError> {
        if let (Self::Datagrams { rules, longest }, Redirect::Datagrams(_)) =
            (&mut *self, &gate.redirect)
        {
            let most = gate.mtu.load(Ordering::Relaxed);
            if most != 0 && most != *longest {
                rules.set_longest_datagram(most)?;
                *longest = most;
            }
            return Ok(());
        }
        let (Self::Packets { routes, led }, Redirect::Packets { device, ranges }) =
            (self, &gate.redirect)
        else {
            return Ok(());
        };
        let is_open = gate.is_open.iter().map(|part| part.load(Ordering::Relaxed));
        let open = ranges
            .iter()
            .zip(is_open)
            .filter(|(range, is_open)| *is_open && (mtu >= MIN_IPV6_MTU || range.addr().is_ipv4()));
        let open: Vec<IpNet> = open.map(|(range, _)| *range).collect();
        if open != *led {
            let mut known = led.clone();
            for (range, shortfall) in routes.lead(&open)? {
                tracing::warn!("{device}, {range}: {shortfall}");
                known.extend(matches!(shortfall, Shortfall::NotLed(_)).then_some(range));
            }
            let (fresh, gone) = (without(&open, &known), without(led, &open));
            if !fresh.is_empty() {
                tracing::info!("{device}: packets to {fresh} are intercepted");
            }
            if !gone.is_empty() {
                tracing::warn!(
                    "{device}: nobody answers there: packets to {gone} take their original path"
                );
            }
            *led = open;
        }
        Ok(())
    }
}

/// Returns the ranges that are in one list and not in the other, as text.
fn without(ranges: &[IpNet], others: &[IpNet]) -> String {
    let without = ranges.iter().filter(|range| !others.contains(range));
    without.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A gate's rules.
#[derive(Debug)]
pub(crate) struct Rules {
    gate: Arc<Gate>,
    in_force: Option<Set>,
    mtu: u16,
    /// Checks until the kernel is asked again.
    wait: u32,
}

impl Rules {
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        Self { gate, in_force: None, mtu: 0, wait: 0 }
    }

    /// Sets rules that bring replies back to this host where datagrams are delivered under the
    /// addresses `sources`; they are in force from now on.
    pub(crate) fn of_answers(sources: &[DestinationRule]) -> Result<Self, NetError> {
        let gate = Gate::new(Redirect::Answers(ranges(sources)), 1);
        gate.set_open(true);
        let in_force = Some(Set::of(&gate.redirect)?);
        Ok(Self { in_force, ..Self::new(Arc::new(gate)) })
    }

    fn watchdog(&self) -> Option<&Arc<Watchdog>> {
        self.in_force.as_ref()?.watchdog()
    }

    fn follow(&mut self, keeper: &Keeper) {
        self.wait = self.wait.saturating_sub(1);
        if self.wait > 0 {
            return;
        }
        if let Err(error) = self.follow_mtu().and_then(|()| self.follow_gate(keeper)) {
            tracing::warn!(%error, "{} take their original path", self.gate.what());
            self.in_force = None;
            self.wait = LOOKS_BEFORE_AGAIN;
        }
    }

    fn follow_gate(&mut self, keeper: &Keeper) -> Result<(), NetError> {
        let what = self.gate.what();
        if self.watchdog().is_some_and(|watchdog| !watchdog.holds()) {
            // They were removed by somebody else, which the keeper has logged.
            self.in_force = None;
        }
        match (&mut self.in_force, self.gate.is_open()) {
            (Some(set), true) => set.follow(&self.gate, self.mtu)?,
            (Some(_), false) => {
                tracing::warn!("the remote gateway is silent: {what} take their original path");
                self.in_force = None;
            }
            (None, true) => {
                let set = self.in_force.insert(Set::of(&self.gate.redirect)?);
                set.watchdog().into_iter().for_each(|watchdog| keeper.keep(watchdog));
                set.follow(&self.gate, self.mtu)?;
                if matches!(set, Set::Datagrams { .. }) {
                    tracing::info!("{what} are intercepted");
                }
            }
            (None, false) => {}
        }
        Ok(())
    }

    /// Sets the device's MTU, before packets are routed into it.
    fn follow_mtu(&mut self) -> Result<(), NetError> {
        let mtu = self.gate.mtu.load(Ordering::Relaxed);
        if let (Redirect::Packets { device, .. }, true) = (&self.gate.redirect, mtu != self.mtu) {
            // A device whose MTU was too small for IPv6 has lost its IPv6 routes.
            self.in_force = None;
            ask(Tool::Ip, &["link", "set", device, "mtu", &mtu.to_string()])?;
            self.mtu = mtu;
        }
        Ok(())
    }
}

/// The thread that updates all rules to their gates; the rules end with it.
#[derive(Debug)]
pub(crate) struct Interceptor {
    /// Dropped before the keeper, which renews the rules.
    _follower: Periodic,
    _keeper: Arc<Keeper>,
}

impl Interceptor {
    /// Keeps `rules` in force as long as each of `workers` ticks. One that has ended ends them: its
    /// devices may still exist.
    pub(crate) fn start(mut rules: Vec<Rules>, mut workers: AllTicks) -> Result<Self, NetError> {
        let all_workers = workers.clone();
        let keeper = Arc::new(Keeper::start(
            move || workers.go_on(),
            |error| tracing::warn!(%error, "intercepted traffic takes its original path a while"),
        )?);
        rules.iter().filter_map(Rules::watchdog).for_each(|watchdog| keeper.keep(watchdog));
        let keeping = Arc::clone(&keeper);
        let follow = move || {
            if all_workers.has_one_ended() && !rules.is_empty() {
                tracing::error!("a worker has ended: intercepted traffic takes its original path");
                rules.clear();
            }
            rules.iter_mut().for_each(|rules| rules.follow(&keeping));
        };
        Ok(Self { _follower: Periodic::start("interceptor", LOOK_EVERY, follow)?, _keeper: keeper })
    }
}

/// Returns a rule's addresses, if it is of a range.
pub(crate) fn range_of(rule: &DestinationRule) -> Option<IpNet> {
    let (base, bits) = rule.range()?;
    IpNet::new(base, bits).ok().map(|range| range.trunc())
}

/// Returns the rules that are ranges, in the form of the kernel's interface.
pub(crate) fn ranges(rules: &[DestinationRule]) -> Vec<AddressRange> {
    let range = |rule: &DestinationRule| {
        let (base, prefix_bits) = rule.range()?;
        Some(AddressRange { base, prefix_bits, ports: rule.ports() })
    };
    rules.iter().filter_map(range).collect()
}
