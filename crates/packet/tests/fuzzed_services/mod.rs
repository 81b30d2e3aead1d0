//! The machines of the packet services under any script: packets, losses and delays on the legs
//! between them, peers and outsiders that repeat, alter and invent messages, relays that restart.
//! The properties that must hold are in [`model`].

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod lies;
mod model;

use std::collections::BTreeSet;

use tradewind_packet::budget::Allowance;
use tradewind_packet::egress::{Egress, EgressConfig, KeepBlocks};
use tradewind_packet::event::Event;
use tradewind_packet::id::{FlowNumber, Peer};
use tradewind_packet::ingress::InStream;
use tradewind_packet::message::{Class, Service};
use tradewind_packet::receiver::ReceiverConfig;
use tradewind_packet::sender::{Copies, Paths};
use tradewind_packet::store::Keep;
use tradewind_units::Bytes;

use crate::flows::*;
use crate::script::Script;
use model::Model;

/// A peer with a session that belongs to no flow.
pub(crate) const OUTSIDER: Peer = Peer(9999);
/// The most operations of one script.
const MAX_OPERATIONS: usize = 200;

/// Losses and delays between two places.
#[derive(Clone, Copy)]
struct Weather {
    /// Of 256.
    lost: u64,
    twice: u64,
    least_ms: u64,
    spread_ms: u64,
}

/// All legs on which datagrams travel.
struct Network {
    legs: [Weather; 5],
    luck: u64,
}

/// Returns the leg: the Internet, its reverse direction, access, between the relays, near the
/// receivers.
fn leg_of(from: Peer, to: Peer) -> usize {
    let is_relay = |peer| peer == INGRESS || peer == EGRESS;
    let is_receiver = |peer: Peer| peer.0 >= 200;
    match (is_relay(from), is_relay(to)) {
        (false, false) => usize::from(is_receiver(from)),
        (true, true) => 3,
        _ if is_receiver(from) || is_receiver(to) => 4,
        _ => 2,
    }
}

impl Network {
    fn draw(&mut self, below: u64) -> u64 {
        self.luck = self.luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.luck >> 33) % below.max(1)
    }

    fn fate(&mut self, from: Peer, to: Peer) -> Fate {
        let Weather { lost, twice, least_ms, spread_ms } = self.legs[leg_of(from, to)];
        if self.draw(256) < lost {
            return Fate::Lost;
        }
        let copies = 1 + u64::from(self.draw(256) < twice);
        Fate::Later((0..copies).map(|_| ms(least_ms + self.draw(spread_ms + 1))).collect())
    }
}

/// The cast, the network between it, and the model of both.
struct World {
    setting: Setting,
    cast: Cast,
    network: Network,
    model: Model,
}

/// Sets bounds so narrow that a script reaches them.
fn narrow(setting: &mut Setting) {
    let allowance = Allowance { per_second: 60, burst: 12 };
    let (age, bytes) = (ms(300), Bytes::new(500));
    setting.egress = EgressConfig {
        cache: Keep { age, bytes, packets: 10 },
        blocks: KeepBlocks { age, bytes, blocks: 6 },
        asks: allowance,
        helps: allowance,
        ..setting.egress
    };
    setting.receiver = ReceiverConfig {
        lend: Keep { age, bytes, packets: 8 },
        lends: allowance,
        asks: allowance,
        ..setting.receiver
    };
}

fn setting_of(script: &mut Script<'_>) -> Setting {
    let (kind, form) = (script.byte(), script.byte());
    let mut setting = Setting::of(Service::ALL[kind % 4], 1 + (kind / 4 % 3) as u64);
    setting.coding.packets = [2, 3][kind / 16 % 2];
    setting.coding.repairs = [1, 2][kind / 32 % 2];
    setting.coding.blocks = [1, 4][kind / 64 % 2];
    setting.arq = form & 1 == 1;
    setting.in_stream = (form & 2 == 2).then_some(InStream { packets: 4, repairs: 2 });
    setting.paths = if form & 4 == 4 { Paths::Both } else { Paths::Overlay };
    if form & 8 == 8 {
        setting.copies = Copies::Chosen { last_after: (form & 16 == 16).then(|| ms(15)) };
    }
    if form & 32 == 32 {
        narrow(&mut setting);
    }
    setting
}

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let setting = setting_of(script);
        let calm = |least_ms| Weather { lost: 0, twice: 0, least_ms, spread_ms: 0 };
        let legs = [calm(50), calm(50), calm(10), calm(25), calm(10)];
        let network = Network { legs, luck: script.pair() as u64 };
        let (cast, model) = (Cast::new(&setting), Model::new(&setting));
        Self { setting, cast, network, model }
    }

    fn advance(&mut self, millis: u64) {
        let (until, network) = (self.cast.now + ms(millis), &mut self.network);
        self.cast.advance(until, &mut |from, to, _| network.fate(from, to));
    }

    fn settle(&mut self) {
        let network = &mut self.network;
        self.cast.settle(&mut |from, to, _| network.fate(from, to));
    }

    /// Returns a member of the cast, or an outsider.
    fn anybody(&self, script: &mut Script<'_>) -> Peer {
        let flow = script.byte() as u64;
        match flow % 5 {
            0 => sender_of(flow / 5 % self.setting.flows),
            1 => receiver_of(flow / 5 % self.setting.flows),
            2 => INGRESS,
            3 => EGRESS,
            _ => OUTSIDER,
        }
    }

    /// Returns a member of the cast.
    fn a_machine(&self, script: &mut Script<'_>) -> Peer {
        match self.anybody(script) {
            OUTSIDER => EGRESS,
            peer => peer,
        }
    }

    /// Hands over a message of `from`; outsiders get no answer.
    fn inject(&mut self, from: Peer, to: Peer, bytes: &[u8]) {
        let before = self.cast.wire.len();
        self.cast.hand_over(from, to, bytes);
        self.settle();
        assert!(from != OUTSIDER || self.cast.wire.len() == before, "an answer to an outsider");
    }

    /// Returns a message that was sent before; a recent one more often than an old one.
    fn earlier_message(&self, script: &mut Script<'_>) -> Option<Datagram> {
        let place = script.byte();
        let back = if place < 200 { place } else { script.pair() };
        let wire = &self.cast.wire;
        (!wire.is_empty()).then(|| wire[wire.len() - 1 - back % wire.len()].clone())
    }

    fn operate(&mut self, script: &mut Script<'_>) {
        match script.below(13) {
            0 | 1 => self.send(script),
            2 => self.advance(script.byte() as u64),
            3 => self.advance(16 * script.byte() as u64),
            4 | 5 => self.change_weather(script),
            6 => {
                if let Some((from, to, bytes)) = self.earlier_message(script) {
                    self.inject(from, to, &bytes);
                }
            }
            7 => {
                if let Some((from, to, mut bytes)) = self.earlier_message(script) {
                    let place = script.below(bytes.len());
                    bytes[place] ^= script.byte().max(1) as u8;
                    bytes.truncate(bytes.len() - script.below(bytes.len().min(8)));
                    self.inject(from, to, &bytes);
                }
            }
            8 => {
                if let Some((_, _, bytes)) = self.earlier_message(script) {
                    let (from, to) = (self.anybody(script), self.a_machine(script));
                    self.inject(from, to, &bytes);
                }
            }
            9 | 10 => {
                let (from, to) = (self.anybody(script), self.a_machine(script));
                let bytes = lies::message(script, self);
                self.inject(from, to, &bytes);
            }
            11 => {
                let (from, to) = (self.anybody(script), self.a_machine(script));
                let length = script.byte();
                let bytes = script.bytes(length);
                self.inject(from, to, bytes);
            }
            _ => self.change_machines(script),
        }
    }

    fn send(&mut self, script: &mut Script<'_>) {
        let (what, gap_ms) = (script.byte(), script.byte() % 32);
        let flow = what as u64 % self.setting.flows;
        let class = if what & 0x80 == 0 { Class::Normal } else { Class::High };
        for _ in 0..1 + what / 4 % 16 {
            // The application may send on several flows at once.
            let flows = if what & 0x40 == 0 { flow..flow + 1 } else { 0..self.setting.flows };
            flows.for_each(|flow| {
                self.cast.send_as(flow, class);
            });
            self.advance(gap_ms as u64);
        }
    }

    fn change_weather(&mut self, script: &mut Script<'_>) {
        let leg = script.below(5);
        let [lost, twice, least_ms, spread_ms] = [(); 4].map(|()| script.byte() as u64);
        self.network.legs[leg] = Weather { lost, twice, least_ms, spread_ms };
    }

    fn change_machines(&mut self, script: &mut Script<'_>) {
        let (what, flow) = (script.below(5), script.byte() as u64 % self.setting.flows);
        let number = FlowNumber(flow);
        match what {
            0 => {
                let service = Service::ALL[script.below(4)];
                assert!(self.cast.senders[flow as usize].set_service(number, service));
            }
            1 => {
                self.cast.ingress = self.setting.ingress(1000 + self.cast.wire.len() as u64);
                for flow in 0..self.setting.flows {
                    let state = self.setting.ingress_flow(flow);
                    self.cast.ingress.set_flow(FlowNumber(flow), state).unwrap();
                }
            }
            2 => {
                self.cast.egress = Egress::new(self.setting.egress);
                for flow in 0..self.setting.flows {
                    self.cast.egress.set_flow(FlowNumber(flow), egress_flow(flow)).unwrap();
                }
                self.model.egress_starts_again();
            }
            3 => {
                self.cast.ingress.remove_flow(number);
                let state = self.setting.ingress_flow(flow);
                self.cast.ingress.set_flow(number, state).unwrap();
            }
            _ => {
                let (round_trip, recovery_deadline) =
                    (ms(script.byte() as u64), ms(2 * script.byte() as u64));
                let path = receiver_flow(flow, round_trip, recovery_deadline);
                assert!(self.cast.receivers[flow as usize].set_path(number, path));
            }
        }
    }
}

/// Returns an event without the parts that differ from run to run; a delivery with whether it was
/// late.
fn name_of((_, event): &(Peer, Event)) -> String {
    match event {
        Event::Dropped(reason) => format!("{reason:?}"),
        Event::Delivered { arrival, is_late, .. } => format!("Delivered {arrival:?} {is_late}"),
        Event::Answered { arrival, .. } => format!("Answered {arrival:?}"),
        Event::Failed { failure, .. } => format!("Failed {failure:?}"),
        Event::BlockClosed { scope, closed, .. } => format!("{scope:?} {closed:?}"),
        Event::CopySent { resent, .. } => format!("CopySent {resent}"),
        other => format!("{other:?}").split(['(', ' ']).next().unwrap().to_owned(),
    }
}

/// Checks that the model holds under any script; returns the names of the events.
pub(crate) fn services(data: &[u8]) -> BTreeSet<String> {
    let mut script = Script(data);
    let mut world = World::new(&mut script);
    for _ in 0..MAX_OPERATIONS {
        if script.is_over() {
            break;
        }
        let began = world.cast.now;
        world.operate(&mut script);
        world.model.check(&world.cast, began);
    }
    // All datagrams in flight are delivered, or given up.
    let began = world.cast.now;
    world.advance(5_000);
    world.model.check(&world.cast, began);
    world.cast.events.iter().map(name_of).collect()
}
