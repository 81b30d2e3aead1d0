//! Striped sessions leave no descriptor and no task behind, however they end. Alone in its process,
//! so that every descriptor of the process is accounted for.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod support;

use std::io::{Read, Write};

use support::{Chain, Running, content, echo, hash, relay_config, reset, wait_for};
use tradewind_desired::Connections;
use tradewind_units::Bytes;

const SESSIONS: usize = 60;
const CONNECTIONS: u64 = 4;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Opens one session after the other: ended in order, reset with bytes in flight, reset before it
/// is striped.
fn sessions(chain: &Chain, count: usize) {
    let bulk = content(1_000_000);
    for index in 0..count {
        let mut stream = chain.connect();
        stream.write_all(b"ping").unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        match index % 3 {
            0 => std::thread::scope(|scope| {
                let mut sending = stream.try_clone().unwrap();
                let bulk = &bulk;
                scope.spawn(move || support::send(&mut sending, bulk));
                let come = support::digest(&mut stream).unwrap_or_else(|error| {
                    let counted = chain.relays.iter().chain([&chain.gateway]);
                    let counted: Vec<_> = counted.map(|one| one.handle.snapshot()).collect();
                    panic!("session {index}: {error}: {counted:#?}")
                });
                assert_eq!(come, (bulk.len(), hash(bulk)));
            }),
            1 => {
                wait_for("the leg to be striped", || {
                    chain.relays[1].handle.snapshot().striped_legs > 0
                });
                let _written = stream.write_all(&bulk[..bulk.len() / 4]);
                reset(stream);
            }
            _ => reset(stream),
        }
    }
}

#[test]
fn striped_sessions_leak_nothing() {
    let mut first = relay_config();
    first.leg.dial.connections = Connections::fixed(CONNECTIONS).unwrap();
    first.leg.dial.stripe_after = Bytes::new(0);
    let relays = vec![Running::relay(&first), Running::relay(&relay_config())];
    let chain = Chain::of(relays, echo());
    let all: Vec<&Running> = chain.relays.iter().chain([&chain.gateway]).collect();
    // The only thing that a worker keeps are idle pipes, two descriptors each.
    let pooled = || all.iter().map(|one| 2 * one.handle.resting_pipes()).sum::<usize>();
    let settle = || {
        let (mut before, mut unchanged) = (usize::MAX, 0);
        wait_for("all to be at rest", || {
            let now = descriptors() - pooled();
            let open: u64 = all.iter().map(|one| one.handle.snapshot().open).sum();
            unchanged = if now == before && open == 0 { unchanged + 1 } else { 0 };
            before = now;
            unchanged == 50
        });
        before
    };
    sessions(&chain, 6);
    let before = settle();
    let tasks: Vec<usize> = all.iter().map(|one| one.handle.tasks()).collect();
    sessions(&chain, SESSIONS);
    let after = settle();
    assert!(after <= before, "{after} descriptors, {before} before");
    for (one, before) in all.iter().zip(&tasks) {
        wait_for("the last task", || one.handle.tasks() <= *before);
        let counted = one.handle.snapshot();
        assert_eq!((counted.striped_connections, counted.reordering_bytes), (0, 0));
        let outcomes: u64 = counted.outcomes.values().sum();
        assert_eq!(outcomes, counted.accepted, "each has one outcome: {counted:?}");
    }
    assert!(chain.relays[1].handle.snapshot().outcome("joined") > 0);
}
