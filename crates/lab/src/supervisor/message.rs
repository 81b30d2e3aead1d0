//! The protocol between the commands and the lab's process: one line of JSON each way.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tradewind_units::{Duration, HostId, SiteId};

use crate::error::LabError;
use crate::options::Backend;
use crate::privilege::Standing;
use crate::validity::ValidityRecord;

/// Longest line. Chosen: the status of a lab with a thousand links.
const MAX_LINE: u64 = 4 << 20;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    /// Asks for the status.
    Status,
    /// Changes a pair of sites.
    Set { pair: String, settings: Vec<String> },
    /// Asks for access to a host: descriptors follow the reply.
    Enter { host: HostId },
    /// Asks for a listener on a TCP port of a host: its descriptor follows the reply.
    Listen { host: HostId, port: u16 },
    /// Ends the lab.
    Down,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The request was carried out.
    Done,
    /// The reply to [`Question::Status`].
    Status(Box<Status>),
    /// The request was refused, with the reason in one line.
    Refused {
        reason: String,
        /// Set if what the user wrote is at fault.
        is_bad_input: bool,
    },
}

/// A lab that is up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of this schema.
    pub schema_version: u32,
    /// The process that holds the lab.
    pub process: u32,
    /// The topology's file.
    pub topology: String,
    /// The privilege with which its networks were created.
    pub standing: Standing,
    /// The kind of attachment of its hosts.
    pub attached_by: Backend,
    /// The time it has been up, in seconds.
    pub up_s: f64,
    /// Notes for readers of its figures.
    pub notes: Vec<String>,
    /// The hosts.
    pub hosts: Vec<HostStatus>,
    /// The links that carried any traffic.
    pub links: Vec<LinkStatus>,
    /// The validity record since the start.
    pub validity: ValidityRecord,
}

/// One host of a lab that is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its name.
    pub name: HostId,
    /// The site at which it is located.
    pub site: SiteId,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address.
    pub ipv6: Ipv6Addr,
}

/// The traffic of one link, in segments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Its name.
    pub name: String,
    /// Segments that entered the link.
    pub entered: u64,
    /// Segments that were delivered.
    pub delivered: u64,
    /// IP bytes that were delivered.
    pub delivered_bytes: u64,
    /// Segments that were lost for any cause.
    pub dropped: u64,
    /// Segments in flight.
    pub in_flight: u64,
}

/// Writes one line.
pub(crate) fn send_message(
    stream: &mut UnixStream,
    message: &impl Serialize,
) -> Result<(), LabError> {
    let mut line = serde_json::to_vec(message).expect("messages hold nothing that JSON lacks");
    line.push(b'\n');
    stream.write_all(&line).map_err(interrupted)
}

/// Reads one line, or gives up at the stream's time-out. Bytes behind it stay in the stream.
pub(crate) fn hear<T: DeserializeOwned>(stream: &UnixStream) -> Result<T, LabError> {
    let mut line = Vec::new();
    // A larger buffer would consume bytes behind the line.
    let mut reader = BufReader::with_capacity(1, stream.take(MAX_LINE));
    let read = reader.read_until(b'\n', &mut line);
    let count = read.map_err(interrupted)?;
    if count == 0 {
        return Err(LabError::Remote("the lab's process left without an answer".to_owned()));
    }
    serde_json::from_slice(&line)
        .map_err(|e| LabError::Remote(format!("the lab's process speaks otherwise than we: {e}")))
}

/// Returns the error for a line that was not transferred: the peer left, or was silent for the
/// stream's time-out.
fn interrupted(error: io::Error) -> LabError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => LabError::Silent,
        _ => LabError::Remote(format!("the lab's process left: {error}")),
    }
}

/// Sets the stream's read and write time-outs.
pub(crate) fn set_timeouts(stream: &UnixStream, timeout: Duration) -> Result<(), LabError> {
    let set = stream
        .set_read_timeout(Some(timeout))
        .and_then(|()| stream.set_write_timeout(Some(timeout)));
    set.map_err(|e| LabError::Remote(format!("cannot set a time-out: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_and_no_more() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let question = Question::Enter { host: HostId::new("tokyo").unwrap() };
        send_message(&mut here, &question).unwrap();
        here.write_all(b"rest").unwrap();
        drop(here);
        assert_eq!(hear::<Question>(&there).unwrap(), question);
        let mut rest = String::new();
        (&there).read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "rest");
    }

    #[test]
    fn nonsense_is_refused() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(b"{\"dance\":1}\n").unwrap();
        assert!(hear::<Question>(&there).is_err());
        drop(here);
        assert!(hear::<Question>(&there).unwrap_err().to_string().contains("left"));
    }
}
