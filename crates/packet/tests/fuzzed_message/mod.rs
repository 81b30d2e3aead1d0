//! Properties that must hold for any bytes: shared by the fuzz targets and by the replay of their
//! corpora.

#![allow(dead_code, reason = "each fuzz target takes one of these")]
#![allow(unreachable_pub, reason = "each fuzz target is a crate of its own")]

use tradewind_packet::message::Message;

/// Checks that a parsed message is written back as it was; the rest is refused in a line.
pub fn message(bytes: &[u8]) {
    match Message::parse(bytes) {
        Ok(message) => {
            let mut written = Vec::new();
            message.write(&mut written);
            assert_eq!(written, bytes, "{message:?}");
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}
