//! Invariants of any topology file, shared by the fuzzer and the replay of its corpus.

use std::sync::LazyLock;

use tradewind_model::Catalogue;
use tradewind_units::{Duration, Timestamp};
use tradewind_wan::{Bundle, Ecn, HostIndex, Topology, Wan};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::builtin);

/// The number of hosts above which a network is only parsed, so that the fuzzer stays fast.
const MAX_HOSTS_IN_TRAFFIC: usize = 12;
/// The number of wake-ups after which a network is abandoned.
const MAX_WAKES: usize = 2_000;

/// Checks that a file is refused in one line, or gives a network that accounts for every segment.
pub(crate) fn topology(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Topology::parse(text, &CATALOGUE) {
        Ok(topology) => carry_traffic(&topology),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains('\n'), "one line, not {message:?}");
            assert!(!error.problem.is_empty(), "an error without a word");
        }
    }
}

fn carry_traffic(topology: &Topology) {
    assert!(!topology.hosts.is_empty(), "a network has hosts");
    if topology.hosts.len() > MAX_HOSTS_IN_TRAFFIC {
        return;
    }
    let hosts = u16::try_from(topology.hosts.len()).expect("few hosts");
    let mut wan = Wan::new(topology, topology.seed);
    for n in 0..16_u16 {
        let now = Timestamp::ZERO + Duration::from_micros(u64::from(n) * 150);
        let bundle = Bundle {
            source: HostIndex(n % hosts),
            destination: HostIndex((n / 2 + 1) % hosts),
            connection: u64::from(n % 3),
            header_bytes: 52,
            payload_bytes: 1448 * u32::from(n % 5) + 10,
            segment_bytes: 1448,
            ecn: Ecn::Capable,
            content: n,
        };
        wan.push(now, bundle);
    }
    let mut wakes = 0;
    let mut delivered = 0;
    while let Some(deadline) = wan.next_deadline() {
        while let Some(delivery) = wan.pop_due(deadline) {
            assert!(delivery.due <= deadline, "nothing comes before its time");
            delivered += delivery.segments.len() as u64;
        }
        wakes += 1;
        if wakes == MAX_WAKES {
            break;
        }
    }
    let counters = wan.counters();
    assert!(counters.total.is_conserved(), "{:?}", counters.total);
    assert!(counters.links.iter().all(|link| link.tally.is_conserved()), "{:?}", counters.links);
    assert!(delivered <= counters.total.delivered, "what came out was counted");
    if wakes < MAX_WAKES {
        assert_eq!((counters.total.in_flight, counters.total.delivered), (0, delivered));
    }
}
