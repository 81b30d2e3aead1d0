//! The rate of one or more TCP connections to a responder, in either direction. `[CP IV-C, TRN]`
//!
//! The rate is counted where the payload arrives, in intervals that are whole round trips, so that
//! a window that is sent in one burst per round trip does not beat against them. Slow start is
//! discarded ([`crate::steady`]); a test may end early once the rate is stable, and its report says
//! so. The sender's kernel reports windows, retransmissions and round trips ([`crate::window`]).
//!
//! One connection shows the rate of one flow, often its window over the round-trip time; many show
//! the capacity of the hosts and the path `[TRN]`.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tradewind_net::congestion;
use tradewind_net::pacing;
use tradewind_units::{Bandwidth, Bytes, one_line};

use crate::connect::{open_named, resolve, unix_time_s};
use crate::error::in_words;
use crate::meter::{Event, Role, Transfer};
pub use crate::protocol::Direction;
use crate::protocol::{
    Answer, Finish, FinishCause, Hello, MAX_CONNECTIONS, MAX_RESPONDER_FRAME_BYTES, Preface,
    Progress, Proof, Record, Request, Stop, TestId, VERSION, from_json, to_json,
};
pub use crate::report::{ConnectionReport, Ended, IntervalReport, RateReport};
use crate::report::{Observed, build};
use crate::steady::StabilityRule;
use crate::stream::{Data, FrameError, read_frame, share_of, write_frame};
use crate::{ProbeError, RttOptions, Secret, rtt};

/// Shortest interval of the report. Chosen: in shorter ones, wake-up times of a busy host show.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Longest interval of the report, however long the round trip. Chosen.
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// Handshakes to measure the round trip with, and their spacing. Chosen: one round trip and 40 ms
/// in all, longer than most delays.
const INTERVAL_SAMPLES: u32 = 5;
const INTERVAL_SAMPLE_SPACING: Duration = Duration::from_millis(10);
/// Longest silence of a responder, beyond five intervals. Chosen: its reports share the path with
/// the test's own queue and losses.
const SILENCE: Duration = Duration::from_secs(10);

/// Most bytes of a peer's text in an error. Chosen: three lines of a terminal.
const MAX_WORDS_BYTES: usize = 200;

/// Options of a rate measurement.
#[derive(Debug, Clone)]
pub struct RateOptions {
    /// The direction of the payload, seen from here.
    pub direction: Direction,
    /// The number of connections: 1 to [`MAX_CONNECTIONS`], up to the responder's limit.
    pub connections: u32,
    /// Longest time of transfer; 10 s by default; [CP IV-C] measures for 40 s.
    pub duration: Duration,
    /// Most bytes to transfer; `None`: as many as pass in `duration`.
    pub volume: Option<Bytes>,
    /// The rule that ends a test before `duration`; `None`: never.
    pub stop_when_stable: Option<StabilityRule>,
    /// Length of the report's intervals; `None`: whole round trips of at least 100 ms.
    pub interval: Option<Duration>,
    /// Congestion control of the sending side; `None`: the system's choice.
    pub congestion_control: Option<String>,
    /// Pacing rate of each connection, if this side sends; `None`: no cap.
    pub max_rate: Option<Bandwidth>,
    /// The responder's secret, if it has one.
    pub secret: Option<Secret>,
    /// Longest wait for the resolver, a connection, or an answer before the transfer.
    pub timeout: Duration,
}

impl Default for RateOptions {
    fn default() -> Self {
        Self {
            direction: Direction::Upload,
            connections: 1,
            duration: Duration::from_secs(10),
            volume: None,
            stop_when_stable: Some(StabilityRule::default()),
            interval: None,
            congestion_control: None,
            max_rate: None,
            secret: None,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Measures the rate to or from the responder at `target`, a `host:port`.
///
/// # Errors
/// When an option is invalid, the target cannot be reached or is no responder, it refuses the test,
/// or the test breaks off. Each error names the target and the cause in one line.
pub async fn measure(target: &str, options: &RateOptions) -> Result<RateReport, ProbeError> {
    check(options)?;
    let address = resolve(target, options.timeout).await?;
    let measured_at_unix_s = unix_time_s();
    let interval = match options.interval {
        Some(interval) => interval,
        None => whole_round_trips(&address.to_string(), options.timeout).await,
    };
    let control = open_named(target, address, options.timeout).await?;
    let mut caller = Caller { target, options, interval };
    let Negotiated { test, reader, writer } = caller.negotiate(control).await?;
    let mut sockets = Vec::new();
    for index in 0..options.connections {
        let opened = async {
            let socket = open_named(target, address, options.timeout).await?;
            caller.introduce(socket, Preface::Data { index, test }).await
        };
        sockets.push(opened.await?);
    }
    let observed = caller.run(reader, writer, sockets).await?;
    Ok(build(target, address, measured_at_unix_s, options, observed))
}

fn check(options: &RateOptions) -> Result<(), ProbeError> {
    let refused = |option, expected: &str, value| {
        Err(ProbeError::Option { option, expected: expected.to_owned(), value })
    };
    if !(1..=MAX_CONNECTIONS).contains(&options.connections) {
        let expected = format!("1 to {MAX_CONNECTIONS}");
        return refused("connections", &expected, options.connections.to_string());
    }
    if options.duration < Duration::from_millis(100) {
        return refused("duration", "at least 100 ms", format!("{:?}", options.duration));
    }
    if options.volume == Some(Bytes::ZERO) {
        return refused("volume", "above 0", "0 B".to_owned());
    }
    if let Some(interval) = options.interval
        && !(Duration::from_millis(10)..=Duration::from_secs(10)).contains(&interval)
    {
        return refused("interval", "10 ms to 10 s", format!("{interval:?}"));
    }
    if let Some(name) = &options.congestion_control
        && !congestion::is_name(name)
    {
        return refused("congestion_control", "a name such as `cubic`", name.clone());
    }
    if let Some(rate) = options.max_rate
        && options.direction == Direction::Download
    {
        return refused("max_rate", "only with uploads: the sender is capped", rate.to_string());
    }
    Ok(())
}

/// Returns the least whole number of round trips that is at least [`MIN_INTERVAL`]. It takes
/// the least of a few handshakes: a single one may have been delayed.
async fn whole_round_trips(target: &str, timeout: Duration) -> Duration {
    let options = RttOptions {
        samples: INTERVAL_SAMPLES,
        interval: INTERVAL_SAMPLE_SPACING,
        timeout,
        ..RttOptions::default()
    };
    let report = rtt::measure(target, &options).await.ok();
    // An unreachable target is reported when the control connection fails.
    interval_for(report.and_then(|report| report.rtt_min().ok()).unwrap_or_default())
}

fn interval_for(rtt: Duration) -> Duration {
    if rtt < Duration::from_millis(1) {
        return MIN_INTERVAL;
    }
    let round_trips = MIN_INTERVAL.as_nanos().div_ceil(rtt.as_nanos());
    (rtt * u32::try_from(round_trips).unwrap_or(1)).min(MAX_INTERVAL)
}

/// A negotiated test, with both directions of its control connection.
struct Negotiated {
    test: TestId,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
}

/// The calling side of one test.
struct Caller<'a> {
    target: &'a str,
    options: &'a RateOptions,
    interval: Duration,
}

impl Caller<'_> {
    fn protocol(&self, cause: impl std::fmt::Display) -> ProbeError {
        ProbeError::Protocol { target: self.target.to_owned(), cause: cause.to_string() }
    }

    /// Sends the preface and, where this side sends, sets the congestion control.
    async fn introduce(
        &self,
        mut socket: TcpStream,
        preface: Preface,
    ) -> Result<TcpStream, ProbeError> {
        if let Some(name) = &self.options.congestion_control
            && self.options.direction == Direction::Upload
        {
            congestion::set(&socket, name).map_err(|cause| ProbeError::Setting {
                target: self.target.to_owned(),
                setting: format!("congestion control `{name}`"),
                cause,
            })?;
        }
        if let Some(rate) = self.options.max_rate {
            pacing::cap(&socket, rate).map_err(|cause| ProbeError::Setting {
                target: self.target.to_owned(),
                setting: format!("pacing at {rate}"),
                cause,
            })?;
        }
        let write = tokio::io::AsyncWriteExt::write_all(&mut socket, &preface.to_bytes()).await;
        write.map_err(|error| self.protocol(in_words(&error)))?;
        Ok(socket)
    }

    /// Negotiates the test on the control connection.
    async fn negotiate(&mut self, control: TcpStream) -> Result<Negotiated, ProbeError> {
        let control = self.introduce(control, Preface::Control).await?;
        control.set_nodelay(true).map_err(|error| self.protocol(error))?;
        let (mut reader, mut writer) = control.into_split();
        let hello: Hello = self.read(&mut reader, "hello").await?;
        if hello.protocol != VERSION {
            let theirs = hello.protocol;
            return Err(self.protocol(format!("it speaks probe protocol {theirs}, not {VERSION}")));
        }
        let request = to_json(&self.request());
        let proof = match &self.options.secret {
            Some(secret) => secret.prove(&hello.challenge, &request),
            None => Proof([0; 32]),
        };
        let frame = [&proof.0[..], &request].concat();
        let sent = write_frame(&mut writer, &frame).await;
        sent.map_err(|error| self.protocol(in_words(&error)))?;
        match self.read(&mut reader, "answer").await? {
            Answer::Accepted { test } => Ok(Negotiated { test, reader, writer }),
            Answer::Refused { reason } => Err(ProbeError::Refused {
                target: self.target.to_owned(),
                reason: one_line(&reason, MAX_WORDS_BYTES),
            }),
        }
    }

    fn request(&self) -> Request {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Request {
            direction: self.options.direction,
            connections: self.options.connections,
            duration_ms: micros(self.options.duration) / 1000,
            volume_bytes: self.options.volume.map(Bytes::as_u64),
            interval_us: micros(self.interval),
            congestion_control: self.options.congestion_control.clone(),
        }
    }

    async fn read<M: for<'de> serde::Deserialize<'de>>(
        &self,
        reader: &mut OwnedReadHalf,
        expected: &'static str,
    ) -> Result<M, ProbeError> {
        match timeout(self.options.timeout, read_frame(reader, MAX_RESPONDER_FRAME_BYTES)).await {
            Err(_) => Err(self.protocol("the responder says nothing (is it one?)")),
            Ok(Err(FrameError::Protocol(_))) => Err(self.protocol("no Tradewind probe responder")),
            Ok(Err(error)) => Err(self.protocol(format!("no {expected} came: {error}"))),
            Ok(Ok(frame)) => from_json(expected, &frame).map_err(|error| self.protocol(error)),
        }
    }

    /// Runs the transfer, from the responder's start message to its last one.
    async fn run(
        &self,
        mut reader: OwnedReadHalf,
        mut writer: OwnedWriteHalf,
        sockets: Vec<TcpStream>,
    ) -> Result<Observed, ProbeError> {
        match self.read(&mut reader, "progress").await? {
            Progress::Started => {}
            Progress::Finished(finish) => return Err(self.broke_off(0.0, words_for(finish.cause))),
            Progress::Interval(_) => return Err(self.protocol("figures before the start")),
        }
        let mut words = Words::listen(reader);
        let role = match self.options.direction {
            Direction::Upload => Role::Sender,
            Direction::Download => Role::Receiver,
        };
        let share = |index| {
            self.options.volume.map(|v| share_of(v.as_u64(), self.options.connections, index))
        };
        let connections =
            (0..).zip(sockets).map(|(index, socket)| Data::new(socket, share(index))).collect();
        let mut transfer = Transfer::start(role, connections, self.interval);
        let mut observed = Observed::new(role, self.interval);
        let ended = self.watch(&mut transfer, &mut words, &mut observed).await?;
        observed.ended = ended;
        observed.own.extend(transfer.end());
        observed.own_totals = transfer.totals();
        if observed.finish.is_none() {
            let after_s = transfer.elapsed().as_secs_f64();
            let sent = write_frame(&mut writer, &to_json(&Stop::Stop)).await;
            sent.map_err(|error| self.broke_off(after_s, &in_words(&error)))?;
            self.hear_out(&mut words, &mut observed, after_s).await?;
        }
        Ok(observed)
    }

    /// Watches the transfer until it should end; the records are collected in `observed`.
    async fn watch(
        &self,
        transfer: &mut Transfer,
        words: &mut Words,
        observed: &mut Observed,
    ) -> Result<Ended, ProbeError> {
        let deadline = Instant::now() + self.options.duration;
        let timeout = SILENCE + 5 * self.interval;
        let mut silent_until = Instant::now() + timeout;
        let mut complete = false;
        loop {
            let after_s = transfer.elapsed().as_secs_f64();
            tokio::select! {
                event = transfer.next(), if !complete => match event {
                    Event::Interval(record) => observed.own.push(record),
                    Event::Complete if observed.role == Role::Receiver => return Ok(Ended::Volume),
                    Event::Complete => complete = true,
                    Event::Lost(error) => return Err(self.lost(words, after_s, &error).await),
                },
                word = words.next() => {
                    silent_until = Instant::now() + timeout;
                    match word.map_err(|error| self.broke_off(after_s, &error.to_string()))? {
                        Progress::Interval(record) => observed.theirs.push(record),
                        Progress::Finished(finish) => {
                            return self.finished(finish, observed, after_s);
                        }
                        Progress::Started => return Err(self.protocol("it started twice")),
                    }
                }
                () = sleep_until(deadline) => return Ok(Ended::Duration),
                () = sleep_until(silent_until) => {
                    let cause = format!("the responder was silent for {timeout:?}");
                    return Err(self.broke_off(after_s, &cause));
                }
            }
            if let Some(rule) = &self.options.stop_when_stable
                && let Some(part) = observed.settled_part(rule)
            {
                observed.settled = Some(part);
                return Ok(Ended::Stable);
            }
        }
    }

    /// Handles a broken data connection: the responder's last message, if one arrives, tells more.
    async fn lost(&self, words: &mut Words, after_s: f64, error: &std::io::Error) -> ProbeError {
        let last = async {
            loop {
                match words.next().await {
                    Ok(Progress::Finished(finish)) => break Some(finish.cause),
                    Ok(_) => {}
                    Err(_) => break None,
                }
            }
        };
        match timeout(Duration::from_secs(1), last).await {
            Ok(Some(cause)) if cause != FinishCause::ConnectionLost => {
                self.broke_off(after_s, words_for(cause))
            }
            _ => self.broke_off(after_s, &format!("a data connection: {}", in_words(error))),
        }
    }

    /// Handles an end of the test by the responder.
    fn finished(
        &self,
        finish: Finish,
        observed: &mut Observed,
        after_s: f64,
    ) -> Result<Ended, ProbeError> {
        let cause = finish.cause;
        observed.finish = Some(finish);
        match cause {
            FinishCause::Volume => Ok(Ended::Volume),
            FinishCause::ByteLimit => Ok(Ended::ResponderLimit),
            other => Err(self.broke_off(after_s, words_for(other))),
        }
    }

    /// Reads the responder's last figures and totals after the stop.
    async fn hear_out(
        &self,
        words: &mut Words,
        observed: &mut Observed,
        after_s: f64,
    ) -> Result<(), ProbeError> {
        let last_words = async {
            loop {
                match words.next().await {
                    Ok(Progress::Interval(record)) => observed.theirs.push(record),
                    Ok(Progress::Finished(finish)) => break Ok(finish),
                    Ok(Progress::Started) => break Err(self.protocol("it started twice")),
                    Err(error) => break Err(self.broke_off(after_s, &error.to_string())),
                }
            }
        };
        let finish = timeout(SILENCE, last_words)
            .await
            .map_err(|_| self.broke_off(after_s, "the responder did not give its totals"))??;
        observed.finish = Some(finish);
        Ok(())
    }

    fn broke_off(&self, after_s: f64, cause: &str) -> ProbeError {
        ProbeError::BrokeOff {
            target: self.target.to_owned(),
            after_s,
            cause: one_line(cause, MAX_WORDS_BYTES),
        }
    }
}

const fn words_for(cause: FinishCause) -> &'static str {
    match cause {
        FinishCause::Stopped => "the responder was told to stop",
        FinishCause::Volume => "the volume had passed",
        FinishCause::ByteLimit => "the responder's limit of bytes was reached",
        FinishCause::TimeLimit => "the responder ended it after the agreed duration",
        FinishCause::ConnectionLost => "the responder lost a data connection",
        FinishCause::ShuttingDown => "the responder is shutting down",
        FinishCause::ConnectionsMissing => "not all data connections reached the responder",
    }
}

/// The responder's messages, read by a task of its own because a half-read frame must not be lost
/// when another event comes first.
struct Words {
    receiver: mpsc::Receiver<Result<Progress, FrameError>>,
    task: tokio::task::JoinHandle<()>,
}

impl Words {
    fn listen(mut reader: OwnedReadHalf) -> Self {
        let (sender, receiver) = mpsc::channel(16);
        let task = tokio::spawn(async move {
            loop {
                let word = match read_frame(&mut reader, MAX_RESPONDER_FRAME_BYTES).await {
                    Ok(frame) => from_json("progress", &frame).map_err(FrameError::from),
                    Err(error) => Err(error),
                };
                let last = word.is_err();
                if sender.send(word).await.is_err() || last {
                    return;
                }
            }
        });
        Self { receiver, task }
    }

    /// Waits for the next message. Safe to cancel.
    async fn next(&mut self) -> Result<Progress, FrameError> {
        let end = || Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        self.receiver.recv().await.unwrap_or_else(end)
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Observed {
    fn new(role: Role, interval: Duration) -> Self {
        Self {
            role,
            interval,
            ended: Ended::Duration,
            settled: None,
            own: Vec::<Record>::new(),
            own_totals: Vec::new(),
            theirs: Vec::new(),
            finish: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_whole_round_trips() {
        let interval_ms = |rtt_ms| interval_for(Duration::from_millis(rtt_ms)).as_millis();
        assert_eq!(interval_ms(0), 100);
        assert_eq!(interval_ms(30), 120);
        assert_eq!(interval_ms(100), 100);
        assert_eq!(interval_ms(101), 101);
        assert_eq!(interval_ms(300), 300);
        assert_eq!(interval_ms(9000), 2000);
    }
}
