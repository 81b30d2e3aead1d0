//! Upgrade of the process without a refused connection: the next one takes over the listening
//! sockets.
//!
//! SIGUSR2 starts the program anew, with the same arguments; an agent starts it for a process of
//! its own, with all rights that the agent has. The successor reads its configuration, gets the
//! listeners, and reports when it is ready; only then does the old process stop accepting.
//! Connections wait in the kernel's backlog meanwhile, for as long as it takes to send the table of
//! headers seen. From then on only one process checks headers for replays: the old process, which
//! may still read headers of connections that it accepted, asks the new one, so a header that
//! either has accepted is a replay to both, and an honest header in flight is refused by neither. A
//! successor that fails before it is ready changes nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tradewind_grant::{GrantError, Nonce, PublicIdentity, Sighting};
use tradewind_net::handover::{self, Program};
use tradewind_net::{NetError, descriptor, systemd, tcp};
use tradewind_units::{Timestamp, one_line};

use crate::StreamError;
use crate::process::server::{Service, Setup};

/// Longest wait for a successor to be ready, and of that for what it is sent. Chosen: long for
/// reading a file and opening ports.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait for a successor's judgement. Chosen: far above a turn of a loaded machine.
const JUDGEMENT_LIMIT: Duration = Duration::from_secs(2);

/// The byte that a successor sends when it is ready.
const READY: u8 = 0x52;

/// The length of a question to the successor: gateway, time of issue in nanoseconds, nonce.
const QUESTION_BYTES: usize = 32 + 8 + 16;

/// Most bytes that a successor accepts for a table of headers seen. Chosen: above a full one.
const MAX_TABLE_BYTES: u64 = 1 << 30;

/// The purpose of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Sessions, at the listener with this number.
    Listener(usize),
    /// Metrics and health.
    Metrics,
}

/// The name of a listener in a configuration: an address whose port the system chooses may occur
/// twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) purpose: Purpose,
    pub(crate) address: SocketAddr,
}

impl Name {
    fn to_text(self) -> String {
        match self.purpose {
            Purpose::Listener(number) if self.address.port() == 0 => {
                format!("entrance {number} {}", self.address)
            }
            // An address may have moved in the configuration.
            Purpose::Listener(_) => format!("entrance {}", self.address),
            Purpose::Metrics => format!("metrics {}", self.address),
        }
    }
}

/// Sockets by name, to be passed to the next process.
#[derive(Debug, Default)]
pub(crate) struct PassedSockets(Vec<(String, OwnedFd)>);

impl PassedSockets {
    /// Adds a duplicate of `listener`.
    pub(crate) fn add(&mut self, name: Name, listener: &TcpListener) -> io::Result<()> {
        self.0.push((name.to_text(), listener.try_clone()?.into()));
        Ok(())
    }

    /// Starts a successor and hands over; on an error this process goes on unchanged. Returns
    /// the successor's number.
    pub(crate) fn hand_over<S: Service>(&self, service: &S) -> io::Result<u32> {
        let (successor, stream) = Program::of_this_process()?.start_successor()?;
        match self.pass_to(&stream, service, START_LIMIT) {
            Ok(()) => Ok(successor.id()),
            Err(error) => {
                // Whatever its state, it must not serve.
                drop(stream);
                let status = successor.end()?;
                let why = crate::failure::plain(&error);
                let words = match (error.kind(), status) {
                    (_, None) => why,
                    (ErrorKind::TimedOut, Some(_)) => format!("{why}, and was ended"),
                    (_, Some(status)) => format!("{why}; it ended with {status}"),
                };
                Err(io::Error::new(error.kind(), words))
            }
        }
    }

    /// Passes everything to the process at the other end of `stream`, which must be ready within
    /// `limit`.
    fn pass_to<S: Service>(
        &self,
        stream: &UnixStream,
        service: &S,
        limit: Duration,
    ) -> io::Result<()> {
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        self.pass_sockets(stream)
            .and_then(|()| read_ready(stream))
            .map_err(|error| explained(&error, stream, "was not ready", limit))?;
        // Headers wait meanwhile: a new process that hangs must not keep them waiting for ever.
        stream.set_read_timeout(Some(JUDGEMENT_LIMIT))?;
        stream.set_write_timeout(Some(JUDGEMENT_LIMIT))?;
        service
            .hand_over(stream)
            .map_err(|error| explained(&error, stream, "did not take over", JUDGEMENT_LIMIT))
    }

    fn pass_sockets(&self, mut stream: &UnixStream) -> io::Result<()> {
        stream.write_all(&(self.0.len() as u64).to_be_bytes())?;
        for (text, socket) in &self.0 {
            stream.write_all(&(text.len() as u64).to_be_bytes())?;
            stream.write_all(text.as_bytes())?;
            descriptor::send(stream, &[socket.as_fd()]).map_err(other)?;
        }
        Ok(())
    }
}

/// Waits until the successor reports that it is ready.
fn read_ready(mut stream: &UnixStream) -> io::Result<()> {
    let mut word = [0];
    stream.read_exact(&mut word)?;
    match word {
        [READY] => Ok(()),
        [handover::DECLINED] => Err(io::Error::other(reason(stream))),
        _ => Err(io::Error::other("the new process is no successor")),
    }
}

/// Returns the reason that a successor gives after it has declined.
fn reason(stream: &UnixStream) -> String {
    /// Chosen: longer than any line that a person reads.
    const MAX_BYTES: u64 = 4096;
    let mut words = Vec::new();
    // The bytes received by then are all there are.
    let _rest = stream.take(MAX_BYTES).read_to_end(&mut words);
    let words = one_line(&String::from_utf8_lossy(&words), MAX_BYTES as usize);
    format!("the new process says: {words}")
}

/// Returns why a successor does not serve, from the error of the socket to it.
fn explained(error: &io::Error, stream: &UnixStream, lacks: &str, limit: Duration) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let words = format!("the new process {lacks} within {limit:?}");
            io::Error::new(ErrorKind::TimedOut, words)
        }
        ErrorKind::UnexpectedEof => io::Error::other("the new process ended without a word"),
        // It has ended before it read what was sent, and may have sent the reason.
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => read_ready(stream)
            .err()
            .filter(|error| error.kind() == ErrorKind::Other)
            .unwrap_or_else(|| io::Error::other("the new process ended without a word")),
        _ => io::Error::new(error.kind(), crate::failure::plain(error)),
    }
}

/// The sockets that the previous process, or systemd, has passed to this one.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    sockets: Vec<(String, OwnedFd)>,
    passed_by_systemd: Vec<TcpListener>,
    predecessor: Option<UnixStream>,
}

impl InheritedSockets {
    /// Takes the inherited sockets, once for each process.
    pub(crate) fn take() -> io::Result<Self> {
        let predecessor = handover::predecessor();
        let sockets = match &predecessor {
            Some(stream) => receive_within(stream, START_LIMIT)?,
            None => Vec::new(),
        };
        Ok(Self { sockets, passed_by_systemd: systemd::passed_listeners(), predecessor })
    }

    /// Takes the listeners of this name; those of systemd are matched by their address alone.
    pub(crate) fn listeners(&mut self, name: Name) -> Vec<TcpListener> {
        let text = name.to_text();
        let called_so = |(called, _): &mut (String, OwnedFd)| *called == text;
        let there = |listener: &mut TcpListener| {
            listener.local_addr().is_ok_and(|address| address == name.address)
        };
        let handed_on = self.sockets.extract_if(.., called_so).map(|(_, socket)| socket.into());
        handed_on.chain(self.passed_by_systemd.extract_if(.., there)).collect()
    }

    /// Takes the socket to the previous process, which waits for a message.
    pub(crate) const fn predecessor(&mut self) -> Option<UnixStream> {
        self.predecessor.take()
    }
}

/// Receives the sockets; no part of them may take longer than `limit` to come.
fn receive_within(stream: &UnixStream, limit: Duration) -> io::Result<Vec<(String, OwnedFd)>> {
    stream.set_read_timeout(Some(limit))?;
    let received = receive_sockets(stream)?;
    // Questions come for as long as that process has sessions.
    stream.set_read_timeout(None)?;
    Ok(received)
}

fn receive_sockets(stream: &UnixStream) -> io::Result<Vec<(String, OwnedFd)>> {
    let count = read_number(stream)?;
    (0..count)
        .map(|_| {
            let name = String::from_utf8(read_bytes(stream, 256)?).map_err(io::Error::other)?;
            let descriptor = descriptor::receive(stream).map_err(other)?.pop();
            Ok((name, descriptor.ok_or_else(|| io::Error::other("no socket came"))?))
        })
        .collect()
}

/// The sockets of the previous process, for a program that serves sockets beside a relay or gateway
/// in one process: it takes its own before the relay or gateway takes the
/// rest, and adds those that the next process is to get.
#[derive(Debug, Default)]
pub struct Handover {
    pub(crate) inherited: InheritedSockets,
    pub(crate) passed: PassedSockets,
}

impl Handover {
    /// Takes the inherited sockets, once for each process.
    ///
    /// # Errors
    /// When it breaks off.
    pub fn take() -> Result<Self, StreamError> {
        let inherited = InheritedSockets::take().map_err(StreamError::InheritedSockets)?;
        Ok(Self { inherited, passed: PassedSockets::default() })
    }

    /// Takes the sockets whose names begin with `prefix`, by name.
    pub fn sockets(&mut self, prefix: &str) -> Vec<(String, OwnedFd)> {
        let called_so = |(called, _): &mut (String, OwnedFd)| called.starts_with(prefix);
        self.inherited.sockets.extract_if(.., called_so).collect()
    }

    /// Adds `socket`, for the next process to get under `name`.
    pub fn hand_on(&mut self, name: String, socket: OwnedFd) {
        self.passed.0.push((name, socket));
    }
}

/// Returns the listeners of `name`: the `inherited` ones, and those missing for `count` workers.
pub(crate) fn open_listeners(
    name: Name,
    count: usize,
    setup: &Setup<'_>,
    inherited: Vec<TcpListener>,
) -> Result<Vec<TcpListener>, StreamError> {
    let (backlog, options) = (setup.limits.backlog, setup.accept);
    let mut listeners = inherited;
    let Some(first) = listeners.first() else {
        return Ok(tcp::listen(name.address, count, backlog, options)?);
    };
    let local = first.local_addr().map_err(StreamError::Runtime)?;
    for listener in &listeners {
        options.apply(listener)?;
        listener.set_nonblocking(true).map_err(StreamError::Runtime)?;
    }
    let lacking = count.saturating_sub(listeners.len());
    if let Ok(more) = tcp::listen_along(local, lacking, backlog, options) {
        listeners.extend(more);
    }
    // A port that is not shared, as systemd opens it, is accepted from by several workers.
    for index in 0..count.saturating_sub(listeners.len()) {
        listeners.push(listeners[index].try_clone().map_err(StreamError::Runtime)?);
    }
    Ok(listeners)
}

/// Reports that this process is ready, takes over the state of the previous one, and answers its
/// questions until it ends.
pub(crate) fn succeed<S: Service>(
    stream: UnixStream,
    service: &std::sync::Arc<S>,
) -> io::Result<()> {
    (&stream).write_all(&[READY])?;
    handover::is_ready();
    service.take_over(&read_bytes(&stream, MAX_TABLE_BYTES)?)?;
    let service = std::sync::Arc::clone(service);
    let judge = move || {
        let mut question = [0; QUESTION_BYTES];
        while (&stream).read_exact(&mut question).is_ok() {
            let answer = answer_of(&service.judge(&parse_question(&question)));
            if (&stream).write_all(&[answer]).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("judge".to_owned()).spawn(judge).map(drop)
}

/// Sends the state for the successor.
pub fn send_bytes(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&(bytes.len() as u64).to_be_bytes())?;
    stream.write_all(bytes)
}

fn read_bytes(mut stream: &UnixStream, most: u64) -> io::Result<Vec<u8>> {
    let length = read_number(stream)?;
    if length > most {
        return Err(io::Error::other(format!("{length} bytes are more than the {most} expected")));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    stream.read_exact(&mut bytes).map_err(broken_off)?;
    Ok(bytes)
}

fn read_number(mut stream: &UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).map_err(broken_off)?;
    Ok(u64::from_be_bytes(bytes))
}

/// Returns the error for an early end, or the silence, of the previous process.
fn broken_off(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => io::Error::other("the process before this one broke off"),
        ErrorKind::WouldBlock => {
            io::Error::new(ErrorKind::TimedOut, "the process before this one is silent")
        }
        _ => error,
    }
}

fn other(error: NetError) -> io::Error {
    let kind = match &error {
        NetError::System { source, .. } => source.kind(),
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// The successor, which holds the table of headers seen. A thread asks it, and workers wait for its
/// answers as for any other event, so a successor that hangs delays headers and nothing else.
#[derive(Debug, Clone)]
pub struct Successor(Sender<Question>);

/// A header that waits for the successor's answer.
#[derive(Debug)]
pub struct Question {
    sighting: Sighting,
    now: Timestamp,
    answer: oneshot::Sender<Result<(), GrantError>>,
}

impl Successor {
    /// Creates one that no thread asks yet ([`start_asking`]): questions wait.
    pub fn new() -> (Self, Receiver<Question>) {
        let (questions, waiting) = channel();
        (Self(questions), waiting)
    }

    /// Asks about a header; `None` if there is no successor after all.
    pub async fn ask(&self, now: Timestamp, sighting: Sighting) -> Option<Result<(), GrantError>> {
        let (answer, received) = oneshot::channel();
        self.0.send(Question { sighting, now, answer }).ok()?;
        received.await.ok()
    }
}

/// Starts a thread that sends the questions, waiting and later ones, over the socket `successor`.
pub fn start_asking(successor: UnixStream, questions: Receiver<Question>) -> io::Result<()> {
    let ask = move || {
        for Question { sighting, now, answer } in questions {
            // A header whose connection is gone needs no answer.
            if !answer.is_closed() {
                let _gone = answer.send(ask(&successor, now, &sighting));
            }
        }
    };
    std::thread::Builder::new().name("judgements".to_owned()).spawn(ask).map(drop)
}

/// Asks over the socket to the successor whether a header may be used.
fn ask(mut successor: &UnixStream, now: Timestamp, sighting: &Sighting) -> Result<(), GrantError> {
    let Sighting { gateway, issued_at, nonce } = sighting;
    let mut question = [0; QUESTION_BYTES];
    question[..32].copy_from_slice(gateway.as_bytes());
    question[32..40].copy_from_slice(&issued_at.as_nanos().to_be_bytes());
    question[40..].copy_from_slice(nonce.as_bytes());
    let mut answer = [0];
    let asked = successor.write_all(&question).and_then(|()| successor.read_exact(&mut answer));
    let ms = |time: Timestamp| time.as_nanos() / 1_000_000;
    match (asked, answer) {
        (Ok(()), [ADMITTED]) => Ok(()),
        (Ok(()), [REPLAYED]) => Err(GrantError::Replayed(*nonce)),
        (Ok(()), [SKEWED]) => Err(GrantError::Skew {
            issued_ms: ms(*issued_at),
            now_ms: ms(now),
            tolerated_s: tradewind_grant::replay::SKEW.as_secs(),
        }),
        // No process is left that could detect a replay. A late answer would be mistaken for the
        // next question's.
        _ => {
            let _gone = successor.shutdown(Shutdown::Both);
            Err(GrantError::ReplayTableFull(0))
        }
    }
}

const ADMITTED: u8 = 0;
const REPLAYED: u8 = 1;
const SKEWED: u8 = 2;
const FULL: u8 = 3;

const fn answer_of(judgement: &Result<(), GrantError>) -> u8 {
    match judgement {
        Ok(()) => ADMITTED,
        Err(GrantError::Replayed(_)) => REPLAYED,
        Err(GrantError::ReplayTableFull(_)) => FULL,
        Err(_) => SKEWED,
    }
}

fn parse_question(question: &[u8; QUESTION_BYTES]) -> Sighting {
    let (gateway, rest) = question.split_first_chunk::<32>().expect("long enough");
    let (issued_at, nonce) = rest.split_first_chunk::<8>().expect("long enough");
    let nonce = nonce.try_into().expect("sixteen bytes are left");
    Sighting {
        gateway: PublicIdentity::from_bytes(*gateway),
        issued_at: Timestamp::from_nanos(u64::from_be_bytes(*issued_at)),
        nonce: Nonce::from_entropy(nonce),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns why a successor is rejected, after `does` was called with its end of the socket.
    fn rejection(does: impl FnOnce(UnixStream) -> Option<UnixStream>) -> String {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let limit = Duration::from_millis(20);
        ours.set_read_timeout(Some(limit)).unwrap();
        let _open = does(theirs);
        let error = read_ready(&ours).unwrap_err();
        crate::failure::plain(&explained(&error, &ours, "was not ready", limit))
    }

    #[test]
    fn rejection_of_a_successor_has_a_reason() {
        assert_eq!(rejection(Some), "the new process was not ready within 20ms");
        assert_eq!(rejection(|_gone| None), "the new process ended without a word");
        let declined = rejection(|mut theirs| {
            theirs
                .write_all(&[&[handover::DECLINED][..], b"relay.toml: no\nsuch key"].concat())
                .unwrap();
            None
        });
        assert_eq!(declined, "the new process says: relay.toml: no such key");
    }

    #[test]
    fn successor_that_ends_early_has_a_reason() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[&[handover::DECLINED][..], b"why"].concat()).unwrap();
        (&ours).write_all(b"unread").unwrap();
        drop(theirs);
        let error = (&ours).write_all(b"more").unwrap_err();
        let explanation = explained(&error, &ours, "was not ready", START_LIMIT);
        assert_eq!(explanation.to_string(), "the new process says: why");
    }

    #[test]
    fn silent_predecessor_is_not_waited_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let error = receive_within(&ours, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        PassedSockets::default().pass_sockets(&theirs).unwrap();
        assert!(receive_within(&ours, START_LIMIT).unwrap().is_empty());
        assert_eq!(ours.read_timeout().unwrap(), None);
    }

    fn sighting(number: u8) -> Sighting {
        Sighting {
            gateway: PublicIdentity::from_bytes([1; 32]),
            issued_at: Timestamp::ZERO,
            nonce: Nonce::from_entropy([number; 16]),
        }
    }

    /// A successor that is late with one answer, and then continues as if nothing had happened.
    #[test]
    fn late_verdict_is_not_mistaken_for_the_next() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let first = ask(&ours, Timestamp::ZERO, &sighting(1));
        assert!(matches!(first, Err(GrantError::ReplayTableFull(_))));
        let _gone = theirs.write_all(&[ADMITTED]);
        let second = ask(&ours, Timestamp::ZERO, &sighting(2));
        assert!(matches!(second, Err(GrantError::ReplayTableFull(_))));
    }

    /// Headers wait from before the successor has the table; a task that waits for one goes on with
    /// other work.
    #[tokio::test]
    async fn stalled_successor_delays_only_headers() {
        let (successor, questions) = Successor::new();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let judged = successor.ask(Timestamp::ZERO, sighting(1));
        let going_on = async {
            // The same thread does other things meanwhile.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            start_asking(ours, questions).unwrap();
            let mut question = [0; QUESTION_BYTES];
            theirs.read_exact(&mut question).unwrap();
            assert_eq!(parse_question(&question), sighting(1));
            theirs.write_all(&[REPLAYED]).unwrap();
        };
        let (judged, ()) = tokio::join!(judged, going_on);
        assert!(matches!(judged, Some(Err(GrantError::Replayed(_)))));
        drop(theirs);
        let judged = successor.ask(Timestamp::ZERO, sighting(2)).await;
        assert!(matches!(judged, Some(Err(GrantError::ReplayTableFull(_)))));
    }

    #[tokio::test]
    async fn waiter_of_failed_successor_is_notified() {
        let (successor, questions) = Successor::new();
        let judged = successor.ask(Timestamp::ZERO, sighting(1));
        let fails = async { drop(questions) };
        assert_eq!(tokio::join!(judged, fails).0, None);
        assert_eq!(successor.ask(Timestamp::ZERO, sighting(2)).await, None);
    }
}
