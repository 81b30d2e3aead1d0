//! Random problems of all sizes and kinds, quick to generate: places on a plane, RTT by distance
//! and a detour, CP's windows and caps, start-up ignored.

use tradewind_model::cost::Prices;
use tradewind_model::{Leg, StartUp};
use tradewind_plan::{Flow, Inputs, LegEnd, Legs, Problem, RelayType};
use tradewind_units::{Bytes, Duration, FlowId, PricePerGb, RegionId, RelayTypeId, SiteId};

use super::{dressed, mbps, usd};

/// Numbers from a seed (SplitMix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number from 0 to below `count`.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// Returns true once in `count` times.
    pub(crate) fn once_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// The largest size of a problem, and its features.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) flows: u64,
    pub(crate) regions: u64,
    /// True: flows without direct path, deadlines and costs of moving, which the paper does not
    /// have.
    pub(crate) beyond_paper: bool,
}

/// A place on a plane, in milliseconds of RTT.
type Spot = (i64, i64);

/// Returns the problem of this seed; `None` if it has no solution at any cost.
pub(crate) fn random(seed: u64, kind: Kind) -> Option<Problem> {
    let mut numbers = Numbers::new(seed);
    // Few flows more often than many, which take longer.
    let at_most = 1 + numbers.below(kind.flows);
    let flow_count = 1 + numbers.below(at_most);
    let region_count = 1 + numbers.below(kind.regions);
    let mut spots = |count: u64| -> Vec<Spot> {
        let mut along = || numbers.below(200) as i64;
        (0..count).map(|_| (along(), along())).collect()
    };
    let sites = spots(1 + flow_count);
    let relays = spots(region_count);
    let regions: Vec<RegionId> =
        (0..region_count).map(|index| RegionId::new(format!("cloud:r{index}")).unwrap()).collect();
    let mut legs = between_relays(&mut numbers, &regions, &relays);
    let one_source = numbers.once_in(2);
    let mut flows = Vec::new();
    for index in 1..=flow_count {
        let from = if one_source { 0 } else { numbers.below(index) };
        flows.push(flow(&mut numbers, from, index, kind.beyond_paper));
        let hidden = kind.beyond_paper && numbers.once_in(20);
        let ends = (sites[from as usize], sites[index as usize]);
        add_legs(&mut numbers, &mut legs, (from, index), ends, (&regions, &relays), hidden);
    }
    let budget = usd(0.02 * numbers.below(60 * flow_count) as f64);
    let mut inputs = Inputs::cloudpilot(flows, regions, legs, budget);
    inputs.start_up = StartUp::Ignored;
    inputs.max_relays = if region_count < 5 { numbers.below(5) } else { numbers.below(3) } as usize;
    vary_offers(&mut numbers, &mut inputs, kind);
    Problem::new(inputs).ok()
}

fn between_relays(numbers: &mut Numbers, regions: &[RegionId], spots: &[Spot]) -> Legs {
    let mut legs = Legs::new();
    for (from, from_at) in regions.iter().zip(spots) {
        for (to, to_at) in regions.iter().zip(spots).filter(|(to, _)| *to != from) {
            let ends = (LegEnd::Relay(from.clone()), LegEnd::Relay(to.clone()));
            let leg = dressed(leg(numbers, *from_at, *to_at), &ends.0, &ends.1);
            if !numbers.once_in(30) {
                legs.insert(ends, leg);
            }
        }
    }
    legs
}

fn flow(numbers: &mut Numbers, from: u64, to: u64, beyond_paper: bool) -> Flow {
    let site = |index: u64| SiteId::new(format!("site{index}")).unwrap();
    let volume = Bytes::new((1 + numbers.below(30)) * 100_000_000);
    let mut flow =
        Flow::new(FlowId::new(format!("flow{to}")).unwrap(), site(from), site(to), volume);
    flow.weight = if numbers.once_in(4) { 3 } else { 1 };
    if beyond_paper && numbers.once_in(20) {
        flow.deadline = Some(Duration::from_secs(40 + numbers.below(400)));
    }
    flow
}

/// Adds the legs of a flow; `hidden` leaves out the direct one.
fn add_legs(
    numbers: &mut Numbers,
    legs: &mut Legs,
    (from, to): (u64, u64),
    (from_at, to_at): (Spot, Spot),
    (regions, spots): (&[RegionId], &[Spot]),
    hidden: bool,
) {
    let site = |index: u64| LegEnd::Site(SiteId::new(format!("site{index}")).unwrap());
    let (from, to) = (site(from), site(to));
    let mut add = |ends: (LegEnd, LegEnd), leg: Leg| {
        let leg = dressed(leg, &ends.0, &ends.1);
        legs.entry(ends).or_insert(leg);
    };
    if !hidden {
        add((from.clone(), to.clone()), leg(numbers, from_at, to_at));
    }
    for (region, at) in regions.iter().zip(spots) {
        let relay = LegEnd::Relay(region.clone());
        add((from.clone(), relay.clone()), leg(numbers, from_at, *at));
        add((relay, to.clone()), leg(numbers, *at, to_at));
    }
}

/// Returns a leg by distance, and in one of three cases over a detour.
fn leg(numbers: &mut Numbers, from: Spot, to: Spot) -> Leg {
    let distance = (from.0 - to.0).abs() + (from.1 - to.1).abs() + 1;
    let detour = if numbers.once_in(3) { numbers.below(40) } else { 0 };
    Leg::new(Duration::from_millis(distance.unsigned_abs() + detour))
}

/// Varies relay types, prices and the running deployment.
fn vary_offers(numbers: &mut Numbers, inputs: &mut Inputs, kind: Kind) {
    let relay_type = |numbers: &mut Numbers, name: &str| {
        let mut relay = RelayType::cloudpilot();
        relay.id = RelayTypeId::new(name).unwrap();
        relay.capacity = mbps([150.0, 600.0, 2_000.0, 20_000.0][numbers.below(4) as usize]);
        relay.set_up = usd([0.0, 0.2, 0.5, 1.0][numbers.below(4) as usize]);
        relay
    };
    let types = if numbers.once_in(4) { 2 } else { 1 };
    inputs.relay_types =
        (0..types).map(|index| relay_type(numbers, &format!("type{index}"))).collect();
    let price = |cents: u64| PricePerGb::from_usd_per_gb(cents as f64 / 100.0).unwrap();
    if numbers.once_in(3) {
        inputs.prices = Prices::Flat(price(numbers.below(3) * 8));
    } else if numbers.once_in(2) {
        let pairs =
            inputs.regions.iter().map(|region| ((region.clone(), None), price(numbers.below(20))));
        inputs.prices =
            Prices::Stated { pairs: pairs.collect(), otherwise: Box::new(inputs.prices.clone()) };
    }
    if numbers.once_in(3) {
        for region in inputs.regions.clone() {
            let key = (region, inputs.relay_types[0].id.clone());
            inputs.running.relays.insert(key, numbers.below(3) as usize);
        }
    }
    if kind.beyond_paper && numbers.once_in(4) {
        inputs.running.move_cost = usd(0.1);
        let region = inputs.regions[0].clone();
        let moved =
            inputs.flows.iter().step_by(3).map(|flow| (flow.id.clone(), vec![region.clone()]));
        inputs.running.paths = moved.collect();
    }
}
