//! Pieces of work done by several threads, their results in order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::demo::Observer;

/// Does `work` for each item, `at_once` at a time; the results in the items' order. The first error ends it, once what has
/// begun is done.
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
    observer.begin(step, items.len() as u64);
    let (next, work) = (&AtomicUsize::new(0), &work);
    let mut results: Vec<Option<T>> = items.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let (sender, done) = mpsc::channel();
        for _ in 0..at_once.min(items.len()) {
            let sender = sender.clone();
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    // Nobody listens any more once a piece has failed.
                    if sender.send((index, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (count, (index, result)) in done.iter().enumerate() {
            results[index] = Some(result?);
            observer.advance_to(count as u64 + 1);
        }
        Ok::<(), E>(())
    })?;
    Ok(results.into_iter().map(|result| result.expect("each index was sent once")).collect())
}
