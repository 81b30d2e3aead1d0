//! Frees memory of queues, so that none is held for long after a peak.

use std::collections::VecDeque;

/// The capacity beyond this multiple of a queue's length, and some spare, is freed. Chosen: a queue
/// in steady use never gets there.
const MAX: usize = 4;
pub(crate) const SPARE: usize = 1024;

/// Frees capacity that is much more than needed. Does nothing, and allocates nothing, while the
/// queue is in steady use.
pub(crate) fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > MAX * queue.len() + SPARE {
        queue.shrink_to(2 * queue.len());
    }
}
