//! Warm pools: connections to next relays that stand before a session needs them, so that its
//! header and first bytes leave at once. Relays and gateways keep them alike.
//!
//! A warm connection has sent its hello (`grant::warm`): both ends are authenticated, and the
//! window is scaled. A session takes one and sends its header on it as on a fresh one. As many are
//! kept as sessions arrived in the time that it takes to make one, in the busiest of the last
//! seconds, and at most as many as the leg's profile allows. A pool that no session takes from is
//! emptied.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tradewind_grant::{
    GrantError, Hop, Nonce, PublicIdentity, Reply, ReplyKey, Sealer, Status, Verifier,
};
use tradewind_net::tcp;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::Bytes;

use crate::clock::unix_now;
use crate::connection::{Connection, Resting};
use crate::dial::{Dialler, Speaker};
use crate::failure::Failure;
use crate::session::opening::Waited;

/// Longest that a connection rests here, and that a pool is kept which nobody takes from. Chosen:
/// below the idle time-out of common middle boxes (60 s and more).
const MAX_REST: Duration = Duration::from_secs(30);
/// Time for which the other end keeps one that brings no header: longer, so that this end ends it.
pub const MAX_WAIT: Duration = Duration::from_secs(60);
/// Between two looks at a pool, and the longest wait after a try that failed.
const LOOK: Duration = Duration::from_secs(1);
/// Wait after the first try that fails; it doubles from one to the next.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// Least silence after which the other end of a warm connection counts as gone. Chosen: a lost
/// packet is sent again by then.
const MIN_SILENCE: Duration = Duration::from_secs(1);
/// Relays for which connections are kept ready; a session to another dials. Chosen: more than any
/// relay has neighbours.
const MAX_POOLS: usize = 256;
/// After so many tries in a row that failed a pool is given up, until a session has reached its
/// relay once more.
const MAX_FAILURES: u32 = 16;
/// Seconds whose busiest counts.
const REMEMBERED_SECONDS: usize = 10;

/// The pools of one relay or gateway, shared by its workers.
#[derive(Debug)]
pub struct Pools {
    dialler: Arc<Dialler>,
    greeter: Greeter,
    pools: Mutex<BTreeMap<Key, WarmConnections>>,
    /// Connections that were asked for and were there.
    hits: AtomicU64,
    /// Connections that were asked for and were not.
    misses: AtomicU64,
}

/// The sender of the hello.
#[derive(Debug, Clone)]
pub enum Greeter {
    /// A relay, by its verifier.
    Relay(Arc<Mutex<Verifier>>),
    /// A gateway, by its sealer.
    Gateway(Arc<Mutex<Sealer>>),
}

impl Greeter {
    fn hello(
        &self,
        nonce: Nonce,
        from: &PublicIdentity,
        to: &PublicIdentity,
    ) -> Result<(Vec<u8>, ReplyKey), GrantError> {
        let now = unix_now();
        match self {
            Self::Relay(verifier) => lock(verifier).hello(now, nonce, from, to),
            Self::Gateway(sealer) => lock(sealer).hello(now, nonce, from, to),
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The counters of the pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolCounts {
    pub(crate) resting: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// The dialling identity, and the next relay's address and identity.
type Key = (PublicIdentity, SocketAddr, PublicIdentity);

/// A connection removed from a pool.
#[derive(Debug)]
pub struct Warm {
    /// The connection.
    pub connection: Connection,
    /// The bytes that the other end had acknowledged when it was removed.
    acknowledged: Option<Bytes>,
}

#[derive(Debug)]
struct WarmConnections {
    /// Not registered with any runtime, since any worker may take one.
    ready: Vec<(Instant, Resting)>,
    demand: Demand,
    wanted: Arc<Notify>,
}

/// The demand for connections, and the time that one takes to make.
#[derive(Debug)]
struct Demand {
    seconds: VecDeque<u32>,
    this_second: Instant,
    last: Instant,
    making: Duration,
}

impl Demand {
    fn new(now: Instant) -> Self {
        let seconds = VecDeque::from([0]);
        Self { seconds, this_second: now, last: now, making: Duration::ZERO }
    }

    fn take(&mut self, now: Instant) {
        self.pass(now);
        self.last = now;
        *self.seconds.back_mut().expect("never empty") += 1;
    }

    /// Starts the counts of new seconds up to `now`.
    fn pass(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.this_second).as_secs();
        self.this_second += Duration::from_secs(passed);
        for _ in 0..passed.min(REMEMBERED_SECONDS as u64) {
            self.seconds.push_back(0);
        }
        while self.seconds.len() > REMEMBERED_SECONDS {
            self.seconds.pop_front();
        }
    }

    /// Returns the number of connections to keep: the takes of the busiest second in the time that
    /// it takes to make one, and one more, up to `most`; none if none was used for long.
    fn target(&mut self, now: Instant, most: usize) -> usize {
        self.pass(now);
        if now.saturating_duration_since(self.last) > MAX_REST {
            return 0;
        }
        let peak = self.seconds.iter().max().copied().unwrap_or(0);
        let meanwhile = f64::from(peak) * self.making.as_secs_f64();
        (meanwhile.ceil() as usize).saturating_add(1).min(most)
    }
}

impl Warm {
    /// Returns the longest time without an acknowledgement from the other end: three round trips,
    /// as the kernel has measured them here.
    pub fn reply_timeout(&self) -> Duration {
        let rtt = TcpInfo::of(&self.connection).ok().and_then(|info| info.rtt);
        rtt.map_or(MIN_SILENCE, |rtt| MIN_SILENCE.max(rtt * 3))
    }

    /// Waits for the reply of the relay at `address`; fails when that has acknowledged nothing for
    /// `limit`.
    pub async fn unless_silent(
        &self,
        limit: Duration,
        address: SocketAddr,
        reply: impl Future<Output = Waited>,
    ) -> Waited {
        let silent = async {
            tokio::time::sleep(limit).await;
            if !self.is_untouched() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            waited = reply => waited,
            () = silent => {
                let message = format!("next relay {address}: silent for {limit:?}");
                Waited::Failed(Failure::new(Status::TimedOut, message))
            }
        }
    }

    /// Returns true if the other end has acknowledged no byte since this was removed: it has not
    /// received the session, which may go over another connection.
    pub fn is_untouched(&self) -> bool {
        let now = TcpInfo::of(&self.connection).ok().and_then(|info| info.bytes_acked);
        self.acknowledged.is_some() && now == self.acknowledged
    }
}

impl Pools {
    /// Creates pools without connections.
    pub fn new(dialler: Arc<Dialler>, greeter: Greeter) -> Self {
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { dialler, greeter, pools: Mutex::default(), hits, misses }
    }

    /// Returns the counters, and the number of idle connections.
    pub(crate) fn counts(&self) -> PoolCounts {
        let resting = self.lock().values().map(|pool| pool.ready.len()).sum();
        let (hits, misses) = (self.hits.load(Relaxed), self.misses.load(Relaxed));
        PoolCounts { resting, hits, misses }
    }

    /// Keeps connections of `from` to `hop` ready from now on, if a pool is wanted: a session has
    /// just reached it, so its identity is proved, and it accepts hellos of `from`.
    pub fn keep_ready(self: &Arc<Self>, from: &PublicIdentity, hop: &Hop) {
        if self.dialler.legs.to(hop.address).most_warm == 0 {
            return;
        }
        let (key, now) = ((*from, hop.address, hop.identity), Instant::now());
        let mut pools = self.lock();
        if pools.len() < MAX_POOLS && !pools.contains_key(&key) {
            let mut pool = WarmConnections::new(now);
            pool.demand.take(now);
            tokio::spawn(Arc::clone(self).keep(key, Arc::clone(&pool.wanted)));
            pools.insert(key, pool);
        }
    }

    /// Takes a warm connection of `from` to `hop`, if one is ready. Costs nothing where no pool is
    /// wanted.
    pub fn take(&self, from: &PublicIdentity, hop: &Hop) -> Option<Warm> {
        if self.dialler.legs.to(hop.address).most_warm == 0 {
            return None;
        }
        let (key, now) = ((*from, hop.address, hop.identity), Instant::now());
        let mut pools = self.lock();
        let Some(pool) = pools.get_mut(&key) else {
            self.misses.fetch_add(1, Relaxed);
            return None;
        };
        pool.demand.take(now);
        pool.wanted.notify_one();
        // The youngest is the least likely to have died at rest.
        while let Some((_, resting)) = pool.ready.pop() {
            if !resting.is_quiet() {
                continue;
            }
            let acknowledged = TcpInfo::of(&resting).ok().and_then(|info| info.bytes_acked);
            if let Ok(connection) = resting.wake() {
                self.hits.fetch_add(1, Relaxed);
                return Some(Warm { connection, acknowledged });
            }
        }
        self.misses.fetch_add(1, Relaxed);
        None
    }

    /// Maintains one pool until no session takes from it any more. All missing connections are made
    /// at once: one after the other they would become ready no faster than one in the time that it
    /// takes to make it.
    async fn keep(self: Arc<Self>, key: Key, wanted: Arc<Notify>) {
        let most = self.dialler.legs.to(key.1).most_warm;
        let mut making = JoinSet::new();
        let mut next_try = Instant::now();
        let mut wait = FIRST_WAIT;
        let mut failures = 0;
        loop {
            let lacking = if Instant::now() < next_try { 0 } else { self.lacking(key, most) };
            for _ in making.len()..lacking {
                let pools = Arc::clone(&self);
                making.spawn(async move {
                    let start = Instant::now();
                    pools.make(key).await.map(|resting| (start, resting))
                });
            }
            if making.is_empty() && self.is_over(key, failures) {
                return;
            }
            tokio::select! {
                Some(made) = making.join_next() => match made {
                    Ok(Ok((start, resting))) => {
                        (wait, failures) = (FIRST_WAIT, 0);
                        self.put(key, start, resting);
                    }
                    Ok(Err(why)) => {
                        tracing::debug!("no warm connection to {}: {why}", key.1);
                        // Dials that were begun together fail together.
                        failures += u32::from(Instant::now() >= next_try);
                        next_try = Instant::now() + wait;
                        wait = LOOK.min(2 * wait);
                    }
                    Err(bug) => tracing::error!("making a warm connection ended by a bug: {bug}"),
                },
                () = wanted.notified() => {}
                () = tokio::time::sleep_until(next_look(next_try)) => {}
            }
        }
    }

    /// Drops connections that have died or been idle too long, and returns the number missing.
    fn lacking(&self, key: Key, most: usize) -> usize {
        let now = Instant::now();
        let mut pools = self.lock();
        let Some(pool) = pools.get_mut(&key) else { return 0 };
        let target = pool.demand.target(now, most);
        pool.ready.retain(|(since, resting)| {
            now.saturating_duration_since(*since) <= MAX_REST && resting.is_quiet()
        });
        let surplus = pool.ready.len().saturating_sub(target);
        pool.ready.drain(..surplus);
        target - pool.ready.len()
    }

    /// Returns true if the pool is empty, and no session has taken from it for long or it cannot be
    /// filled; it is removed then.
    fn is_over(&self, key: Key, failures: u32) -> bool {
        let mut pools = self.lock();
        let over = pools.get(&key).is_none_or(|pool| {
            let is_unused = pool.demand.last.elapsed() > MAX_REST;
            pool.ready.is_empty() && (is_unused || failures >= MAX_FAILURES)
        });
        if over {
            pools.remove(&key);
        }
        over
    }

    fn put(&self, key: Key, start: Instant, resting: Resting) {
        if let Some(pool) = self.lock().get_mut(&key) {
            pool.demand.making = start.elapsed();
            pool.ready.push((Instant::now(), resting));
        }
    }

    /// Dials and sends the hello. The error is for the log.
    async fn make(&self, (from, address, identity): Key) -> Result<Resting, String> {
        let dialled = self.dialler.dial(&from, &Hop { address, identity }, Speaker::Us).await;
        let mut connection = dialled.map_err(|failure| failure.message)?;
        let entropy = tradewind_net::entropy::bytes().map_err(|error| error.to_string())?;
        let hello = self.greeter.hello(Nonce::from_entropy(entropy), &from, &identity);
        let (hello, key) = hello.map_err(|error| error.to_string())?;
        let mut reply = vec![0; key.seal(&Reply::ok(0)).len()];
        let exchange = async {
            connection.write_all(&hello).await?;
            connection.read_exact(&mut reply).await?;
            self.dialler.legs.to(address).settled.apply(&connection)?;
            tcp::acknowledge_at_once(&connection)
        };
        let late = || Err(io::ErrorKind::TimedOut.into());
        let exchange = timeout(self.dialler.limit(), exchange).await.unwrap_or_else(|_| late());
        exchange.map_err(|error| crate::failure::plain(&error))?;
        match key.open(&reply).map_err(|error| error.to_string())?.status {
            Status::Ok => connection.rest().map_err(|error| error.to_string()),
            status => Err(status.to_string()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, WarmConnections>> {
        lock(&self.pools)
    }
}

impl WarmConnections {
    fn new(now: Instant) -> Self {
        let demand = Demand::new(now);
        Self { ready: Vec::new(), demand, wanted: Arc::new(Notify::new()) }
    }
}

/// Returns when to look at a pool again: as soon as the next try is due, if there is one.
fn next_look(next_try: Instant) -> Instant {
    let now = Instant::now();
    let look = now + LOOK;
    if next_try > now { look.min(next_try) } else { look }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_size_follows_busiest_second() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut demand = Demand::new(start);
        demand.making = Duration::from_millis(100);
        assert_eq!(demand.target(start, 8), 1, "one, before anything is known");
        for _ in 0..35 {
            demand.take(after(2));
        }
        assert_eq!(demand.target(after(2), 8), 5, "35/s in 0.1 s, and one more");
        assert_eq!(demand.target(after(2), 3), 3, "the profile's most");
        demand.take(after(9));
        assert_eq!(demand.target(after(9), 8), 5, "a burst is remembered");
        assert_eq!(demand.target(after(12), 8), 2, "for ten seconds");
        assert_eq!(demand.target(after(9) + MAX_REST, 8), 1);
        assert_eq!(demand.target(after(10) + MAX_REST, 8), 0, "nobody came");
    }
}
