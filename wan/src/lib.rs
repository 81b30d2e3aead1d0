//! An emulated wide-area path in virtual time: rates, queues, delay and loss, segment by segment.
