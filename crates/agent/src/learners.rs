//! The learners of initial windows inside the processes: asked for what they know, as `tradewind
//! jumpstart status` does, and told to the controller in sums.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use ipnet::IpNet;
use serde::Deserialize;
use tradewind_config::{GatewayConfig, Kind, RelayConfig};
use tradewind_control::learner::{
    self as control, JumpArm, JumpTally, LAST_WINDOW_CLASS, LearnedWindow, LearnerReport,
    MAX_DESTINATIONS, WINDOW_CLASS, WindowCount,
};
use tradewind_control::message::{Document, LEARNERS_FOLDER, Process, learner_socket};
use tradewind_jumpstart_daemon::{Request, SharedWindow, ask};
use tradewind_net::privileges::DEFAULT_USER;
use tradewind_net::processes::Running;
use tradewind_units::{Duration, Segments};

use crate::AgentError;
use crate::sessions::account_of;

/// Time between two looks. Chosen: that of two reports.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time for which learners use windows of other hosts once they were told. Chosen: six reports.
const SHARED_FOR: Duration = Duration::from_secs(30);
/// Bits of a process's number on Linux, at most.
const PROCESS_BITS: u32 = 22;

/// The learners, which a thread asks.
#[derive(Debug)]
pub struct Learners(Arc<Mutex<Known>>);

/// The learners to ask, and their last answers.
#[derive(Debug, Default)]
struct Known {
    /// The folder of their sockets, and the processes with the reasons why they have none.
    wanted: (PathBuf, BTreeMap<String, Option<String>>),
    reports: Vec<LearnerReport>,
    /// Windows of other hosts that the learners are still to be told.
    shared: Option<Vec<SharedWindow>>,
    /// True if there were some the last time.
    is_sharing: bool,
}

impl Learners {
    /// Starts the thread that asks, which ends when this is dropped.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start() -> Result<Self, AgentError> {
        let known = Arc::new(Mutex::new(Known::default()));
        let theirs = Arc::downgrade(&known);
        let thread = thread::Builder::new().name("learners".to_owned());
        thread.spawn(move || look(&theirs)).map_err(AgentError::system("a thread"))?;
        Ok(Self(known))
    }

    /// Names the processes with a learner, which have their working directory in `data`, and why it
    /// did not start, if so.
    pub fn expect<'a>(
        &self,
        data: PathBuf,
        learners: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    ) {
        let wanted = learners.map(|(name, why)| (name.to_owned(), why.map(str::to_owned)));
        lock(&self.0).wanted = (data, wanted.collect());
    }

    /// Has the learners told the windows that other hosts of the site have learned, none above
    /// `most` segments; once there are none any more, that as well.
    pub fn share(&self, windows: &[control::SharedWindow], most: u32) {
        let window = |it: &control::SharedWindow| {
            let window_segments = Segments::new(it.window_segments.min(most)).ok()?;
            Some(SharedWindow { destination: it.destination, window_segments })
        };
        let windows: Vec<_> = windows.iter().filter_map(window).take(MAX_DESTINATIONS).collect();
        let mut known = lock(&self.0);
        if known.is_sharing || !windows.is_empty() {
            known.is_sharing = !windows.is_empty();
            known.shared = Some(windows);
        }
    }

    /// Returns what they said last.
    #[must_use]
    pub fn reports(&self) -> Vec<LearnerReport> {
        let Known { wanted: (_, wanted), reports, .. } = &*lock(&self.0);
        reports.iter().filter(|report| wanted.contains_key(&report.process)).cloned().collect()
    }

    /// Returns the window that connections to `address` start with now, of the destinations that
    /// are reported; `None` if they start by default.
    #[must_use]
    pub fn window_to(&self, address: IpAddr) -> Option<Segments> {
        window_to(&self.reports(), address)
    }
}

/// Returns the window in force of the longest prefix with an address.
fn window_to(reports: &[LearnerReport], address: IpAddr) -> Option<Segments> {
    let address = address.to_canonical();
    let known = reports.iter().flat_map(|report| &report.destinations);
    let covering = known.filter(|it| it.is_in_force && it.destination.contains(&address));
    let longest = covering.max_by_key(|it| it.destination.prefix_len())?;
    Segments::new(longest.window_segments).ok()
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks all learners until nobody else holds what is known.
fn look(known: &Weak<Mutex<Known>>) {
    loop {
        let Some(shared) = known.upgrade() else { return };
        let (data, wanted) = lock(&shared).wanted.clone();
        if let Some(windows) = lock(&shared).shared.take() {
            tell(&data, &wanted, &windows);
        }
        let reports = wanted.into_iter().filter_map(|(process, why)| match why {
            Some(why) => Some(without_answer(process, why)),
            None => asked(&data, process),
        });
        // Asked without the lock.
        let reports = reports.collect();
        lock(&shared).reports = reports;
        drop(shared);
        thread::sleep(LOOK_EVERY);
    }
}

/// Tells all learners that have started the windows of other hosts.
fn tell(data: &Path, wanted: &BTreeMap<String, Option<String>>, windows: &[SharedWindow]) {
    for (process, _) in wanted.iter().filter(|(_, why)| why.is_none()) {
        let request = Request::Share { windows: windows.to_vec(), lasts_s: SHARED_FOR };
        // One that does not answer is told after the next report, and forgets the others by itself.
        let _silent = ask(&data.join(learner_socket(process)), &request);
    }
}

/// Returns the report of a learner that does not act, and knows nothing.
fn without_answer(process: String, why: String) -> LearnerReport {
    LearnerReport {
        process,
        run: 0,
        through: "none".to_owned(),
        why: Some(why),
        destinations: Vec::new(),
        others: 0,
        windows: Vec::new(),
        tallies: Vec::new(),
    }
}

/// Asks the learner of a process.
fn asked(data: &Path, process: String) -> Option<LearnerReport> {
    let socket = data.join(learner_socket(&process));
    let answer = match ask(&socket, &Request::Status {}) {
        Ok(answer) => answer,
        Err(error) => return Some(without_answer(process, error.to_string())),
    };
    match serde_json::from_value::<Status>(answer) {
        // One that has ended meanwhile is told by the next.
        Ok(status) => Running::of(status.process).map(|running| status.report(process, running)),
        Err(error) => Some(without_answer(process, format!("its answer cannot be read: {error}"))),
    }
}

/// A learner's answer, as far as it counts here.
#[derive(Debug, Deserialize)]
struct Status {
    process: u32,
    through: String,
    why: Option<String>,
    off: bool,
    arms: BTreeMap<String, Totals>,
    destinations: Vec<Destination>,
}

#[derive(Debug, Deserialize)]
struct Totals {
    sizes: BTreeMap<u8, SizeTotals>,
}

#[derive(Debug, Deserialize)]
struct SizeTotals {
    connections: u64,
    bytes: u64,
    retransmitted_segments: u64,
    seconds: f64,
    log_seconds: f64,
    log_seconds_squared: f64,
}

#[derive(Debug, Deserialize)]
struct Destination {
    prefix: IpNet,
    window_segments: u32,
    samples: u32,
    in_force: bool,
}

impl Status {
    fn report(self, process: String, running: Running) -> LearnerReport {
        let is_acting = self.through != "none";
        let why = match (self.off, is_acting) {
            (true, _) => Some("it is off by the kill switch of its host".to_owned()),
            (false, true) => None,
            (false, false) => Some(self.why.unwrap_or_else(|| "it only shows".to_owned())),
        };
        let mut windows: BTreeMap<u32, u64> = BTreeMap::new();
        for known in &self.destinations {
            let class = known.window_segments / WINDOW_CLASS * WINDOW_CLASS;
            *windows.entry(class.min(LAST_WINDOW_CLASS)).or_default() += 1;
        }
        let mut destinations = self.destinations;
        destinations.sort_by_key(|known| (std::cmp::Reverse(known.samples), known.prefix));
        let others = destinations.len().saturating_sub(MAX_DESTINATIONS) as u64;
        destinations.truncate(MAX_DESTINATIONS);
        let window = |known: Destination| LearnedWindow {
            destination: known.prefix,
            window_segments: known.window_segments,
            samples: known.samples,
            is_in_force: known.in_force,
        };
        let arms = [("jumped", JumpArm::Jumped), ("control", JumpArm::Control)];
        let sizes = arms.into_iter().flat_map(|(name, arm)| {
            let sizes = self.arms.get(name).into_iter().flat_map(|totals| &totals.sizes);
            sizes.map(move |(size_class, totals)| totals.tally(arm, *size_class))
        });
        LearnerReport {
            process,
            run: running.started << PROCESS_BITS | u64::from(running.process),
            through: self.through,
            why,
            others,
            windows: windows
                .into_iter()
                .map(|(from_segments, destinations)| WindowCount { from_segments, destinations })
                .collect(),
            tallies: sizes.collect(),
            destinations: destinations.into_iter().map(window).collect(),
        }
    }
}

impl SizeTotals {
    const fn tally(&self, arm: JumpArm, size_class: u8) -> JumpTally {
        let Self { connections, bytes, retransmitted_segments, .. } = *self;
        let Self { seconds, log_seconds, log_seconds_squared, .. } = *self;
        JumpTally {
            arm,
            size_class,
            connections,
            bytes,
            retransmitted_segments,
            seconds,
            log_seconds,
            log_seconds_squared,
        }
    }
}

/// Makes the folder in which the learners of a document's processes make their sockets: it is of
/// the user as which they go on.
///
/// # Errors
/// When it cannot be made.
pub fn make_folder(data: &Path, document: &Document) -> Result<(), AgentError> {
    let Some(user) = document.processes.iter().find_map(user_of_learner) else { return Ok(()) };
    let folder = data.join(LEARNERS_FOLDER);
    let make = || {
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // A link would lead to another's folder.
        if !fs::symlink_metadata(&folder)?.is_dir() {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "it is no folder"));
        }
        match account_of(&user)? {
            Some(account) => chown(&folder, Some(account.user_id()), None),
            None => Ok(()),
        }
    };
    make().map_err(|error| AgentError::file(&folder, error))
}

/// Returns the user as which a process goes on that has a learner; `None` if it has none.
fn user_of_learner(process: &Process) -> Option<String> {
    let (learner, user) = match process.kind {
        Kind::Relay => {
            let config = RelayConfig::parse(&process.config).ok()?;
            (config.jumpstart, config.run_as)
        }
        Kind::Gateway => {
            let config = GatewayConfig::parse(&process.config).ok()?;
            (config.jumpstart, config.run_as)
        }
        Kind::Jumpstart => return None,
    };
    learner.map(|_| user.unwrap_or_else(|| DEFAULT_USER.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;

    use serde_json::{Value, json};

    use super::*;

    /// Returns a learner's answer with a destination for each of these windows.
    fn answer(windows: &[u32]) -> Value {
        let size = json!({
            "connections": 2, "bytes": 3000, "retransmitted_segments": 1,
            "seconds": 3.0, "log_seconds": 0.5, "log_seconds_squared": 0.25,
        });
        let known = |(number, window): (usize, &u32)| {
            json!({
                "prefix": format!("10.0.{}.{}/32", number / 256, number % 256),
                "window_segments": window, "samples": number, "in_force": number > 0,
                "mode": "riptide",
            })
        };
        json!({
            "process": std::process::id(), "through": "sockops", "why": null, "off": false,
            "arms": {
                "jumped": { "connections": 3, "sizes": { "10": size } },
                "control": { "connections": 2, "sizes": { "10": size, "11": size } },
                "earlier": { "connections": 2, "sizes": { "10": size } },
            },
            "destinations": windows.iter().enumerate().map(known).collect::<Vec<_>>(),
        })
    }

    fn report(answer: Value) -> LearnerReport {
        let status: Status = serde_json::from_value(answer).unwrap();
        status.report("relay".to_owned(), Running { started: 3, process: 7 })
    }

    #[test]
    fn report_has_the_destinations_with_most_samples_and_counts_all() {
        let windows: Vec<u32> = (0..105).map(|number| 10 + number * 3).collect();
        let report = report(answer(&windows));
        assert_eq!((report.destinations.len(), report.others), (MAX_DESTINATIONS, 5));
        let first = &report.destinations[0];
        assert_eq!((first.samples, first.window_segments), (104, 10 + 104 * 3));
        assert!(first.is_in_force);
        let counted: u64 = report.windows.iter().map(|class| class.destinations).sum();
        assert_eq!(counted, 105);
        // Three apart: 10, 13, 16, 19.
        let class = WindowCount { from_segments: 10, destinations: 4 };
        assert_eq!(report.windows[0], class);
        assert_eq!(report.windows.last().unwrap().from_segments, LAST_WINDOW_CLASS);
        assert_eq!(report.run, 3 << 22 | 7);
    }

    #[test]
    fn window_to_an_address_is_the_one_in_force() {
        let reports = [report(answer(&[30, 40]))];
        let window = |address: &str| {
            window_to(&reports, address.parse().unwrap()).map(|window| window.as_u32())
        };
        assert_eq!(window("10.0.0.1"), Some(40));
        assert_eq!(window("::ffff:10.0.0.1"), Some(40));
        // The first is not in force, and of the last nothing was learned.
        assert_eq!((window("10.0.0.0"), window("10.0.0.2")), (None, None));
    }

    #[test]
    fn report_has_both_arms_and_no_other() {
        let report = report(answer(&[]));
        let keys: Vec<_> = report.tallies.iter().map(JumpTally::key).collect();
        let expected = [(JumpArm::Jumped, 10), (JumpArm::Control, 10), (JumpArm::Control, 11)];
        assert_eq!(keys, expected);
        let tally = report.tallies[0];
        assert_eq!((tally.connections, tally.bytes, tally.retransmitted_segments), (2, 3000, 1));
        assert_eq!((tally.seconds, tally.log_seconds, tally.log_seconds_squared), (3.0, 0.5, 0.25));
    }

    #[test]
    fn learner_that_does_not_act_says_why() {
        let of = |change: Value| {
            let mut answer = answer(&[]);
            answer.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            report(answer).why
        };
        assert_eq!(of(json!({})), None);
        let kernel = json!({ "through": "none", "why": "no CAP_BPF" });
        assert_eq!(of(kernel).as_deref(), Some("no CAP_BPF"));
        assert!(of(json!({ "off": true })).unwrap().contains("kill switch"));
    }

    /// A folder that is removed with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("tw-learners-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _none = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _none = fs::remove_dir_all(&self.0);
        }
    }

    /// Answers one request at the socket of a relay's learner; returns the request.
    fn answers_once(folder: &Folder) -> thread::JoinHandle<String> {
        fs::create_dir(folder.0.join(LEARNERS_FOLDER)).unwrap();
        let listener = UnixListener::bind(folder.0.join(learner_socket("relay"))).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            writeln!(stream, "{}", answer(&[40])).unwrap();
            line
        })
    }

    #[test]
    fn learner_is_asked_at_its_socket() {
        let folder = Folder::new("asked");
        let silent = asked(&folder.0, "relay".to_owned()).unwrap();
        assert!(silent.why.is_some() && silent.through == "none", "{silent:?}");
        let learner = answers_once(&folder);
        let report = asked(&folder.0, "relay".to_owned()).unwrap();
        assert!(learner.join().unwrap().contains("status"));
        assert_eq!((report.why, report.destinations.len()), (None, 1));
    }

    #[test]
    fn learners_are_told_windows_of_other_hosts_within_the_ceiling() {
        let folder = Folder::new("told");
        let learner = answers_once(&folder);
        let learners = Learners(Arc::default());
        let shared = |window_segments| control::SharedWindow {
            destination: "10.0.0.1/32".parse().unwrap(),
            window_segments,
        };
        let told = || lock(&learners.0).shared.take();
        learners.share(&[], 50);
        assert_eq!(told(), None, "nobody shares");
        learners.share(&[shared(0), shared(40), shared(60)], 50);
        let windows = told().unwrap();
        let segments = |it: &SharedWindow| it.window_segments.as_u32();
        assert_eq!(windows.iter().map(segments).collect::<Vec<_>>(), [40, 50]);
        let wanted = [("relay".to_owned(), None), ("gateway".to_owned(), Some("no".to_owned()))];
        tell(&folder.0, &BTreeMap::from(wanted), &windows);
        let request = Request::parse(&learner.join().unwrap()).unwrap();
        assert_eq!(request, Request::Share { windows, lasts_s: SHARED_FOR });
        // Once that nobody shares any more.
        learners.share(&[], 50);
        assert_eq!(told(), Some(Vec::new()));
        learners.share(&[], 50);
        assert_eq!(told(), None);
        // More than any controller tells, and windows that are forbidden.
        learners.share(&vec![shared(40); 200], 50);
        assert_eq!(told().unwrap().len(), MAX_DESTINATIONS);
        learners.share(&[shared(40)], 0);
        assert_eq!(told(), Some(Vec::new()));
    }

    #[test]
    fn folder_is_made_where_a_process_learns() {
        let folder = Folder::new("made");
        let document = |config: &str| Document {
            schema_version: 1,
            version: "1.1".parse().unwrap(),
            host: "here-1".parse().unwrap(),
            issued_unix_ms: 0,
            processes: vec![Process {
                name: "gateway".to_owned(),
                kind: Kind::Gateway,
                config: format!("socks5 = ['127.0.0.1:0']\n{config}"),
                files: BTreeMap::new(),
            }],
            responder_port: 0,
            report_every_ms: 0,
            watched: Vec::new(),
        };
        let made = folder.0.join(LEARNERS_FOLDER);
        make_folder(&folder.0, &document("")).unwrap();
        assert!(!made.exists());
        for _again in 0..2 {
            make_folder(&folder.0, &document("[jumpstart]\n")).unwrap();
            assert!(made.is_dir());
        }
        fs::remove_dir(&made).unwrap();
        std::os::unix::fs::symlink("/tmp", &made).unwrap();
        assert!(make_folder(&folder.0, &document("[jumpstart]\n")).is_err());
    }
}
