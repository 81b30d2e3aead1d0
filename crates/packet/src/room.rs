//! Room that queues give back, so that whoever sends much once has none of it held for long.

use std::collections::VecDeque;

/// Room for so many times what is in a queue is given back, but for some. Chosen: what comes and
/// goes in order never gets there.
const MOST: usize = 4;
pub(crate) const SPARE: usize = 1024;

/// Lets room go that much more was in. Nothing is done, and nothing allocated, while about as much
/// comes as goes.
pub(crate) fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > MOST * queue.len() + SPARE {
        queue.shrink_to(2 * queue.len());
    }
}
