//! Change of the process without a refused connection: the next one takes the listening sockets
//! over.
//!
//! SIGUSR2 starts the program anew, with the same arguments. The successor reads its configuration,
//! gets the listeners, and says when it is ready; only then does the old process stop accepting.
//! Connections wait in the kernel meanwhile, for as long as it takes to hand over which headers
//! were seen. From then on there is one judge of headers: the old process, which may still read
//! headers of connections that it accepted, asks the new one, so what either has accepted is a
//! replay to both, and an honest header that is on its way is refused by neither. A successor that
//! fails before it is ready changes nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tradewind_grant::{GrantError, Nonce, PublicIdentity, Sighting};
use tradewind_net::handover::{self, Program};
use tradewind_net::{NetError, descriptor, tcp};
use tradewind_units::{Timestamp, one_line};

use crate::RelayError;
use crate::server::{Service, Setup};

/// Longest wait for a successor to be ready. Chosen: long for reading a file and opening ports.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait for a successor's judgement. Chosen: far above a turn of a loaded machine.
const JUDGEMENT_LIMIT: Duration = Duration::from_secs(2);

/// What a successor says when it is ready.
const READY: u8 = 0x52;

/// A question to the judge: gateway, time of issue in nanoseconds, nonce.
const QUESTION_BYTES: usize = 32 + 8 + 16;

/// The most that a successor takes for a table of headers seen. Chosen: above a full one.
const MOST_TABLE_BYTES: u64 = 1 << 30;

/// What a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Sessions, at the entrance with this number.
    Listener(usize),
    /// Metrics and health.
    Metrics,
}

/// Which listener of a configuration: an address whose port the system chooses may be there twice.
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

/// Sockets by name, to be handed on.
#[derive(Debug, Default)]
pub(crate) struct PassedSockets(Vec<(String, OwnedFd)>);

impl PassedSockets {
    /// Adds another hold on `listener`.
    pub(crate) fn add(&mut self, name: Name, listener: &TcpListener) -> io::Result<()> {
        self.0.push((name.to_text(), listener.try_clone()?.into()));
        Ok(())
    }

    /// Starts a successor and hands over; on an error this process goes on as if nothing had been.
    /// Returns the successor's number.
    pub(crate) fn hand_over<S: Service>(&self, service: &S) -> io::Result<u32> {
        let (mut child, stream) = Program::of_this_process()?.start_successor()?;
        match self.pass_to(&stream, service, START_LIMIT) {
            Ok(()) => Ok(child.id()),
            Err(error) => {
                // Whatever it is doing, it must not serve.
                let _ended = child.kill();
                let status = child.wait()?;
                let why = crate::failure::plain(&error);
                let words = match error.kind() {
                    ErrorKind::TimedOut => format!("{why}, and was ended"),
                    _ => format!("{why}; it ended with {status}"),
                };
                Err(io::Error::new(error.kind(), words))
            }
        }
    }

    /// Passes everything to the process behind `stream`, which is to be ready within `limit`.
    fn pass_to<S: Service>(
        &self,
        stream: &UnixStream,
        service: &S,
        limit: Duration,
    ) -> io::Result<()> {
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        self.pass_sockets(stream)
            .and_then(|()| hear_ready(stream))
            .map_err(|error| explained(&error, stream, "was not ready", limit))?;
        // Headers wait meanwhile: a new process that stands still must not keep them waiting for
        // ever.
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

/// Waits until the successor says that it is ready.
fn hear_ready(mut stream: &UnixStream) -> io::Result<()> {
    let mut word = [0];
    stream.read_exact(&mut word)?;
    match word {
        [READY] => Ok(()),
        [handover::DECLINED] => Err(io::Error::other(reason(stream))),
        _ => Err(io::Error::other("the new process is no successor")),
    }
}

/// The reason that a successor gives after it has declined.
fn reason(stream: &UnixStream) -> String {
    /// Chosen: longer than any line that a person reads.
    const MOST_BYTES: u64 = 4096;
    let mut words = Vec::new();
    // What has come by then is what there is.
    let _rest = stream.take(MOST_BYTES).read_to_end(&mut words);
    let words = one_line(&String::from_utf8_lossy(&words), MOST_BYTES as usize);
    format!("the new process says: {words}")
}

/// Why a successor does not serve, from what the socket to it told.
fn explained(error: &io::Error, stream: &UnixStream, lacks: &str, limit: Duration) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let words = format!("the new process {lacks} within {limit:?}");
            io::Error::new(ErrorKind::TimedOut, words)
        }
        ErrorKind::UnexpectedEof => io::Error::other("the new process ended without a word"),
        // It has ended before it took what was sent, and may have said why.
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => hear_ready(stream)
            .err()
            .filter(|error| error.kind() == ErrorKind::Other)
            .unwrap_or_else(|| io::Error::other("the new process ended without a word")),
        _ => io::Error::new(error.kind(), crate::failure::plain(error)),
    }
}

/// What the process before this one, or systemd, has left to this one.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    sockets: Vec<(String, OwnedFd)>,
    passed_by_systemd: Vec<TcpListener>,
    predecessor: Option<UnixStream>,
}

impl InheritedSockets {
    /// Takes what there is, once for each process.
    pub(crate) fn take() -> io::Result<Self> {
        let predecessor = handover::predecessor();
        let sockets = match &predecessor {
            Some(stream) => receive_sockets(stream)?,
            None => Vec::new(),
        };
        Ok(Self { sockets, passed_by_systemd: handover::passed_by_systemd(), predecessor })
    }

    /// The listeners of this name; those of systemd go by their address alone.
    pub(crate) fn listeners(&mut self, name: Name) -> Vec<TcpListener> {
        let text = name.to_text();
        let called_so = |(called, _): &mut (String, OwnedFd)| *called == text;
        let there = |listener: &mut TcpListener| {
            listener.local_addr().is_ok_and(|address| address == name.address)
        };
        let handed_on = self.sockets.extract_if(.., called_so).map(|(_, socket)| socket.into());
        handed_on.chain(self.passed_by_systemd.extract_if(.., there)).collect()
    }

    /// The process before this one, which waits for a word.
    pub(crate) const fn predecessor(&mut self) -> Option<UnixStream> {
        self.predecessor.take()
    }
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

/// What the process before this one has left, for whoever serves sockets beside a relay or gateway
/// in one process: it takes its own before [`Relay::bind_with`](crate::Relay::bind_with) takes the
/// rest, and adds what the next process is to get.
#[derive(Debug, Default)]
pub struct Handover {
    pub(crate) inherited: InheritedSockets,
    pub(crate) passed: PassedSockets,
}

impl Handover {
    /// Takes what there is, once for each process.
    ///
    /// # Errors
    /// When it breaks off.
    pub fn take() -> Result<Self, RelayError> {
        let inherited = InheritedSockets::take().map_err(RelayError::InheritedSockets)?;
        Ok(Self { inherited, passed: PassedSockets::default() })
    }

    /// What was handed on under names that begin with `prefix`, by name.
    pub fn sockets(&mut self, prefix: &str) -> Vec<(String, OwnedFd)> {
        let called_so = |(called, _): &mut (String, OwnedFd)| called.starts_with(prefix);
        self.inherited.sockets.extract_if(.., called_so).collect()
    }

    /// Has the next process get `socket` under `name`.
    pub fn hand_on(&mut self, name: String, socket: OwnedFd) {
        self.passed.0.push((name, socket));
    }
}

/// The listeners of `name`: those that were `inherited`, and what is lacking for `count` workers.
pub(crate) fn open_listeners(
    name: Name,
    count: usize,
    setup: &Setup<'_>,
    inherited: Vec<TcpListener>,
) -> Result<Vec<TcpListener>, RelayError> {
    let (backlog, options) = (setup.limits.backlog, setup.accept);
    let mut listeners = inherited;
    let Some(first) = listeners.first() else {
        return Ok(tcp::listen(name.address, count, backlog, options)?);
    };
    let local = first.local_addr().map_err(RelayError::Runtime)?;
    for listener in &listeners {
        options.apply(listener)?;
        listener.set_nonblocking(true).map_err(RelayError::Runtime)?;
    }
    let lacking = count.saturating_sub(listeners.len());
    if let Ok(more) = tcp::listen_along(local, lacking, backlog, options) {
        listeners.extend(more);
    }
    // A port that is not shared, as systemd opens it, is accepted from by several workers.
    for index in 0..count.saturating_sub(listeners.len()) {
        listeners.push(listeners[index].try_clone().map_err(RelayError::Runtime)?);
    }
    Ok(listeners)
}

/// Says that this process is ready, takes over what the one before it has seen, and judges for it
/// until it ends.
pub(crate) fn succeed<S: Service>(
    stream: UnixStream,
    service: &std::sync::Arc<S>,
) -> io::Result<()> {
    (&stream).write_all(&[READY])?;
    handover::is_ready();
    service.take_over(&read_bytes(&stream, MOST_TABLE_BYTES)?)?;
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

/// Sends what the successor is to know.
pub(crate) fn send_bytes(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<()> {
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

/// What an end of the process before this one means.
fn broken_off(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => io::Error::other("the process before this one broke off"),
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

/// The successor, which knows the headers that were seen. Workers wait for its answers as for any
/// other, so that one that stands still keeps headers waiting and nothing else: a thread asks it.
#[derive(Debug, Clone)]
pub(crate) struct Successor(Sender<Question>);

/// A header that waits for the successor's judgement.
#[derive(Debug)]
pub(crate) struct Question {
    sighting: Sighting,
    now: Timestamp,
    answer: oneshot::Sender<Result<(), GrantError>>,
}

impl Successor {
    /// Creates one that is asked by nobody yet ([`start_asking`]): questions wait.
    pub(crate) fn new() -> (Self, Receiver<Question>) {
        let (questions, waiting) = channel();
        (Self(questions), waiting)
    }

    /// Asks about a header; `None` when there is no successor after all.
    pub(crate) async fn ask(
        &self,
        now: Timestamp,
        sighting: Sighting,
    ) -> Option<Result<(), GrantError>> {
        let (answer, told) = oneshot::channel();
        self.0.send(Question { sighting, now, answer }).ok()?;
        told.await.ok()
    }
}

/// Has a thread pass on the questions that wait, and those that come, over the socket `successor`.
pub(crate) fn start_asking(successor: UnixStream, questions: Receiver<Question>) -> io::Result<()> {
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
        // Nobody is left who could tell a replay. An answer that comes late would be taken for the
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

    /// Why a successor is not taken, after `does` has been done with its end of the socket.
    fn not_taken(does: impl FnOnce(UnixStream) -> Option<UnixStream>) -> String {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let limit = Duration::from_millis(20);
        ours.set_read_timeout(Some(limit)).unwrap();
        let _kept = does(theirs);
        let error = hear_ready(&ours).unwrap_err();
        crate::failure::plain(&explained(&error, &ours, "was not ready", limit))
    }

    #[test]
    fn why_a_successor_is_not_taken_is_told_in_words() {
        assert_eq!(not_taken(Some), "the new process was not ready within 20ms");
        assert_eq!(not_taken(|_gone| None), "the new process ended without a word");
        let declined = not_taken(|mut theirs| {
            theirs
                .write_all(&[&[handover::DECLINED][..], b"relay.toml: no\nsuch key"].concat())
                .unwrap();
            None
        });
        assert_eq!(declined, "the new process says: relay.toml: no such key");
    }

    #[test]
    fn a_successor_that_ends_while_it_is_sent_sockets_is_told_with_its_reason() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[&[handover::DECLINED][..], b"why"].concat()).unwrap();
        (&ours).write_all(b"unread").unwrap();
        drop(theirs);
        let error = (&ours).write_all(b"more").unwrap_err();
        let told = explained(&error, &ours, "was not ready", START_LIMIT);
        assert_eq!(told.to_string(), "the new process says: why");
    }

    fn sighting(number: u8) -> Sighting {
        Sighting {
            gateway: PublicIdentity::from_bytes([1; 32]),
            issued_at: Timestamp::ZERO,
            nonce: Nonce::from_entropy([number; 16]),
        }
    }

    /// A successor that is too late with one judgement, and then goes on as if nothing had been.
    #[test]
    fn a_judgement_that_comes_too_late_is_not_taken_for_the_next_one() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let first = ask(&ours, Timestamp::ZERO, &sighting(1));
        assert!(matches!(first, Err(GrantError::ReplayTableFull(_))));
        let _gone = theirs.write_all(&[ADMITTED]);
        let second = ask(&ours, Timestamp::ZERO, &sighting(2));
        assert!(matches!(second, Err(GrantError::ReplayTableFull(_))));
    }

    /// Headers wait from before the successor has the table; whoever waits for one goes on else.
    #[tokio::test]
    async fn a_successor_that_stands_still_keeps_nothing_but_headers_waiting() {
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
    async fn who_waits_for_a_successor_that_failed_is_told_that_there_is_none() {
        let (successor, questions) = Successor::new();
        let judged = successor.ask(Timestamp::ZERO, sighting(1));
        let fails = async { drop(questions) };
        assert_eq!(tokio::join!(judged, fails).0, None);
        assert_eq!(successor.ask(Timestamp::ZERO, sighting(2)).await, None);
    }
}
