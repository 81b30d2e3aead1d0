//! Leg profiles from the legs that a plan assumes.
//!
//! A plan predicts with n connections on a leg \[TRN\], a window, an initial window and a
//! congestion control. The dialling side must set them up, or the prediction is of another leg.
//! Properties that a plan does not model (encryption, warm connections) are set by the operator;
//! those that the plan does not need stay as the operator has set them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_model::Leg;
use tradewind_model::leg::{DEFAULT_INITIAL_WINDOW, DEFAULT_WINDOW};
use tradewind_model::tcp::LossResponse;
use tradewind_units::{Bandwidth, Bytes, Segments};

use crate::connections::MAX_CONNECTIONS;
use crate::profile::NamedProfile;
use crate::{BufferNeeds, Connections, LegProfile};

/// Most warm connections of a leg whose initial window the plan relies on, unless the operator sets
/// another limit. Chosen: a pool is as large as the demand, so this only bounds it.
const MAX_WARM: NonZeroU16 = NonZeroU16::new(16).expect("not zero");

/// Share of a leg's rate for connections that start fast at the same time, together. Chosen: the
/// same as for a learned rate (docs/reference/jumpstart.md, `pacing_share`).
const PACED_SHARE: f64 = 0.85;

/// A leg to one neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LegTo {
    /// The neighbour's address, as in routes.
    #[serde(deserialize_with = "tradewind_units::address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub address: SocketAddr,
    /// The leg's profile; it inherits nothing from `leg.dial`.
    pub dial: LegProfile,
}

/// The connection profiles of one relay or gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessLegs {
    /// Accepted connections; a gateway's are from applications, which no plan models.
    pub accept: LegProfile,
    /// Dialled connections that `to` does not list.
    pub dial: LegProfile,
    /// Legs to neighbours that need another profile, by address.
    pub to: Vec<LegTo>,
}

/// The legs that one process dials, while they are collected: by the neighbour's address, with the
/// number of flows.
#[derive(Debug, Default)]
pub(crate) struct Collected(BTreeMap<SocketAddr, (Leg, u32)>);

impl ProcessLegs {
    /// Returns the buffers that its connections need from the host's kernel.
    #[must_use]
    pub fn buffer_needs(&self) -> BufferNeeds {
        let to = self.to.iter().map(|to| &to.dial);
        BufferNeeds::of([&self.accept, &self.dial].into_iter().chain(to))
    }
}

impl Collected {
    /// Adds one more flow on `leg` to `address`.
    pub(crate) fn add(&mut self, address: SocketAddr, leg: &Leg) {
        let (known, flows) = self.0.entry(address).or_insert((*leg, 0));
        (*known, *flows) = (*leg, *flows + 1);
    }

    /// Returns the legs whose profiles differ from `anyway`, the process's default for dialling.
    /// `base` is the operator's profile.
    pub(crate) fn differing_from(self, anyway: &LegProfile, base: &LegProfile) -> Vec<LegTo> {
        let legs = self.0.into_iter().map(|(address, (leg, flows))| {
            let dial = dialled(base, &leg, flows);
            LegTo { address, dial }
        });
        legs.filter(|leg| leg.dial != *anyway).collect()
    }
}

/// Returns the dialling side's profile of `leg` for `flows` flows of the plan, on top of the
/// operator's `base`.
fn dialled(base: &LegProfile, leg: &Leg, flows: u32) -> LegProfile {
    let mut profile = base.clone();
    if leg.connections > 1 {
        let connections = leg.connections.min(u32::from(MAX_CONNECTIONS));
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

/// Returns the window that the plan relies on, if it is above a host's default.
pub(crate) fn wide(leg: &Leg) -> Option<Bytes> {
    (leg.window > DEFAULT_WINDOW).then_some(leg.window)
}

/// Returns the accepting side's profile of `leg`, on top of the operator's `base`: a large first
/// flight needs a receive window of that size.
pub(crate) fn accepted(base: &LegProfile, leg: &Leg) -> LegProfile {
    let jump = NamedProfile::PacedStart.profile();
    let receive_buffer = base.receive_buffer.or(jump.receive_buffer.filter(|_| jumps(leg)));
    let window = base.window.max(wide(leg));
    LegProfile { receive_buffer, window, ..base.clone() }
}

/// Returns whether the plan relies on an initial window above the kernel's default.
fn jumps(leg: &Leg) -> bool {
    initial_window(leg).is_some()
}

/// Returns the initial window that the plan relies on, if it is above the kernel's default.
pub(crate) fn initial_window(leg: &Leg) -> Option<Segments> {
    (leg.initial_window.as_u32() > DEFAULT_INITIAL_WINDOW).then_some(leg.initial_window)
}

/// Sets the initial window that the plan relies on, paced at one connection's share when all flows
/// of the plan begin at once: a higher rate would only cause loss. Connections are kept warm, since
/// the first flight of the dialling side is 64 KB at most.
fn start_fast(profile: &mut LegProfile, leg: &Leg, flows: u32) {
    let jump = NamedProfile::PacedStart.profile();
    profile.initial_window = profile.initial_window.or(Some(leg.initial_window));
    profile.receive_buffer = profile.receive_buffer.or(jump.receive_buffer);
    profile.send_buffer = profile.send_buffer.or(jump.send_buffer);
    profile.warm = profile.warm.or(Some(MAX_WARM));
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
    fn plain_legs_keep_the_operators_profile() {
        let plain = LegProfile { encryption: Some(Encryption::None), ..LegProfile::default() };
        assert_eq!(dialled(&plain, &leg(), 1), plain);
        assert_eq!(accepted(&plain, &leg()), plain);
        let adaptive = LegProfile { connections: Connections::Adaptive, ..plain };
        assert_eq!(dialled(&adaptive, &leg(), 1), adaptive);
    }

    #[test]
    fn connections_and_congestion_control_follow_the_plan() {
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
    fn wide_window_is_set_at_both_ends() {
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
    fn initial_window_is_paced_for_all_flows() {
        let mut fast = leg().with_connections(2).capped_at("100 Mbit/s".parse().unwrap());
        fast.initial_window = Segments::new(400).unwrap();
        let profile = dialled(&LegProfile::default(), &fast, 1);
        assert_eq!(profile.initial_window, Some(fast.initial_window));
        assert_eq!(profile.pacing_rate, Some("42.5 Mbit/s".parse().unwrap()));
        // Two flows may begin at once.
        let shared = dialled(&LegProfile::default(), &fast, 2);
        assert_eq!(shared.pacing_rate, Some("21.25 Mbit/s".parse().unwrap()));
        assert_eq!((profile.pacing_rtts, profile.warm), (Some(4), Some(MAX_WARM)));
        let flight = fast.initial_window.payload(Bytes::new(1448));
        assert!(accepted(&LegProfile::default(), &fast).receive_buffer.unwrap() > flight);
        // The form that relays and gateways read.
        let text = toml::to_string(&profile).unwrap();
        assert_eq!(toml::from_str::<LegProfile>(&text).unwrap(), profile);
    }
}
