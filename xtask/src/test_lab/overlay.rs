//! The step `overlay`: a controller with a lab of its own, as the tutorial has it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Lab, TRIES, Traces, Verdict, signal};

/// The bytes that are carried, and that the flow is declared with: slow start is a small part.
const VOLUME: u64 = 200_000_000;
/// The flow that relays accelerate, and the address and port of its destination.
const FAR: &str = "nightly";
const SERVER: &str = "10.200.0.4:8000";
/// A flow too small for a relay to be of use: its bytes fit into the first window.
const NEAR: &str = "note";
/// Bytes a second of the download that goes on while flows move.
const LONG_RATE: u64 = 3_000_000;
/// The round-trip time to which a used leg is slowed: other paths are faster, and handshakes are
/// not repeated yet, which probes count as lost.
const SLOW_RTT: &str = "rtt=900ms";

/// Required figures.
const MIN_ACCELERATION: f64 = 2.0;
const MAX_ERROR: f64 = 0.25;
/// Longest time from nothing to a plan in effect.
const TO_PLAN: Duration = Duration::from_secs(90);
/// Longest time until the rates of all used legs are measured.
const TO_MEASURE: Duration = Duration::from_secs(60);
/// Longest time until flows have left a slow leg, and until they all go direct.
const TO_MOVE: Duration = Duration::from_secs(60);
/// Longest time for a transfer, and for the end of the controller.
const TO_CARRY: Duration = Duration::from_secs(120);
const TO_END: Duration = Duration::from_secs(15);
/// Longest time until all sides have reported what was carried.
const TO_REPORT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(500);

/// Checks an overlay from nothing to its end.
pub(super) fn overlay(lab: &Lab<'_>) -> Verdict {
    for program in ["curl", "python3"] {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        if !command.status().is_ok_and(|status| status.success()) {
            return Verdict::Skipped(program.into());
        }
    }
    let mut reason = String::new();
    for _ in 0..TRIES {
        let before = Traces::now();
        let verdict = run(lab);
        if let Some(left) = Traces::now().beyond(&before) {
            return Verdict::Fail(left);
        }
        match verdict {
            Verdict::Invalid(why) => reason = why,
            other => return other,
        }
    }
    Verdict::Invalid(format!("in each of {TRIES} tries: {reason}"))
}

fn run(lab: &Lab<'_>) -> Verdict {
    let folder = lab.out.join("overlay");
    let ran = fs::create_dir(&folder).map_err(|error| error.to_string()).and_then(|()| {
        let mut overlay = Overlay::start(lab, &folder)?;
        let outcome = check(&mut overlay)?;
        overlay.end()?;
        Ok(outcome)
    });
    let _ = fs::remove_dir_all(&folder);
    ran.unwrap_or_else(Verdict::Fail)
}

/// Goes through all that is promised; returns the first promise that is broken as an error.
fn check(overlay: &mut Overlay<'_>) -> Result<Verdict, String> {
    overlay.serve_file()?;
    let volume = VOLUME.to_string() + "B";
    let far = ["--from", "sao-paulo", "--to-site", "tokyo", "--to", SERVER, "--per-day", &volume];
    overlay.tell(&[&["flow", "add", FAR, "--listen", "127.0.0.1:20000"], &far[..]].concat())?;
    let near = ["--from", "london", "--to-site", "hamina", "--to", "10.200.0.1:8000"];
    overlay.tell(&[&["flow", "add", NEAR, "--per-day", "1kB"], &near[..]].concat())?;
    overlay.tell(&["budget", "6 usd/day"])?;
    overlay.tell(&["mode", "auto"])?;
    // A download by lot in the control arm would be no figure of relays.
    overlay.tell(&["gain", "--control-share", "0%"])?;
    overlay.wait("a plan is in effect", TO_PLAN.saturating_sub(overlay.begun.elapsed()), |it| {
        let status = it.ask(&["status"])?;
        let is_done = status["plan"].is_u64() && status["step"] == "done";
        Ok(is_done && !it.path(FAR)?.is_empty() && it.relays() > 0)
    })?;
    let planned = overlay.begun.elapsed().as_secs_f64();
    if !overlay.path(NEAR)?.is_empty() {
        return Err(format!("flow {NEAR} gains nothing by relays, and does not go direct"));
    }
    // Predictions of estimates are none, and tests of rates would disturb the transfers.
    overlay.wait("all rates of the plan are measured", TO_MEASURE, |it| {
        let plan = it.ask(&["plan"])?;
        let rests_on = plan["rests_on"].as_array().map(Vec::as_slice).unwrap_or_default();
        let are_measured = |line: &Value| line.as_str().is_some_and(|it| it.ends_with(" measured"));
        Ok(!rests_on.is_empty() && rests_on.iter().all(are_measured))
    })?;
    let plan = overlay.ask(&["plan"])?;
    let predicted = predicted(&plan).ok_or("the plan does not predict the flow's times")?;
    let over = overlay.download("over", "127.0.0.1:20000")?;
    let direct = overlay.download("direct", SERVER)?;
    let (acceleration, error) = (direct / over, (direct / over / predicted - 1.0).abs());
    let figures = format!(
        "from nothing to a plan in {planned:.0} s; {direct:.1} s direct, {over:.1} s over relays: \
         {acceleration:.2} times as fast, predicted {predicted:.2}"
    );
    // Written so that NaN fails.
    if !(acceleration >= MIN_ACCELERATION && error <= MAX_ERROR) {
        return Ok(overlay.doubt(figures));
    }

    overlay.counted()?;
    let moved = overlay.slow_leg()?;
    let begun = Instant::now();
    overlay.tell(&["budget", "0"])?;
    overlay.wait("all flows are direct, and no relay runs", TO_MOVE, |it| {
        Ok(it.path(FAR)?.is_empty() && it.relays() == 0)
    })?;
    let ended = begun.elapsed().as_secs_f64();
    Ok(Verdict::Pass(format!(
        "{figures}; relays counted what the gateway told; off a slow leg in {moved:.0} s, no \
         session broken; without a budget all direct and no relay in {ended:.0} s; nothing left \
         behind"
    )))
}

/// Returns how many times as fast the plan expects the flow to be.
fn predicted(plan: &Value) -> Option<f64> {
    let flows = plan["plan"]["flows"].as_array()?;
    let flow = flows.iter().find(|flow| flow["id"] == FAR)?;
    Some(flow["fct_direct_s"].as_f64()? / flow["fct_s"].as_f64()?)
}

/// A controller that runs with its lab; killed when dropped, and its lab with it.
struct Overlay<'a> {
    binary: &'a Path,
    folder: &'a Path,
    controller: Child,
    begun: Instant,
}

impl<'a> Overlay<'a> {
    fn start(lab: &'a Lab<'_>, folder: &'a Path) -> Result<Self, String> {
        let begun = Instant::now();
        let log = File::create(folder.join("controller.log")).map_err(|error| error.to_string())?;
        let mut command = command(lab.binary, folder, &["controller", "run", "net", "--lab"]);
        command.arg(lab.root.join("examples/cp-real-wan.toml"));
        command.stdout(Stdio::piped()).stderr(log);
        let started = command.spawn();
        let controller = started.map_err(|error| format!("cannot run the controller: {error}"))?;
        let mut overlay = Self { binary: lab.binary, folder, controller, begun };
        let mut line = String::new();
        let stdout = overlay.controller.stdout.take();
        let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
        match read {
            Some(Ok(1..)) if line.contains("\"ready\"") => Ok(overlay),
            _ => Err(format!("the controller did not start: {}", overlay.last_word())),
        }
    }

    /// Starts a web server in Tokyo with a file of [`VOLUME`].
    fn serve_file(&self) -> Result<(), String> {
        let file = File::create(self.folder.join("file")).map_err(|error| error.to_string())?;
        let made = Command::new("head")
            .args(["-c", &VOLUME.to_string(), "/dev/urandom"])
            .stdout(file)
            .status();
        made.map_err(|error| format!("cannot make a file: {error}"))?;
        let mut server = self.on("tokyo", &["python3", "-m", "http.server", "8000"]);
        server.stdout(Stdio::null()).stderr(Stdio::null());
        // It ends with the lab.
        server.spawn().map(drop).map_err(|error| format!("cannot run python3: {error}"))?;
        Ok(())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        command(self.binary, self.folder, arguments)
    }

    /// Returns a command that runs a program on a host.
    fn on(&self, host: &str, program: &[&str]) -> Command {
        self.command(&[&["lab", "exec", host, "--"], program].concat())
    }

    fn tell(&self, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let output = self.command(arguments).output();
        let output = output.map_err(|error| format!("cannot run tradewind: {error}"))?;
        // A status with problems ends with 3, and has an answer.
        if output.status.success() || (arguments[0] == "status" && !output.stdout.is_empty()) {
            return Ok(output.stdout);
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {}", arguments.join(" "), text.trim_end()))
    }

    fn ask(&self, arguments: &[&str]) -> Result<Value, String> {
        let answer = self.tell(&[arguments, &["--output", "json"]].concat())?;
        serde_json::from_slice(&answer).map_err(|error| format!("{arguments:?}: {error}"))
    }

    fn wait(
        &self,
        what: &str,
        limit: Duration,
        is_so: impl Fn(&Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            // A command may fail for a moment, as `plan` does without measurements.
            match is_so(self) {
                Ok(true) => return Ok(()),
                Ok(false) | Err(_) if begun.elapsed() < limit => sleep(LOOK),
                Ok(false) => return Err(format!("not within {limit:?}: {what}")),
                Err(error) => return Err(format!("not within {limit:?}: {what}: {error}")),
            }
        }
    }

    /// Returns the relays of a flow's path in effect.
    fn path(&self, flow: &str) -> Result<Vec<String>, String> {
        let flows = self.ask(&["flows"])?;
        let all = flows["flows"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found = all.iter().find(|it| it["id"] == flow);
        let path = found.and_then(|it| it["path"].as_array()).ok_or("a flow is not shown")?;
        Ok(path.iter().filter_map(|relay| relay.as_str().map(str::to_owned)).collect())
    }

    /// Downloads the file from São Paulo; returns the seconds that it took.
    fn download(&self, name: &str, from: &str) -> Result<f64, String> {
        let (command, file) = self.curl(name, from, &[]);
        finished(name, { command }.spawn(), &file, &self.folder.join("file"))
    }

    /// Checks that the controller shows of each relay of the flow what the gateway told, and what
    /// the relay's own metrics say that it moved.
    fn counted(&self) -> Result<(), String> {
        self.wait("gateway, relays and their metrics agree", TO_REPORT, |it| {
            let cost = it.ask(&["cost"])?;
            let rows = cost["relayed"].as_array().map(Vec::as_slice).unwrap_or_default();
            let of = |row: &Value, key: &str| row[key].as_u64().unwrap_or(0);
            let mut compared = 0;
            for row in rows.iter().filter(|row| row["flow"] == FAR) {
                let relay = row["relay"].as_str().unwrap_or_default();
                let all = rows.iter().filter(|row| row["relay"] == relay);
                let all: u64 = all.map(|row| of(row, "counted_bytes")).sum();
                // It runs no more if a newer plan does without it.
                let moved = it.moved(relay).ok();
                let are_alike = of(row, "told_bytes") == of(row, "counted_bytes")
                    && of(row, "told_sessions") == of(row, "counted_sessions");
                if !are_alike || moved.is_some_and(|moved| moved != all) {
                    return Err(format!("{row}, and {moved:?} bytes by its metrics"));
                }
                compared += usize::from(moved.is_some() && all >= VOLUME);
            }
            Ok(compared > 0)
        })
    }

    /// Returns the bytes that a relay has moved, by its own metrics.
    fn moved(&self, relay: &str) -> Result<u64, String> {
        let (region, _) = relay.rsplit_once('-').ok_or("a relay without a region")?;
        let url = "http://127.0.0.1:9101/metrics";
        let output = self.on(region, &["curl", "--silent", "--fail", url]).output();
        let output = output.map_err(|error| format!("cannot run curl: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().filter(|it| it.starts_with("tradewind_relay_moved_bytes_total"));
        let bytes = lines.map(|it| it.rsplit(' ').next().and_then(|it| it.parse::<u64>().ok()));
        let bytes: Option<u64> = bytes.sum();
        bytes.filter(|_| output.status.success()).ok_or_else(|| format!("{relay} has no metrics"))
    }

    fn curl(&self, name: &str, from: &str, more: &[&str]) -> (Command, PathBuf) {
        let (file, url) = (self.folder.join(name), format!("http://{from}/file"));
        let limit = TO_CARRY.as_secs().to_string();
        let curl = ["curl", "--silent", "--show-error", "--fail", "--max-time", &limit];
        let output = ["--write-out", "%{time_total}", "--output", name, &url];
        let mut command = self.on("sao-paulo", &[&curl, more, &output[..]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        (command, file)
    }

    /// Slows a leg of the flow while a download goes on; returns the seconds until the flow has
    /// left it.
    fn slow_leg(&self) -> Result<f64, String> {
        let rate = LONG_RATE.to_string();
        let (mut command, file) = self.curl("long", "127.0.0.1:20000", &["--limit-rate", &rate]);
        let long = command.spawn();
        sleep(Duration::from_secs(3));
        let before = self.path(FAR)?;
        // A relay is named by its region and a number.
        let regions = before.iter().filter_map(|relay| relay.rsplit_once('-').map(|(id, _)| id));
        let places: Vec<&str> = ["sao-paulo"].into_iter().chain(regions).chain(["tokyo"]).collect();
        let [.., from, to, _] = places[..] else { return Err("no path to slow".to_owned()) };
        self.tell(&["lab", "set", &format!("{from},{to}"), SLOW_RTT])?;
        let begun = Instant::now();
        self.wait("flows leave a leg that has become slow", TO_MOVE, |it| {
            let path = it.path(FAR)?;
            let uses = |region: &str| path.iter().any(|relay| relay.starts_with(region));
            Ok(!(uses(from) && uses(to)))
        })?;
        let moved = begun.elapsed().as_secs_f64();
        let log = fs::read_to_string(self.folder.join("controller.log")).unwrap_or_default();
        let names = |(from, to)| log.contains(&format!("{from} -> {to}: RTT"));
        if ![(from, to), (to, from)].into_iter().any(names) {
            return Err(format!("the controller does not say that {from} -> {to} made it plan"));
        }
        finished("long", long, &file, &self.folder.join("file"))?;
        Ok(moved)
    }

    /// Returns the number of relays that run on this lab.
    fn relays(&self) -> usize {
        let place = format!("TRADEWIND_RUNTIME_DIR={}", place(self.folder).display());
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let has = |file: PathBuf, word: &str| {
            let words = fs::read(file).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|one| one == word.as_bytes())
        };
        let is_relay = |entry: &fs::DirEntry| {
            let process = entry.path();
            has(process.join("cmdline"), "relay") && has(process.join("environ"), &place)
        };
        entries.filter(is_relay).count()
    }

    /// Judges figures that miss what is promised: they count only if the lab kept time.
    fn doubt(&self, figures: String) -> Verdict {
        match self.ask(&["lab", "status"]) {
            Ok(status) if status["validity"]["valid"] == false => {
                Verdict::Invalid(format!("{figures}; {}", status["validity"]["reasons"]))
            }
            _ => Verdict::Fail(figures),
        }
    }

    /// Ends the controller in order.
    fn end(mut self) -> Result<(), String> {
        signal("-TERM", self.controller.id());
        let begun = Instant::now();
        while begun.elapsed() < TO_END {
            match self.controller.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("{status}: {}", self.last_word())),
                _ => sleep(Duration::from_millis(20)),
            }
        }
        Err(format!("the controller still runs {TO_END:?} after SIGTERM"))
    }

    fn last_word(&self) -> String {
        let log = fs::read_to_string(self.folder.join("controller.log")).unwrap_or_default();
        log.lines().last().unwrap_or("without a word").to_owned()
    }
}

impl Drop for Overlay<'_> {
    fn drop(&mut self) {
        let _ = self.controller.kill();
        let _ = self.controller.wait();
    }
}

fn command(binary: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.env("TRADEWIND_RUNTIME_DIR", place(folder)).env_remove("TRADEWIND_CONTROLLER");
    command
}

/// Returns the place of the lab.
fn place(folder: &Path) -> PathBuf {
    folder.join("lab")
}

/// Waits for a download, and checks its content by hash; returns the seconds that it took.
fn finished(
    name: &str,
    started: std::io::Result<Child>,
    file: &Path,
    original: &Path,
) -> Result<f64, String> {
    let output = started.and_then(Child::wait_with_output);
    let output = output.map_err(|error| format!("cannot run curl: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(format!("download `{name}`: {}: {text}", output.status));
    }
    if hash(file)? != hash(original)? {
        return Err(format!("download `{name}`: the content is not the file's"));
    }
    let seconds = String::from_utf8_lossy(&output.stdout).trim().parse();
    seconds.map_err(|error| format!("download `{name}`: {error}"))
}

/// Returns the SHA-256 of a file.
fn hash(file: &Path) -> Result<String, String> {
    let output =
        Command::new("sha256sum").stdin(File::open(file).map_err(|e| e.to_string())?).output();
    let output = output.map_err(|error| format!("cannot run sha256sum: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prediction_is_of_the_flow() {
        let flow = |id: &str, direct_s: f64| -> Value {
            serde_json::json!({"id": id, "fct_s": 5.0, "fct_direct_s": direct_s})
        };
        let plan = serde_json::json!({"plan": {"flows": [flow(NEAR, 5.0), flow(FAR, 20.0)]}});
        assert_eq!(predicted(&plan), Some(4.0));
        assert_eq!(predicted(&Value::Null), None);
    }
}
