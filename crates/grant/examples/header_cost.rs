//! A benchmark of hop headers, in microseconds: sealing, opening and forwarding with warm caches,
//! and the first time for each (a Diffie-Hellman step, a signature).
//!
//! `cargo run --release -p tradewind-grant --example header_cost [-- --quick]`

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an example may look at the clock"
)]

use std::hint::black_box;
use std::time::Instant;

use tradewind_grant::{
    Destination, Grant, GrantError, Hop, IdentityKey, Nonce, OperatorKey, PairKey, Relays, Reply,
    Request, Route, Sealer, Verifier,
};
use tradewind_units::{Duration, FlowId, Timestamp};

const ROUNDS: u64 = 100_000;
const BATCH: u64 = 1_000;

fn nonce(number: u64) -> Nonce {
    let mut entropy = [0; 16];
    entropy[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    Nonce::from_entropy(entropy)
}

/// Runs `work` for each of `rounds` numbers in batches and prints the mean cost in the median
/// batch.
fn timed<T>(label: &str, rounds: u64, mut work: impl FnMut(u64) -> T) {
    let batch = BATCH.min(rounds / 10);
    let mut costs_us: Vec<f64> = (0..rounds / batch)
        .map(|round| {
            let start = Instant::now();
            for number in round * batch..(round + 1) * batch {
                black_box(work(number));
            }
            start.elapsed().as_secs_f64() * 1e6 / batch as f64
        })
        .collect();
    costs_us.sort_by(f64::total_cmp);
    println!("{label:48} {:8.2} us", costs_us[costs_us.len() / 2]);
}

fn main() -> Result<(), GrantError> {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let (rounds, few) = if is_quick { (100, 10) } else { (ROUNDS, 1_000) };
    let now = Timestamp::from_nanos(1_795_176_000_000_000_000);
    let operator = OperatorKey::from_entropy([1; 32]);
    let gateway = IdentityKey::from_entropy([2; 32]);
    let relays: Vec<IdentityKey> = (3..5).map(|n| IdentityKey::from_entropy([n; 32])).collect();
    let grant = Grant {
        gateway: gateway.public(),
        not_before: now,
        expires: now + Duration::from_secs(3600),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::listed(&relays.iter().map(IdentityKey::public).collect::<Vec<_>>()),
        destinations: vec!["10.0.0.0/8:443".parse()?, "*.example.com:443".parse()?],
    };
    let signed = grant.sign(&operator)?;
    let address = |last: u8| std::net::SocketAddr::from(([192, 0, 2, last], 7000));
    let hops = relays
        .iter()
        .zip(1..)
        .map(|(relay, last)| Hop { address: address(last), identity: relay.public() });
    let (flow, route) =
        (FlowId::new("backup-1").expect("a flow's name"), Route::new(hops.collect())?);
    let destination: Destination = "10.1.2.3:443".parse()?;
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let mut sealer = Sealer::new(gateway.clone(), signed.clone())?;
    let mut relay = Verifier::new(relays[0].clone(), vec![operator.public()]);

    let headers: Vec<_> = (0..rounds)
        .map(|number| sealer.seal(now, nonce(number), &request))
        .collect::<Result<_, _>>()?;
    println!("header of {} bytes over {} relays", headers[0].bytes.len(), relays.len());
    timed("seal, warm", rounds, |n| sealer.seal(now, nonce(n), &request));
    let mut open = Vec::with_capacity(rounds as usize);
    timed("open, warm", rounds, |n| {
        open.push(relay.open(now, &headers[n as usize].bytes).expect("a true header"));
    });
    timed("pass on, warm", rounds, |n| relay.forward(&open[n as usize]));
    let (upstream, downstream) = (&open[0].upstream, &headers[0].downstream);
    timed("seal and open a reply", rounds, |_| downstream.open(&upstream.seal(&Reply::ok(1))));
    timed("refuse a false neighbour's tag", rounds, |n| {
        let mut bytes = headers[n as usize].bytes.clone();
        *bytes.last_mut().expect("not empty") ^= 1;
        relay.open(now, &bytes).is_err()
    });
    timed("once a pair: Diffie-Hellman and keys", few, |_| {
        PairKey::derive(&gateway, &relays[0].public())
    });
    timed("once a grant: signature", few, |_| signed.verify(&[operator.public()]).is_ok());
    Ok(())
}
