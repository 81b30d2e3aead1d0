//! The table of names that are being looked up, with their askers, and of those that were not found
//! a moment ago.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Lookups;

/// Lookups under way at a time. Chosen: each holds a socket for either family.
const MAX_LOOKUPS: usize = 256;

/// Time for which a name that was not found is not looked up again. Chosen: a burst of sessions
/// asks once, and a record that has just been made is found by the second try of a person.
pub(super) const FAILURE_MEMORY: Duration = Duration::from_secs(2);

/// Most names that are remembered as not found.
const MAX_FAILURES: usize = 4096;

/// The addresses of a name, or why there are none.
pub(super) type Answer = Result<Arc<[IpAddr]>, Arc<str>>;

/// A request for a name, and the channel of its answer.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) name: Arc<str>,
    pub(super) lookups: Lookups,
    pub(super) reply: oneshot::Sender<Answer>,
}

#[derive(Debug)]
enum Entry {
    /// It waits for its turn.
    Queued(Vec<(Lookups, oneshot::Sender<Answer>)>),
    /// It is being looked up, and counts among these lookups.
    UnderWay(Lookups, Vec<oneshot::Sender<Answer>>),
    Failed(Arc<str>),
}

/// The names that are being looked up.
///
/// Each is looked up once however many askers want it, and counts for one of them. An asker has no
/// more lookups under way than its own limit, and than are free: so askers with names that no
/// server answers for leave capacity for each other's.
#[derive(Debug, Default)]
pub(super) struct Table {
    names: HashMap<Arc<str>, Entry>,
    queue: VecDeque<Arc<str>>,
    under_way: usize,
    /// Names that were not found, and the time until which that is remembered.
    failures: VecDeque<(Instant, Arc<str>)>,
}

impl Table {
    /// Takes a request; it is answered at once if its name was not found a moment ago.
    pub(super) fn want(&mut self, now: Instant, wanted: Wanted) {
        self.forget(now);
        let Wanted { name, lookups, reply } = wanted;
        match self.names.get_mut(&name) {
            Some(Entry::Failed(why)) => {
                let _gone = reply.send(Err(Arc::clone(why)));
            }
            Some(Entry::UnderWay(_, waiting)) => waiting.push(reply),
            Some(Entry::Queued(waiting)) => waiting.push((lookups, reply)),
            None => {
                self.names.insert(Arc::clone(&name), Entry::Queued(vec![(lookups, reply)]));
                self.queue.push_back(name);
            }
        }
    }

    /// Returns the next name to be looked up now, if there is one.
    pub(super) fn next(&mut self) -> Option<Arc<str>> {
        let free = MAX_LOOKUPS - self.under_way;
        let mut at = 0;
        while free > 0 && at < self.queue.len() {
            let name = &self.queue[at];
            let Some(Entry::Queued(waiting)) = self.names.get_mut(name) else {
                self.queue.remove(at);
                continue;
            };
            waiting.retain(|(_, reply)| !reply.is_closed());
            if waiting.is_empty() {
                self.names.remove(name);
                self.queue.remove(at);
                continue;
            }
            if let Some((payer, _)) = waiting.iter().find(|(lookups, _)| lookups.may_begin(free)) {
                let payer = payer.clone();
                payer.begin();
                self.under_way += 1;
                let waiting = std::mem::take(waiting).into_iter().map(|(_, reply)| reply).collect();
                let name = self.queue.remove(at)?;
                self.names.insert(Arc::clone(&name), Entry::UnderWay(payer, waiting));
                return Some(name);
            }
            at += 1;
        }
        None
    }

    /// Sends the answer for `name` to all that wait for it.
    pub(super) fn done(&mut self, now: Instant, name: &Arc<str>, answer: &Answer) {
        let Some(Entry::UnderWay(payer, waiting)) = self.names.remove(name) else { return };
        self.under_way -= 1;
        payer.end();
        for reply in waiting {
            // An asker that has given up gets no answer.
            let _gone = reply.send(answer.clone());
        }
        if let Err(why) = answer {
            self.names.insert(Arc::clone(name), Entry::Failed(Arc::clone(why)));
            self.failures.push_back((now + FAILURE_MEMORY, Arc::clone(name)));
        }
        self.forget(now);
    }

    fn forget(&mut self, now: Instant) {
        while let Some((until, _)) = self.failures.front()
            && (*until <= now || self.failures.len() > MAX_FAILURES)
        {
            let Some((_, name)) = self.failures.pop_front() else { return };
            self.names.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Receiver = oneshot::Receiver<Answer>;

    fn want(table: &mut Table, now: Instant, name: &str, lookups: &Lookups) -> Receiver {
        let (reply, receiver) = oneshot::channel();
        table.want(now, Wanted { name: name.into(), lookups: lookups.clone(), reply });
        receiver
    }

    fn started(table: &mut Table) -> Vec<Arc<str>> {
        std::iter::from_fn(|| table.next()).collect()
    }

    fn found() -> Answer {
        Ok([IpAddr::from([192, 0, 2, 1])].into())
    }

    #[test]
    fn name_is_looked_up_once_for_all_who_want_it() {
        let (mut table, now) = (Table::default(), Instant::now());
        let (one, other) = (Lookups::of_one(), Lookups::of_one());
        let mut replies = vec![want(&mut table, now, "a.test", &one)];
        assert_eq!(started(&mut table), ["a.test".into()]);
        replies.extend((0..30).map(|_| want(&mut table, now, "a.test", &one)));
        replies.push(want(&mut table, now, "a.test", &other));
        assert!(started(&mut table).is_empty());
        assert!(other.rest() && !one.rest());
        table.done(now, &"a.test".into(), &found());
        for mut reply in replies {
            assert_eq!(reply.try_recv().unwrap(), found());
        }
        assert!(one.rest() && table.names.is_empty());
    }

    #[test]
    fn asker_with_dead_names_leaves_others_capacity() {
        let (mut table, now) = (Table::default(), Instant::now());
        let mut replies = Vec::new();
        // Half as many again as there is capacity for, if each used its whole limit.
        let askers: Vec<_> = (0..12).map(|_| Lookups::of_one()).collect();
        for (number, asker) in askers.iter().enumerate() {
            for name in 0..100 {
                replies.push(want(&mut table, now, &format!("{name}.dead-{number}.test"), asker));
            }
            let begun = started(&mut table).len();
            assert!(begun > 0, "asker {number} has its share");
        }
        assert!(table.under_way < MAX_LOOKUPS);
        let honest = Lookups::of_one();
        let _reply = want(&mut table, now, "healthy.test", &honest);
        assert_eq!(started(&mut table), ["healthy.test".into()]);
        // One whose own lookups are all stuck waits for its turn, and gets it.
        let stuck = &askers[0];
        let _reply = want(&mut table, now, "late.test", stuck);
        assert!(started(&mut table).is_empty());
        for name in 0..32 {
            table.done(now, &format!("{name}.dead-0.test").into(), &Err("silent".into()));
        }
        // Those asked for before come first.
        assert_eq!(started(&mut table).first(), Some(&"32.dead-0.test".into()));
    }

    #[test]
    fn shared_askers_leave_half_to_others() {
        let (mut table, now) = (Table::default(), Instant::now());
        let many = [Lookups::of_many(), Lookups::of_many()];
        let mut replies = Vec::new();
        let mut begun = |asker: usize| {
            for name in 0..MAX_LOOKUPS {
                let name = format!("{name}.dead-{asker}.test");
                replies.push(want(&mut table, now, &name, &many[asker]));
            }
            started(&mut table).len()
        };
        assert_eq!([begun(0), begun(1)], [MAX_LOOKUPS / 2, MAX_LOOKUPS / 4]);
    }

    #[test]
    fn failed_lookup_is_cached_briefly() {
        let (mut table, now) = (Table::default(), Instant::now());
        let asker = Lookups::of_one();
        let _reply = want(&mut table, now, "a.test", &asker);
        started(&mut table);
        table.done(now, &"a.test".into(), &Err("no such name".into()));
        let later = now + FAILURE_MEMORY / 2;
        let mut reply = want(&mut table, later, "a.test", &asker);
        assert_eq!(reply.try_recv().unwrap(), Err("no such name".into()));
        assert!(started(&mut table).is_empty());
        let mut reply = want(&mut table, now + FAILURE_MEMORY, "a.test", &asker);
        assert!(reply.try_recv().is_err());
        assert_eq!(started(&mut table), ["a.test".into()]);
    }

    #[test]
    fn failure_cache_is_bounded() {
        let (mut table, now) = (Table::default(), Instant::now());
        let asker = Lookups::of_one();
        for name in 0..2 * MAX_FAILURES {
            let name = format!("{name}.test");
            let _reply = want(&mut table, now, &name, &asker);
            assert_eq!(table.next(), Some(name.as_str().into()));
            table.done(now, &name.into(), &Err("no such name".into()));
        }
        assert_eq!((table.names.len(), table.failures.len()), (MAX_FAILURES, MAX_FAILURES));
    }

    #[test]
    fn cancelled_lookup_is_dropped_from_the_queue() {
        let (mut table, now) = (Table::default(), Instant::now());
        let asker = Lookups::of_one();
        let replies: Vec<_> =
            (0..40).map(|name| want(&mut table, now, &format!("{name}.test"), &asker)).collect();
        let begun = started(&mut table).len();
        assert!(begun < 40);
        drop(replies);
        table.done(now, &"0.test".into(), &found());
        assert!(started(&mut table).is_empty());
        assert_eq!((table.queue.len(), table.names.len()), (0, begun - 1));
    }
}
