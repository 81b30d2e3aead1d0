//! Ten thousand sessions leave no descriptor, pipe or task behind. Alone in its process, so that
//! every descriptor of the process is accounted for.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown as Half, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Chain, Running, connect, content, echo, hash, relay_config, reset, wait_for};

const SESSIONS: usize = 10_000;
/// Concurrent sessions: eight descriptors each, below the usual limit of 20,000 and the ports of
/// loopback.
const AT_ONCE: usize = 500;
/// Threads that open sessions.
const CLIENTS: usize = 4;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Opens a batch of sessions, keeps all open at once, and ends each in one of four ways.
fn batch(address: SocketAddr, count: usize, bulk: &[u8]) {
    let mut streams: Vec<TcpStream> = (0..count).map(|_| connect(address)).collect();
    for stream in &mut streams {
        stream.write_all(b"ping").unwrap();
    }
    for stream in &mut streams {
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ping");
    }
    for (index, mut stream) in streams.into_iter().enumerate() {
        match index % 4 {
            0 => {
                stream.shutdown(Half::Write).unwrap();
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            }
            1 => reset(stream),
            2 => drop(stream),
            _ if index % 100 == 3 => echo_bulk(stream, bulk),
            // Resets with bytes in flight in both directions, some of them in pipes.
            _ => {
                let _written = stream.write_all(&bulk[..bulk.len() / 4]);
                reset(stream);
            }
        }
    }
}

fn echo_bulk(mut stream: TcpStream, bulk: &[u8]) {
    std::thread::scope(|scope| {
        let mut sending = stream.try_clone().unwrap();
        scope.spawn(move || support::send(&mut sending, bulk));
        assert_eq!(support::digest(&mut stream).unwrap(), (bulk.len(), hash(bulk)));
    });
}

fn main_load(chain: &Chain, sessions: usize) {
    let bulk = content(1_000_000);
    let next = AtomicUsize::new(0);
    let per_batch = AT_ONCE / CLIENTS;
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while next.fetch_add(per_batch, Ordering::Relaxed) < sessions {
                    batch(chain.gateway.address(), per_batch, &bulk);
                }
            });
        }
    });
}

#[test]
fn ten_thousand_sessions_leak_nothing() {
    let to = echo();
    let relays = (0..2).map(|_| {
        let mut config = relay_config();
        config.workers = Some(2);
        Running::relay(&config)
    });
    let chain = Chain::of(relays.collect(), to);
    let all: Vec<&Running> = chain.relays.iter().chain([&chain.gateway]).collect();
    let at_rest = |what: &str| {
        for one in &all {
            wait_for(what, || one.handle.snapshot().open == 0);
        }
    };
    main_load(&chain, AT_ONCE);
    at_rest("the first sessions' end");
    let tasks: Vec<usize> = all.iter().map(|one| one.handle.tasks()).collect();
    // The only thing that a worker keeps are idle pipes, two descriptors each.
    let pooled = || all.iter().map(|one| 2 * one.handle.resting_pipes()).sum::<usize>();
    let (mut before, mut unchanged) = (usize::MAX, 0);
    wait_for("the peers' sockets to close", || {
        let now = descriptors() - pooled();
        unchanged = if std::mem::replace(&mut before, now) == now { unchanged + 1 } else { 0 };
        unchanged == 50
    });

    main_load(&chain, SESSIONS);
    at_rest("all sessions' end");
    for (one, before) in all.iter().zip(&tasks) {
        wait_for("the last task", || one.handle.tasks() <= *before);
        let counted = one.handle.snapshot();
        assert!(counted.accepted >= (SESSIONS + AT_ONCE) as u64, "{counted:?}");
        let outcomes: u64 = counted.outcomes.values().sum();
        assert_eq!(outcomes, counted.accepted, "each has one outcome: {counted:?}");
        assert!(counted.bytes_spliced > 0);
        for outcome in counted.outcomes.keys() {
            assert!(["ended", "broken"].contains(outcome), "{counted:?}");
        }
    }
    wait_for("the last descriptor", || descriptors() - pooled() <= before);
    assert!(all.iter().all(|one| one.handle.resting_pipes() <= 2 * 64));
}
