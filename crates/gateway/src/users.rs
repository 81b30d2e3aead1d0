//! Users of the proxies. Passwords are checked off the workers, a few at a time, and a correct one
//! is cached as a keyed hash, so that only a user's first connection is slow.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tradewind_units::Source;

use tradewind_config::users::{Hashed, User};
use tradewind_stream::process::live::Live;

/// Number of passwords that are checked at a time. Chosen: two take 38 MiB, and leave most cores
/// free.
const MAX_CHECKS: usize = 2;
/// Most checks under way or waiting of one source. Chosen: a guesser can have few guesses pending,
/// and others are served.
const MAX_OF_SOURCE: usize = 4;
/// Most checks under way or waiting in all. Chosen: some seconds' worth.
const MAX_WAITING: usize = 128;

/// A client's credentials: a name and a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) name: String,
    pub(super) password: Vec<u8>,
}

/// The reason why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotLetIn {
    /// It has sent no credentials.
    #[error("a name and a password are needed here")]
    Nothing,
    /// Its credentials are wrong.
    #[error("the name or the password is wrong")]
    Wrong,
    /// Too many passwords wait to be checked.
    #[error("too many passwords wait to be checked")]
    Busy,
}

/// The users of the proxies; if there are none, everybody may use them. A reload replaces them.
pub(super) struct Users {
    hashes: Live<BTreeMap<String, Hashed>>,
    key: [u8; 32],
    /// The keyed hash of each user's password, once checked and correct.
    known: Mutex<BTreeMap<String, blake3::Hash>>,
    free: Arc<Semaphore>,
    waiting: Arc<Waiting>,
}

/// The number of checks under way or waiting, by source.
#[derive(Default)]
struct Waiting(Mutex<BTreeMap<Source, usize>>);

/// One check among them, removed on drop.
struct Turn {
    waiting: Arc<Waiting>,
    source: Source,
}

impl Users {
    /// Creates the set of `users`; `key` is secret and this process's own.
    pub(super) fn new(users: &[User], key: [u8; 32]) -> Self {
        Self {
            hashes: Live::new(hashes_of(users)),
            key,
            known: Mutex::default(),
            free: Arc::new(Semaphore::new(MAX_CHECKS)),
            waiting: Arc::default(),
        }
    }

    /// Replaces the users. Cached passwords remain if they have not changed.
    pub(super) fn set(&self, users: &[User]) {
        let (old, new) = (self.hashes.current(), hashes_of(users));
        let mut known = lock(&self.known);
        known.retain(|name, _| new.contains_key(name) && new.get(name) == old.get(name));
        self.hashes.replace(new);
    }

    /// Returns whether clients are asked for a name and a password.
    pub(super) fn are_asked(&self) -> bool {
        !self.hashes.current().is_empty()
    }

    /// Checks the credentials of a client from `source`.
    ///
    /// # Errors
    /// The reason why the client is refused.
    pub(super) async fn admit(
        &self,
        source: IpAddr,
        shown: Option<Credentials>,
    ) -> Result<(), NotLetIn> {
        let hashes = self.hashes.current();
        if hashes.is_empty() {
            return Ok(());
        }
        let Credentials { name, password } = shown.ok_or(NotLetIn::Nothing)?;
        let digest = self.digest(&name, &password);
        // `blake3::Hash` compares in constant time.
        if lock(&self.known).get(&name).is_some_and(|known| *known == digest) {
            return Ok(());
        }
        let turn = self.waiting.enter(Source::of(source)).ok_or(NotLetIn::Busy)?;
        let free = Arc::clone(&self.free).acquire_owned().await.map_err(|_| NotLetIn::Busy)?;
        // An unknown name takes as long as any other, so that names cannot be probed by timing.
        let own = hashes.get(&name);
        let hash = own.or_else(|| hashes.values().next()).ok_or(NotLetIn::Wrong)?.clone();
        let check = move || {
            let _until_it_is_done = (turn, free);
            hash.is_of(&password)
        };
        let is_right = spawn_blocking(check).await.unwrap_or(false) && own.is_some();
        if !is_right {
            return Err(NotLetIn::Wrong);
        }
        let mut known = lock(&self.known);
        // A reload may have happened meanwhile.
        if self.hashes.current().get(&name) != own {
            return Err(NotLetIn::Wrong);
        }
        known.insert(name, digest);
        Ok(())
    }

    fn digest(&self, name: &str, password: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&(name.len() as u64).to_be_bytes());
        hasher.update(name.as_bytes()).update(password);
        hasher.finalize()
    }
}

fn hashes_of(users: &[User]) -> BTreeMap<String, Hashed> {
    users.iter().map(|user| (user.name.clone(), user.password.clone())).collect()
}

impl Waiting {
    fn enter(self: &Arc<Self>, source: Source) -> Option<Turn> {
        let mut waiting = lock(&self.0);
        let all: usize = waiting.values().sum();
        let own = waiting.get(&source).copied().unwrap_or_default();
        if all >= MAX_WAITING || own >= MAX_OF_SOURCE {
            return None;
        }
        waiting.insert(source, own + 1);
        Some(Turn { waiting: Arc::clone(self), source })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut waiting = lock(&self.waiting.0);
        match waiting.get_mut(&self.source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(waiting.remove(&self.source)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn users(checks: usize) -> Arc<Users> {
        let mut users = Users::new(&[user("ann", b"one"), user("bob", b"two")], [3; 32]);
        users.free = Arc::new(Semaphore::new(checks));
        Arc::new(users)
    }

    fn user(name: &str, password: &[u8]) -> User {
        User { name: name.to_owned(), password: Hashed::cheap(password).unwrap() }
    }

    fn shown(name: &str, password: &[u8]) -> Option<Credentials> {
        Some(Credentials { name: name.to_owned(), password: password.to_vec() })
    }

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn only_right_passwords_are_accepted() {
        runtime().block_on(async {
            let users = users(2);
            for _ in 0..2 {
                assert_eq!(users.admit(source(1), shown("ann", b"one")).await, Ok(()));
                for wrong in [shown("ann", b"two"), shown("bob", b"one"), shown("eve", b"one")] {
                    assert_eq!(users.admit(source(1), wrong).await, Err(NotLetIn::Wrong));
                }
                assert_eq!(users.admit(source(1), None).await, Err(NotLetIn::Nothing));
            }
            assert!(users.are_asked());
            let everybody = Users::new(&[], [3; 32]);
            assert_eq!(everybody.admit(source(1), None).await, Ok(()));
            assert!(!everybody.are_asked());
        });
    }

    #[test]
    fn replaced_users_need_new_passwords() {
        runtime().block_on(async {
            let users = users(2);
            let ann = || users.admit(source(1), shown("ann", b"one"));
            let bob = |password: &'static [u8]| users.admit(source(1), shown("bob", password));
            assert_eq!((ann().await, bob(b"two").await), (Ok(()), Ok(())));
            users.set(&[user("ann", b"one"), user("bob", b"three"), user("eve", b"five")]);
            assert_eq!(bob(b"two").await, Err(NotLetIn::Wrong), "though it was known");
            assert_eq!(bob(b"three").await, Ok(()));
            // From now on no check can finish.
            let held = Arc::clone(&users.free).acquire_many_owned(2).await.unwrap();
            assert_eq!(ann().await, Ok(()), "who has stayed is known still");
            // A client that waits for its check when its password is replaced is refused.
            let mut late = pin!(users.admit(source(1), shown("eve", b"five")));
            assert!(poll_fn(|cx| Poll::Ready(late.as_mut().poll(cx).is_pending())).await);
            users.set(&[user("ann", b"four")]);
            drop(held);
            assert_eq!(late.await, Err(NotLetIn::Wrong));
            assert_eq!(bob(b"three").await, Err(NotLetIn::Wrong));
            users.set(&[]);
            assert_eq!(bob(b"two").await, Ok(()), "everybody may");
        });
    }

    #[test]
    fn known_password_does_not_wait_for_guesses() {
        runtime().block_on(async {
            let users = users(1);
            assert_eq!(users.admit(source(1), shown("ann", b"one")).await, Ok(()));
            // From now on no check can finish.
            let _held = Arc::clone(&users.free).acquire_owned().await.unwrap();
            let guess = |from: u8, password: u8| {
                let users = Arc::clone(&users);
                tokio::spawn(
                    async move { users.admit(source(from), shown("bob", &[password])).await },
                )
            };
            let mut guesses: Vec<_> = (0..4).map(|password| guess(9, password)).collect();
            tokio::task::yield_now().await;
            assert_eq!(guess(9, 4).await.unwrap(), Err(NotLetIn::Busy), "of one source");
            let others = (10..u8::MAX).map(|from| guess(from, 0)).collect::<Vec<_>>();
            // The runtime needs several turns to poll so many tasks.
            for _ in 0..others.len() {
                tokio::task::yield_now().await;
            }
            let busy = others.iter().filter(|guess| guess.is_finished()).count();
            assert_eq!(busy, others.len() + guesses.len() - MAX_WAITING, "of all");
            assert_eq!(users.admit(source(9), shown("ann", b"one")).await, Ok(()));
            guesses.extend(others);
            guesses.iter().for_each(tokio::task::JoinHandle::abort);
            for guess in guesses {
                let _given_up = guess.await;
            }
            assert!(lock(&users.waiting.0).is_empty(), "who gives up leaves its place");
        });
    }
}
