//! The protocol between caller and responder, version 1. Pure: bytes in, messages out.
//!
//! Every connection opens with a preface of 32 bytes from the caller, integers big-endian:
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..8 | `TWPROBE` and a zero byte |
//! | 8 | version: 1 |
//! | 9 | kind: 1 control, 2 data, 3 transfer |
//! | 10..12 | zero |
//! | 12..16 | data: index of the connection, from 0; transfer: bytes; control: zero |
//! | 16..32 | data: the test's id, as the responder gave it; else zero |
//!
//! After the preface of a transfer come so many bytes; the responder answers with one byte once it
//! has them all.
//!
//! On a control connection frames follow: a length of four bytes, then so many bytes.
//!
//! ```text
//! caller                                responder
//!   preface (control)            ->
//!                                <-     Hello      challenge, whether a secret is needed
//!   proof (32 bytes) + Request   ->                zeros when there is no secret; 1 KiB at most
//!                                <-     Answer     accepted with the test's id, or refused
//!   preface (data), n times      ->                each on a connection of its own
//!                                <-     Progress   started; the transfer begins on both sides
//!                                <-     Progress   one interval's figures, again and again
//!   Stop                         ->                not when a volume was requested and has passed
//!                                <-     Progress   finished, with totals; both sides close
//! ```
//!
//! `Hello`, `Request`, `Answer`, `Progress` and `Stop` are JSON; unknown fields are ignored, so
//! that a version can grow. A change that old sides cannot ignore raises the version.

use serde::{Deserialize, Serialize};

/// The protocol's version.
pub const VERSION: u8 = 1;
/// Length of a preface.
pub const PREFACE_BYTES: usize = 32;
/// Most bytes of a frame from a caller, which is not authenticated yet. Chosen: the same as for hop
/// headers.
pub const MAX_CALLER_FRAME_BYTES: usize = 1024;
/// Most connections of one test. Chosen: as many as the public throughput grids use; the totals of
/// all fit one frame.
pub const MAX_CONNECTIONS: u32 = 64;
/// Most bytes of a frame that a responder sends: space for the totals of [`MAX_CONNECTIONS`].
pub const MAX_RESPONDER_FRAME_BYTES: usize = 64 * 1024;
/// Length of a proof, which precedes the request in its frame.
pub const PROOF_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"TWPROBE\0";

/// The reason why a peer's bytes are no message of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The first bytes are not ours.
    #[error("no Tradewind probe speaks there")]
    Magic,
    /// The peer uses another protocol version.
    #[error("probe protocol version {VERSION} is spoken here, not {0}")]
    Version(u8),
    /// The preface is of an unknown kind or holds what should be zero.
    #[error("a malformed preface")]
    Preface,
    /// A frame is longer than allowed.
    #[error("a frame of at most {limit} bytes, not {length}")]
    FrameLength {
        /// The announced length.
        length: usize,
        /// The largest allowed length.
        limit: usize,
    },
    /// A frame does not hold the expected message.
    #[error("a malformed {expected}: {cause}")]
    Message {
        /// The expected message.
        expected: &'static str,
        /// The parser's error.
        cause: String,
    },
}

macro_rules! hex_type {
    ($(#[$doc:meta])* $type:ident, $length:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $type(pub [u8; $length]);

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.0.iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }

        impl TryFrom<String> for $type {
            type Error = &'static str;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                let expected = concat!("hexadecimal digits for ", $length, " bytes");
                if text.len() != 2 * $length || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(expected);
                }
                let mut bytes = [0; $length];
                for (index, byte) in bytes.iter_mut().enumerate() {
                    let digits = &text[2 * index..2 * index + 2];
                    *byte = u8::from_str_radix(digits, 16).map_err(|_| expected)?;
                }
                Ok(Self(bytes))
            }
        }
    };
}

hex_type!(
    /// The id of a test; unguessable, so that only its caller can add connections to it.
    TestId, 16
);
hex_type!(
    /// A challenge that a caller's proof must answer; used once.
    Challenge, 16
);

/// The answer to a challenge; zeros when the responder asks for no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof(pub [u8; PROOF_BYTES]);

/// The purpose of a connection: its first 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preface {
    /// Requests, responses and figures.
    Control,
    /// The payload of a test.
    Data {
        /// Index of the connection in the test.
        index: u32,
        /// Id of the test.
        test: TestId,
    },
    /// A transfer whose completion is timed.
    Transfer {
        /// Bytes that follow.
        bytes: u32,
    },
}

impl Preface {
    /// Returns the preface's bytes on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; PREFACE_BYTES] {
        let mut bytes = [0; PREFACE_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = VERSION;
        match self {
            Self::Control => bytes[9] = 1,
            Self::Data { index, test } => {
                bytes[9] = 2;
                bytes[12..16].copy_from_slice(&index.to_be_bytes());
                bytes[16..].copy_from_slice(&test.0);
            }
            Self::Transfer { bytes: count } => {
                bytes[9] = 3;
                bytes[12..16].copy_from_slice(&count.to_be_bytes());
            }
        }
        bytes
    }

    /// Reads a preface.
    ///
    /// # Errors
    /// When it is not one of this protocol and version.
    pub fn parse(bytes: &[u8; PREFACE_BYTES]) -> Result<Self, ProtocolError> {
        if &bytes[..8] != MAGIC {
            return Err(ProtocolError::Magic);
        }
        if bytes[8] != VERSION {
            return Err(ProtocolError::Version(bytes[8]));
        }
        let zero = |part: &[u8]| part.iter().all(|byte| *byte == 0);
        let number = u32::from_be_bytes(bytes[12..16].try_into().expect("four bytes"));
        match bytes[9] {
            1 if zero(&bytes[10..]) => Ok(Self::Control),
            3 if zero(&bytes[10..12]) && zero(&bytes[16..]) => Ok(Self::Transfer { bytes: number }),
            2 if zero(&bytes[10..12]) => {
                let index = number;
                let test = TestId(bytes[16..].try_into().expect("sixteen bytes"));
                Ok(Self::Data { index, test })
            }
            _ => Err(ProtocolError::Preface),
        }
    }
}

/// The responder's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol version of the responder.
    pub protocol: u8,
    /// The challenge that the proof must answer.
    pub challenge: Challenge,
    /// True if a proof is required.
    pub secret_required: bool,
}

/// The direction of the payload, seen from the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the caller to the responder.
    Upload,
    /// From the responder to the caller.
    Download,
}

/// A test that a caller asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The direction of the payload.
    pub direction: Direction,
    /// The number of connections.
    pub connections: u32,
    /// Longest duration.
    pub duration_ms: u64,
    /// Total volume, split evenly; `None`: until the caller sends a stop.
    pub volume_bytes: Option<u64>,
    /// Length of each interval of the report.
    pub interval_us: u64,
    /// The congestion control of the sending side; `None`: the system's choice.
    pub congestion_control: Option<String>,
}

/// The responder's answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The test may begin; its data connections carry this id.
    Accepted {
        /// The test's id.
        test: TestId,
    },
    /// The test is refused.
    Refused {
        /// The reason, in one line.
        reason: String,
    },
}

/// A responder's report while a test runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// All data connections are open.
    Started,
    /// An interval has passed.
    Interval(Record),
    /// The test has ended.
    Finished(Finish),
}

/// The caller's request to end a test now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Ends the test.
    Stop,
}

/// One interval as seen by one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its end, since the transfer began on this side.
    pub end_us: u64,
    /// Its length.
    pub span_us: u64,
    /// Payload that this side received, or handed to its kernel, in the interval.
    pub bytes: u64,
    /// The sender's figures; `None` from a receiver.
    pub sender: Option<SenderSample>,
}

/// The sending kernel's figures of one interval, all connections together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderSample {
    /// Most payload sent and not acknowledged, over all samples.
    pub in_flight_max_bytes: u64,
    /// Sum of the congestion windows at the end.
    pub congestion_window_bytes: u64,
    /// Mean of the smoothed round-trip times at the end.
    pub rtt_smoothed_us: u64,
    /// Least round-trip time of all connections; 0 when this kernel does not report it.
    pub rtt_min_us: u64,
    /// Segments retransmitted since the transfer began.
    pub retransmits: u64,
    /// Time with data to send, since each connection's start, summed.
    pub busy_us: u64,
    /// The part of this time in which the receiver's window stopped it.
    pub receive_window_limited_us: u64,
    /// The part of this time in which its own send buffer stopped it.
    pub send_buffer_limited_us: u64,
}

/// The reason why a test ended, as seen by the responder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishCause {
    /// The caller requested it.
    Stopped,
    /// The requested volume has passed.
    Volume,
    /// The responder's limit of bytes was reached.
    ByteLimit,
    /// The requested duration was over without a stop from the caller.
    TimeLimit,
    /// A data connection broke.
    ConnectionLost,
    /// The responder is shutting down.
    ShuttingDown,
    /// Not all data connections arrived in time; the transfer never began.
    ConnectionsMissing,
}

/// The end of a test on the responder's side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finish {
    /// The reason.
    pub cause: FinishCause,
    /// The connections' totals, in the order of their indices.
    pub connections: Vec<ConnectionTotals>,
}

/// One side's figures of one data connection at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionTotals {
    /// Payload received, or handed to the kernel.
    pub bytes: u64,
    /// Segments retransmitted by this side.
    pub retransmits: u64,
    /// Payload retransmitted by this side.
    pub retransmitted_bytes: u64,
    /// Least round-trip time; 0 when this kernel does not report it.
    pub rtt_min_us: u64,
    /// Payload of a full segment.
    pub mss_bytes: u32,
    /// Congestion window at the end.
    pub congestion_window_segments: u32,
    /// Most payload in flight, over all samples.
    pub in_flight_max_bytes: u64,
    /// True if segments carry timestamps (12 bytes each).
    pub timestamps: bool,
    /// The congestion control.
    pub congestion_control: String,
}

/// Checks the length that a frame announces.
///
/// # Errors
/// When it is zero or above `limit`.
pub fn frame_length(header: [u8; 4], limit: usize) -> Result<usize, ProtocolError> {
    let length = usize::try_from(u32::from_be_bytes(header)).unwrap_or(usize::MAX);
    if length == 0 || length > limit {
        return Err(ProtocolError::FrameLength { length, limit });
    }
    Ok(length)
}

/// Returns a frame with `payload`.
///
/// # Panics
/// When `payload` is longer than 4 GiB: no message is.
#[must_use]
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("messages are short");
    [&length.to_be_bytes(), payload].concat()
}

/// Returns `message` as JSON.
///
/// # Panics
/// Never: these messages always have a JSON form.
#[must_use]
pub fn to_json<M: Serialize>(message: &M) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message of ours has a JSON form")
}

/// Reads the message that `expected` names from JSON.
///
/// # Errors
/// When the bytes are no such message.
pub fn from_json<M: for<'de> Deserialize<'de>>(
    expected: &'static str,
    bytes: &[u8],
) -> Result<M, ProtocolError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ProtocolError::Message { expected, cause: error.to_string() })
}

/// Splits a request's frame into its proof and the request's own bytes, which the proof covers.
///
/// # Errors
/// When the frame is too short to hold a proof.
pub fn split_request(frame: &[u8]) -> Result<(Proof, &[u8]), ProtocolError> {
    let (proof, request) = frame.split_first_chunk().ok_or(ProtocolError::Message {
        expected: "request",
        cause: format!("{} bytes are too few for a proof", frame.len()),
    })?;
    Ok((Proof(*proof), request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn preface_survives_a_round_trip() {
        let data = Preface::Data { index: 7, test: TestId([9; 16]) };
        for preface in [Preface::Control, data] {
            assert_eq!(Preface::parse(&preface.to_bytes()), Ok(preface));
        }
    }

    #[test]
    fn other_protocols_and_versions_are_distinguished() {
        let mut bytes = Preface::Control.to_bytes();
        bytes[8] = 2;
        assert_eq!(Preface::parse(&bytes), Err(ProtocolError::Version(2)));
        let mut http = [0; PREFACE_BYTES];
        http[..14].copy_from_slice(b"GET / HTTP/1.1");
        assert_eq!(Preface::parse(&http), Err(ProtocolError::Magic));
        let mut bytes = Preface::Control.to_bytes();
        bytes[20] = 1;
        assert_eq!(Preface::parse(&bytes), Err(ProtocolError::Preface));
    }

    #[test]
    fn frames_have_a_limit() {
        assert_eq!(frame_length([0, 0, 4, 0], 1024), Ok(1024));
        assert!(frame_length([0, 0, 4, 1], 1024).is_err());
        assert!(frame_length([0; 4], 1024).is_err());
        assert!(frame_length([255; 4], 1024).is_err());
    }

    #[test]
    fn longest_request_fits_its_frame() {
        let request = Request {
            direction: Direction::Download,
            connections: u32::MAX,
            duration_ms: u64::MAX,
            volume_bytes: Some(u64::MAX),
            interval_us: u64::MAX,
            congestion_control: Some("x".repeat(15)),
        };
        assert!(to_json(&request).len() + PROOF_BYTES <= MAX_CALLER_FRAME_BYTES);
    }

    #[test]
    fn totals_of_all_connections_fit_a_frame() {
        let totals = ConnectionTotals {
            bytes: u64::MAX,
            retransmits: u64::MAX,
            retransmitted_bytes: u64::MAX,
            rtt_min_us: u64::MAX,
            mss_bytes: u32::MAX,
            congestion_window_segments: u32::MAX,
            in_flight_max_bytes: u64::MAX,
            timestamps: false,
            congestion_control: "x".repeat(15),
        };
        let cause = FinishCause::ConnectionLost;
        let finish = Finish { cause, connections: vec![totals; MAX_CONNECTIONS as usize] };
        assert!(to_json(&Progress::Finished(finish)).len() <= MAX_RESPONDER_FRAME_BYTES);
    }

    #[test]
    fn unknown_fields_are_ignored_and_missing_ones_named() {
        let hello = br#"{"protocol":1,"challenge":"000102030405060708090a0b0c0d0e0f",
            "secret_required":false,"later":1}"#;
        let hello: Hello = from_json("hello", hello).unwrap();
        assert_eq!(hello.challenge.0[15], 15);
        let error = from_json::<Hello>("hello", b"{}").unwrap_err().to_string();
        assert!(error.contains("hello") && error.contains("protocol"), "{error}");
    }

    proptest! {
        #[test]
        fn parsers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(preface) = bytes.first_chunk() {
                let _ = Preface::parse(preface);
            }
            if let Ok((_, request)) = split_request(&bytes) {
                let _ = from_json::<Request>("request", request);
            }
            let _ = from_json::<Progress>("progress", &bytes);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let _ = TestId::try_from(text);
        }
    }
}
