//! A systematic erasure code for packets `[JQ 4]`: up to 32 packets of one block are sent as they
//! are, and up to 8 repair packets recover as many lost ones.
//!
//! The code is a Cauchy code over GF(2^8) (`code`): of a block with k packets and r repair packets,
//! any k suffice. The first repair packet is the plain XOR of the others.
//!
//! Unlike codes for the blocks of a disk, this one has:
//! - *packets of different lengths*: shorter ones are padded with zeros, and their length is
//!   encoded as well;
//! - *blocks that end early*: an unused column is a column of zeros, so no new matrix is needed;
//! - *accumulation*: [`Encoder`] and [`Decoder`] add each packet to the repair packets as it
//!   arrives and keep no copy of it.
//!
//! ```
//! use tradewind_fec::{Decoder, Encoder};
//!
//! let packets: [&[u8]; 3] = [b"first", b"the second", b"3"];
//! let mut encoder = Encoder::new(2)?;
//! for (column, packet) in packets.iter().enumerate() {
//!     encoder.add(column, packet)?;
//! }
//!
//! // The first and the last are lost; both repair packets arrive.
//! let mut decoder = Decoder::new(encoder.members(), 2)?;
//! decoder.add_source(1, packets[1])?;
//! decoder.add_repair(0, encoder.repair(0))?;
//! decoder.add_repair(1, encoder.repair(1))?;
//! let recovered = decoder.recover()?;
//! assert_eq!(recovered, [(0, b"first".to_vec()), (2, b"3".to_vec())]);
//! # Ok::<(), tradewind_fec::FecError>(())
//! ```

mod code;
mod decoder;
mod encoder;
mod error;
mod field;
mod kernel;
mod members;
mod symbol;

pub use code::{MAX_REPAIRS, MAX_SOURCES};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use error::FecError;
pub use kernel::Kernel;
pub use members::Members;
pub use symbol::{LENGTH_BYTES, MAX_PACKET_BYTES};
