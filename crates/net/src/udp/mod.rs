//! UDP in batches: many datagrams a system call, both ways, and nothing allocated for any of them.
//!
//! In: recvmmsg(2) into buffers of 64 KB, each of which takes a whole train of datagrams that the
//! kernel joined (`UDP_GRO`). Out: datagrams are grouped by next hop and size; a group goes as one
//! super-packet (`UDP_SEGMENT`), and all groups go by one sendmmsg(2). The cost of UDP in Linux is
//! that of one pass through the stack, so what counts is how many datagrams share one; recvmmsg and
//! sendmmsg alone spare little.
//!
//! No datagram is ever fragmented: DF is set, the kernel's idea of the path's MTU is not used, and
//! what does not fit is dropped and counted. Datagrams that the kernel dropped because nobody
//! fetched them are counted too (`SO_RXQ_OVFL`).

mod control;
mod port;
mod receive;
mod send;
mod train;

pub use port::{UdpOptions, UdpPort, shortfall_without_rights};
pub use receive::{Arrival, ReceiveBatch};
pub use send::{SendBatch, SendCounts, Target};
pub use train::Train;
