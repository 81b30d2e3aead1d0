//! From the legs that a plan counts on to how connections are set up.
//!
//! A plan predicts with n connections on a leg \[TRN\], a window, a first window and a congestion
//! control. Whoever dials the leg must set them up, or the prediction is of another leg. What a
//! plan does not speak of (encryption, connections at rest) is the operator's to say; what it does
//! not ask for is left as the operator has it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use tradewind_model::Leg;
use tradewind_model::leg::{DEFAULT_INITIAL_WINDOW, DEFAULT_WINDOW};
use tradewind_model::tcp::LossResponse;
use tradewind_units::{Bandwidth, Bytes, Segments};

use crate::connections::MOST_CONNECTIONS;
use crate::profile::NamedProfile;
use crate::{BufferNeeds, Connections, LegProfile};

/// Most warm connections of a leg whose first window the plan counts on, unless the operator says otherwise. Chosen: a pool
/// is as large as the demand, so this only bounds it.
const MOST_WARM: NonZeroU16 = NonZeroU16::new(16).expect("not zero");

/// What connections that start fast at once take of a leg's rate together. Chosen: as of a rate that was learned (docs/jumpstart.md, `pacing_share`).
const PACED_SHARE: f64 = 0.85;

/// A leg to one neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LegTo {
    /// Where the neighbour listens, as routes have it.
    #[serde(deserialize_with = "tradewind_units::address::one")]
    pub address: SocketAddr,
    /// The leg's profile; nothing of `leg.dial` is taken over.
    pub dial: LegProfile,
}

/// How the connections of one relay or gateway are set up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessLegs {
    /// Connections that it accepts; of a gateway these are applications', of which no plan speaks.
    pub accept: LegProfile,
    /// Connections that it dials where nothing else is said.
    pub dial: LegProfile,
    /// Legs to neighbours that the plan counts on to differ, by address.
    pub to: Vec<LegTo>,
}

/// Legs that one process dials, while they are collected: by where they lead, and for how many flows.
#[derive(Debug, Default)]
pub(crate) struct Collected(BTreeMap<SocketAddr, (Leg, u32)>);

impl ProcessLegs {
    /// Returns what its connections need of the host's kernel.
    #[must_use]
    pub fn buffer_needs(&self) -> BufferNeeds {
        let to = self.to.iter().map(|to| &to.dial);
        BufferNeeds::of([&self.accept, &self.dial].into_iter().chain(to))
    }
}

impl Collected {
    /// The plan counts on `leg` to `address` for one more flow.
    pub(crate) fn add(&mut self, address: SocketAddr, leg: &Leg) {
        let (known, flows) = self.0.entry(address).or_insert((*leg, 0));
        (*known, *flows) = (*leg, *flows + 1);
    }

    /// Returns those that differ from what the process dials by anyway, where the operator wants
    /// `base`.
    pub(crate) fn differing_from(self, anyway: &LegProfile, base: &LegProfile) -> Vec<LegTo> {
        let legs = self.0.into_iter().map(|(address, (leg, flows))| {
            let dial = dialled(base, &leg, flows);
            LegTo { address, dial }
        });
        legs.filter(|leg| leg.dial != *anyway).collect()
    }
}

/// The profile of who dials `leg` for so many flows of the plan, where the operator wants `base`.
fn dialled(base: &LegProfile, leg: &Leg, flows: u32) -> LegProfile {
    let mut profile = base.clone();
    if leg.connections > 1 {
        let connections = leg.connections.min(u32::from(MOST_CONNECTIONS));
        profile.connections =
            Connections::fixed(connections.into()).expect("between two and the most");
    }
    if let Some(loss) = leg.loss
        && profile.congestion_control.is_none()
    {
        let name = match loss.response {
            LossResponse::Reno => "reno",
            LossResponse::Cubic => "cubic",
        };
        profile.congestion_control = Some(name.to_owned());
    }
    profile.window = profile.window.max(wide(leg));
    if jumps(leg) {
        start_fast(&mut profile, leg, flows);
    }
    profile
}

/// Returns the window that the plan counts on, where it is above what a host gives as it comes.
pub(crate) fn wide(leg: &Leg) -> Option<Bytes> {
    (leg.window > DEFAULT_WINDOW).then_some(leg.window)
}

/// The profile of who accepts `leg`, where the operator wants `base`: a first flight needs a receiver's window as large.
pub(crate) fn accepted(base: &LegProfile, leg: &Leg) -> LegProfile {
    let jump = NamedProfile::PacedStart.profile();
    let receive_buffer = base.receive_buffer.or(jump.receive_buffer.filter(|_| jumps(leg)));
    let window = base.window.max(wide(leg));
    LegProfile { receive_buffer, window, ..base.clone() }
}

/// Whether the plan counts on a first window above the kernel's own.
fn jumps(leg: &Leg) -> bool {
    first_window(leg).is_some()
}

/// Returns the first window that the plan counts on, where it is above the kernel's own.
pub(crate) fn first_window(leg: &Leg) -> Option<Segments> {
    (leg.initial_window.as_u32() > DEFAULT_INITIAL_WINDOW).then_some(leg.initial_window)
}

/// The first window that the plan counts on, paced at what one connection gets when all flows of the plan begin at once: faster it would only be
/// lost. Connections are kept warm, since from the side that dials a first flight is 64 KB at most.
fn start_fast(profile: &mut LegProfile, leg: &Leg, flows: u32) {
    let jump = NamedProfile::PacedStart.profile();
    profile.initial_window = profile.initial_window.or(Some(leg.initial_window));
    profile.receive_buffer = profile.receive_buffer.or(jump.receive_buffer);
    profile.send_buffer = profile.send_buffer.or(jump.send_buffer);
    profile.warm = profile.warm.or(Some(MOST_WARM));
    let rate = leg.rate();
    if profile.pacing_rate.is_none() && rate < Bandwidth::MAX {
        let connections = f64::from(leg.connections.max(1)) * f64::from(flows.max(1));
        profile.pacing_rate = Some(rate.scaled(PACED_SHARE / connections));
        profile.pacing_rtts = jump.pacing_rtts;
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::leg::Loss;
    use tradewind_units::{Duration, Ratio};

    use super::*;
    use crate::Encryption;

    fn leg() -> Leg {
        Leg::new(Duration::from_millis(100))
    }

    #[test]
    fn what_the_plan_does_not_ask_for_is_left_as_the_operator_has_it() {
        let plain = LegProfile { encryption: Some(Encryption::None), ..LegProfile::default() };
        assert_eq!(dialled(&plain, &leg(), 1), plain);
        assert_eq!(accepted(&plain, &leg()), plain);
        let adaptive = LegProfile { connections: Connections::Adaptive, ..plain };
        assert_eq!(dialled(&adaptive, &leg(), 1), adaptive);
    }

    #[test]
    fn connections_and_congestion_control_are_the_plans() {
        let loss = Loss { ratio: Ratio::new(0.001).unwrap(), response: LossResponse::Cubic };
        let profile =
            dialled(&LegProfile::default(), &leg().with_connections(8).with_loss(loss), 1);
        assert_eq!(profile.connections, Connections::fixed(8).unwrap());
        assert_eq!(profile.congestion_control.as_deref(), Some("cubic"));
        let many = dialled(&LegProfile::default(), &leg().with_connections(1000), 1);
        assert_eq!(many.connections, Connections::fixed(64).unwrap());
        let bbr = NamedProfile::Bbr.profile();
        assert_eq!(dialled(&bbr, &leg().with_loss(loss), 1), bbr, "the operator's word counts");
    }

    #[test]
    fn a_wide_window_is_asked_of_both_ends() {
        let wide = leg().with_window(Bytes::new(500_000_000));
        let base = LegProfile::default();
        assert_eq!(dialled(&base, &wide, 1).window, Some(wide.window));
        assert_eq!(accepted(&base, &wide).window, Some(wide.window));
        assert_eq!(dialled(&base, &leg(), 1).window, None, "a host gives it as it comes");
        let dial = dialled(&base, &wide, 1);
        let legs = ProcessLegs {
            to: vec![LegTo { address: "192.0.2.1:7000".parse().unwrap(), dial }],
            ..ProcessLegs::default()
        };
        assert!(legs.buffer_needs().sysctls().contains("tcp_rmem = 4096 131072 1000000000"));
    }

    #[test]
    fn a_first_window_that_is_counted_on_is_paced_so_that_all_flows_at_once_fit_into_the_leg() {
        let mut fast = leg().with_connections(2).capped_at("100 Mbit/s".parse().unwrap());
        fast.initial_window = Segments::new(400).unwrap();
        let profile = dialled(&LegProfile::default(), &fast, 1);
        assert_eq!(profile.initial_window, Some(fast.initial_window));
        assert_eq!(profile.pacing_rate, Some("42.5 Mbit/s".parse().unwrap()));
        // Two flows may begin at once.
        let shared = dialled(&LegProfile::default(), &fast, 2);
        assert_eq!(shared.pacing_rate, Some("21.25 Mbit/s".parse().unwrap()));
        assert_eq!((profile.pacing_rtts, profile.warm), (Some(4), Some(MOST_WARM)));
        let flight = fast.initial_window.payload(Bytes::new(1448));
        assert!(accepted(&LegProfile::default(), &fast).receive_buffer.unwrap() > flight);
        // What relays and gateways read.
        let text = toml::to_string(&profile).unwrap();
        assert_eq!(toml::from_str::<LegProfile>(&text).unwrap(), profile);
    }
}
