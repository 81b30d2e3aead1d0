//! Work items processed by several threads, with results in order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::Observer;

/// The results of a possibly incomplete run over work items.
pub(crate) struct Done<T, E> {
    /// The results in the items' order; `None` where an item failed or was not started.
    pub(crate) results: Vec<Option<T>>,
    /// The first error; no item was started after it.
    pub(crate) error: Option<E>,
}

/// Runs `work` for each item, `at_once` at a time, and returns the results in the items' order.
/// After the first error no item is started; running ones finish.
///
/// # Errors
/// As `work`.
pub(crate) fn each<I: Sync, T: Send, E: Send>(
    step: &str,
    items: &[I],
    at_once: usize,
    observer: &mut dyn Observer,
    work: impl Fn(&I) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let done = until_error(step, items, at_once, observer, work, |_, _, _| {});
    match done.error {
        Some(error) => Err(error),
        None => Ok(done.results.into_iter().map(|it| it.expect("nothing failed")).collect()),
    }
}

/// Works like [`each`], but keeps the results of finished items when one fails. `note` is called
/// for each finished item with its index and all results so far.
pub(crate) fn until_error<I: Sync, T: Send, E: Send>(
    step: &str,
    items: &[I],
    at_once: usize,
    observer: &mut dyn Observer,
    work: impl Fn(&I) -> Result<T, E> + Sync,
    mut note: impl FnMut(&mut dyn Observer, usize, &[Option<T>]),
) -> Done<T, E> {
    observer.begin(step, items.len() as u64);
    let (next, failed, work) = (&AtomicUsize::new(0), &AtomicBool::new(false), &work);
    let mut done = Done { results: items.iter().map(|_| None).collect(), error: None };
    thread::scope(|scope| {
        let (sender, results) = mpsc::channel();
        for _ in 0..at_once.min(items.len()) {
            let sender = sender.clone();
            scope.spawn(move || {
                while !failed.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let result = work(item);
                    failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    sender.send((index, result)).expect("somebody listens to the last one");
                }
            });
        }
        drop(sender);
        let mut count = 0;
        for (index, result) in results {
            match result {
                Ok(result) => {
                    done.results[index] = Some(result);
                    count += 1;
                    observer.advance_to(count);
                    note(observer, index, &done.results);
                }
                Err(error) => done.error = done.error.take().or(Some(error)),
            }
        }
    });
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Silent;

    impl Observer for Silent {
        fn begin(&mut self, _: &str, _: u64) {}
        fn advance_to(&mut self, _: u64) {}
    }

    #[test]
    fn first_error_keeps_results_and_starts_no_more_items() {
        let work = |item: &u32| if *item == 3 { Err("three") } else { Ok(item * 10) };
        let mut noted = Vec::new();
        let note = |_: &mut dyn Observer, index, _: &[Option<u32>]| noted.push(index);
        let done = until_error("count", &[1, 2, 3, 4], 1, &mut Silent, work, note);
        assert_eq!(done.results, [Some(10), Some(20), None, None]);
        assert_eq!((done.error, noted), (Some("three"), vec![0, 1]));
        assert_eq!(each("count", &[1, 3], 2, &mut Silent, work), Err("three"));
        assert_eq!(each("count", &[1, 2], 2, &mut Silent, work), Ok(vec![10, 20]));
    }
}
