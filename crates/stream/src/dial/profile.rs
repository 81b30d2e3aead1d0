//! Leg profiles applied to sockets: options before the handshake, options of a session that lasts,
//! and an initial window by the means that this host allows.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use tradewind_desired::{Connections, Encryption, LegProfile, LegTo};
use tradewind_net::initial_window::{InitialWindow, InitialWindows};
use tradewind_net::jumpstart::OwnSockets;
use tradewind_net::sysctl;
use tradewind_net::tcp::{self, FastOpen, SocketOptions};
use tradewind_net::window_route::WindowRoutes;
use tradewind_units::Segments;

use crate::connection::side::Side;
use crate::dial::pacing_ramp::PacingRamps;
use crate::limits::buffers::tell_shortfalls;
use tradewind_config::{LegProfiles, Timeouts};

/// Pending connections that brought data in their SYN and whose address is not validated yet.
/// Chosen: a header and its data each, a few MB in all.
const FAST_OPEN_QUEUE: u16 = 256;
/// Largest initial window by route of a leg whose cap is lifted: a route does not know how much the
/// leg holds. Chosen: 200 Mbit/s over 58 ms.
const MAX_UNTIMED: u32 = 1000;

/// Leg profiles prepared for use: each leg's options, by the side that opens it.
#[derive(Debug)]
pub struct Legs {
    /// Options of listeners: accepted sockets inherit them at no cost.
    pub accept: SocketOptions,
    accept_lift: Option<u16>,
    dial: Leg,
    to: BTreeMap<SocketAddr, Leg>,
    /// Removed when this is dropped.
    _routes: Option<WindowRoutes>,
}

/// One leg that this process dials.
#[derive(Debug)]
pub struct Leg {
    /// Options that every connection needs from its start.
    pub(crate) first: SocketOptions,
    /// Options for a leg on which this side sends at once and a relay reports the result: a
    /// connection that waits for the first write to open would keep a destination which speaks
    /// first from speaking, and reports a refusal too late.
    pub(crate) early: SocketOptions,
    /// Options that only matter for a session which lasts or is bulky.
    pub settled: SocketOptions,
    /// Round trips after which its pacing cap is lifted.
    ramp: Option<u16>,
    /// Most connections that are kept ready; 0: none.
    pub(crate) most_warm: usize,
    pub(crate) is_encrypted: bool,
    /// Connections of each bulky stream.
    pub connections: Connections,
    /// The bytes that a stream carries before it gets more than one connection.
    pub(crate) stripe_after: u64,
}

impl Legs {
    /// Prepares `profiles`. An initial window that this host does not allow is logged, and its legs
    /// start with the kernel's. Sockets that dial or accept are registered with `learned`, and
    /// start by what that has learned of the other end, unless their profile states an initial
    /// window.
    pub fn new(profiles: &LegProfiles, timeouts: &Timeouts, learned: Option<&OwnSockets>) -> Self {
        let to = || profiles.to.iter().map(|leg| &leg.dial);
        let all = [&profiles.accept, &profiles.dial].into_iter().chain(to());
        let wanted = all.filter(|profile| profile.initial_window.is_some()).count() > 0;
        // Connections are idle at both ends: those that neighbours keep ready here would lose their
        // initial window.
        let rests = to().chain([&profiles.dial]).any(|profile| profile.warm.is_some());
        if rests || profiles.accept.initial_window.is_some() {
            keep_windows_at_rest();
        }
        tell_shortfalls(&profiles.buffer_needs());
        let mut routes = None;
        let windows = if wanted { windows(profiles, &mut routes) } else { None };
        let leg = |profile: &LegProfile| Leg {
            first: first_options(profile, windows.as_ref(), learned),
            early: SocketOptions {
                fast_open: profile.fast_open.then_some(FastOpen::Dial),
                ..SocketOptions::default()
            },
            settled: settled_options(profile, timeouts),
            ramp: profile.pacing_rtts,
            most_warm: profile.warm.map_or(0, |most| usize::from(most.get())),
            is_encrypted: profile.encryption != Some(Encryption::None),
            connections: profile.connections,
            stripe_after: profile.stripe_after.as_u64(),
        };
        Self {
            accept: listener_options(&profiles.accept, timeouts, windows.as_ref(), learned),
            accept_lift: profiles.accept.pacing_rtts,
            dial: leg(&profiles.dial),
            to: profiles.to.iter().map(|to| (to.address, leg(&to.dial))).collect(),
            _routes: routes,
        }
    }

    /// Returns the leg to `address`.
    pub fn to(&self, address: SocketAddr) -> &Leg {
        self.to.get(&address).unwrap_or(&self.dial)
    }

    /// Returns all legs that this process may dial.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Leg> {
        std::iter::once(&self.dial).chain(self.to.values())
    }

    /// Returns the leg of a connection that was dialled. Asks the kernel only where legs differ.
    pub fn of(&self, downstream: &Side<'_>) -> &Leg {
        if self.to.is_empty() {
            return &self.dial;
        }
        tcp::peer(downstream).map_or(&self.dial, |peer| self.to(peer))
    }

    /// Returns the round trips after which the pacing caps of accepted connections are lifted.
    pub(crate) const fn lifts_accepted(&self) -> Option<u16> {
        self.accept_lift
    }

    /// Returns the pacing ramps of a session; `None` where no cap is to be lifted.
    pub(crate) fn ramps(&self, downstream: &Side<'_>) -> Option<Box<PacingRamps>> {
        if self.accept_lift.is_none() && self.all().all(|leg| leg.ramp.is_none()) {
            return None;
        }
        Some(Box::new(PacingRamps::new(self.accept_lift, self.of(downstream).ramp)))
    }
}

impl Leg {
    /// Returns the round trips after which the pacing caps of its connections are lifted.
    pub(crate) const fn ramps(&self) -> Option<u16> {
        self.ramp
    }
}

/// Returns the means of setting initial windows here: a program in the kernel, or else routes to
/// the legs that have an address of their own.
fn windows(profiles: &LegProfiles, routes: &mut Option<WindowRoutes>) -> Option<InitialWindows> {
    let refused = match InitialWindows::attach() {
        Ok(windows) => return Some(windows),
        Err(error) => error,
    };
    let by_route = |leg: &LegTo| {
        let window = leg.dial.initial_window?;
        let untimed = Segments::new(MAX_UNTIMED).expect("more than none");
        let most = leg.dial.pacing_rtts.map_or(window, |_| window.min(untimed));
        Some((leg.address.ip(), most))
    };
    let by_route: Vec<_> = profiles.to.iter().filter_map(by_route).collect();
    if !by_route.is_empty() {
        let refuse = |address, error| tracing::warn!("no initial window to {address}: {error}");
        match WindowRoutes::keep(by_route, refuse) {
            Ok(window_routes) => *routes = Some(window_routes),
            Err(error) => tracing::warn!("no initial windows by route: {error}"),
        }
    }
    if [&profiles.accept, &profiles.dial].iter().any(|leg| leg.initial_window.is_some()) {
        tracing::warn!(
            "`initial_window` of leg.accept and leg.dial has no effect here: {refused}; \
             `tradewind doctor` tells more, and legs with an address (leg.to) can have it by route"
        );
    }
    None
}

/// Lets idle connections keep their window, in the whole network namespace.
fn keep_windows_at_rest() {
    const NAME: &str = "net.ipv4.tcp_slow_start_after_idle";
    if sysctl::get(NAME).is_ok_and(|value| value == "0") {
        return;
    }
    match sysctl::set(NAME, "0") {
        Ok(()) => tracing::info!("set {NAME}=0, so that warm connections keep their window"),
        Err(error) => {
            tracing::warn!(
                "warm connections will start slowly after a rest, except by bbr: {error}"
            );
        }
    }
}

fn first_options(
    profile: &LegProfile,
    windows: Option<&InitialWindows>,
    learned: Option<&OwnSockets>,
) -> SocketOptions {
    let window = profile.initial_window.map(|segments| InitialWindow {
        segments,
        rate: profile.pacing_rtts.and(profile.pacing_rate),
    });
    SocketOptions {
        congestion_control: profile.congestion_control.clone(),
        initial_window: windows.cloned().zip(window),
        jumpstart: learned.filter(|_| window.is_none()).cloned(),
        receive_buffer: profile.receive_buffer,
        send_buffer: profile.send_buffer,
        pacing_rate: profile.pacing_rate,
        nodelay: true,
        urgent_in_line: true,
        reset_on_close: true,
        ..SocketOptions::default()
    }
}

fn settled_options(profile: &LegProfile, timeouts: &Timeouts) -> SocketOptions {
    SocketOptions {
        notsent_lowat: Some(profile.notsent_lowat),
        user_timeout: timeouts.user,
        keepalive: timeouts.keepalive,
        ..SocketOptions::default()
    }
}

fn listener_options(
    profile: &LegProfile,
    timeouts: &Timeouts,
    windows: Option<&InitialWindows>,
    learned: Option<&OwnSockets>,
) -> SocketOptions {
    let SocketOptions { notsent_lowat, user_timeout, keepalive, .. } =
        settled_options(profile, timeouts);
    let fast_open = profile.fast_open.then_some(FastOpen::Listen(FAST_OPEN_QUEUE));
    let first = first_options(profile, windows, learned);
    SocketOptions { notsent_lowat, user_timeout, keepalive, fast_open, ..first }
}
