//! The first bytes on a connection to a relay.

use tradewind_grant::GrantError;
use tradewind_grant::header::{HEADER_PREFIX_BYTES, header_length};
use tradewind_grant::join::{self, JOIN_BYTES};
use tradewind_grant::warm::{self, HELLO_BYTES};
use tradewind_stream::connection::head::Progress;

/// Splits a hop header, the hello of a warm connection, or a join off the received bytes.
pub(super) fn header_bytes(bytes: &[u8]) -> Result<Progress<Vec<u8>>, GrantError> {
    if bytes.len() < HEADER_PREFIX_BYTES {
        return Ok(Progress::Incomplete);
    }
    let length = match bytes {
        _ if warm::is_hello(bytes) => HELLO_BYTES,
        _ if join::is_join(bytes) => JOIN_BYTES,
        _ => header_length(bytes)?,
    };
    match bytes.get(..length) {
        Some(header) => Ok(Progress::Complete(header.to_vec(), length)),
        None => Ok(Progress::Incomplete),
    }
}
