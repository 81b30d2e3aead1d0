//! ffmpeg: generates the video, sends it as H.264 over RTP, records the received one, and compares
//! both frame by frame.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tradewind_units::HostId;

use super::scenario::Video;
use crate::harness::listeners::{Port, listens};
use crate::harness::process::{Scratch, Task, is_installed};
use crate::harness::{LabContext, ProcessError, Stop};

const PROGRAM: &str = "ffmpeg";
/// The file of the encoded video, and the file that describes its encoding to a receiver.
const CLIP: &str = "clip.mkv";
const SESSION: &str = "session.sdp";
/// The port of players.
pub(super) const PLAYER_PORT: u16 = 6004;
/// Longest time for ffmpeg to finish after its last input: far more than on any machine that can
/// run this.
pub(super) const MAX: Duration = Duration::from_secs(120);
/// The size of a player's receive buffer, in bytes.
const PLAYER_BUFFER: &str = "1000000";
/// The PSNR of identical frames, for which it is infinite.
const EQUAL_DB: f64 = 100.0;

/// Returns the address of a host's player.
pub(super) fn player() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PLAYER_PORT).into()
}

/// The similarity of received frames to the source's, in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Likeness {
    /// Peak signal-to-noise ratio of each, in dB; `None` before anything was received.
    pub(super) psnr_db: Vec<Option<f64>>,
    /// Structural similarity.
    pub(super) ssim: Vec<Option<f64>>,
    /// VMAF, 0 to 100; empty without ffmpeg's filter for it.
    pub(super) vmaf: Vec<Option<f64>>,
}

/// The video, encoded.
pub(super) struct Clip {
    scratch: Scratch,
    video: Video,
    length: Duration,
    /// `true` when ffmpeg supports VMAF.
    pub(super) has_vmaf: bool,
    /// The similarity of its own frames to the source's: the result without losses.
    pub(super) lossless: Likeness,
}

/// Checks that ffmpeg is installed.
///
/// # Errors
/// When it is not; in one line with the way to install it.
pub(super) fn check() -> Result<(), ProcessError> {
    if is_installed(PROGRAM) {
        return Ok(());
    }
    let why = "it is not installed (Debian package ffmpeg; `make setup-bench` installs it)";
    Err(ProcessError::Program { name: PROGRAM.into(), why: why.into() })
}

/// Returns whether ffmpeg was built with VMAF; Debian's is not.
fn has_vmaf() -> bool {
    let mut command = Command::new(PROGRAM);
    command.args(["-hide_banner", "-filters"]).stdin(Stdio::null());
    let filters = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&filters).split_whitespace().any(|word| word == "libvmaf")
}

fn quiet(command: &mut Command) {
    command.args(["-hide_banner", "-loglevel", "error", "-nostdin", "-y"]);
}

impl Clip {
    /// Encodes `length` of the video at a constant rate without large frames: every frame has an
    /// intra-coded part.
    ///
    /// # Errors
    /// When ffmpeg fails.
    pub(super) fn encode(
        video: &Video,
        length: Duration,
        stop: &Stop,
    ) -> Result<Self, ProcessError> {
        let scratch = Scratch::new()?;
        let mut command = Command::new(PROGRAM);
        quiet(&mut command);
        let rate = format!("{}k", video.kbit_per_s);
        let buffer_size = format!("{}k", (2.0 * video.kbit_per_s / video.frames_per_s).ceil());
        let slice = video.packet_bytes - 100;
        let frames = video.frames_per_s.ceil();
        let of_codec = format!("intra-refresh=1:keyint={frames}:slice-max-size={slice}:threads=1");
        command.args(["-f", "lavfi", "-i", &video.source, "-t", &seconds(length)]);
        command.args(["-pix_fmt", "yuv420p", "-c:v", "libx264", "-preset", "veryfast"]);
        command.args(["-tune", "zerolatency", "-b:v", &rate, "-maxrate", &rate]);
        command.args(["-bufsize", &buffer_size, "-x264-params", &of_codec]);
        command.arg(scratch.file(CLIP));
        Task::start(command, "ffmpeg-encode", &scratch)?.end(MAX * 5, stop)?;
        let (video, lossless) = (video.clone(), Likeness::default());
        let mut clip = Self { scratch, video, length, has_vmaf: has_vmaf(), lossless };
        clip.lossless = clip.compare(&clip.scratch.file(CLIP), Duration::ZERO, stop)?;
        Ok(clip)
    }

    fn sender(&self, context: &LabContext, host: &HostId) -> Result<Command, ProcessError> {
        let mut command = context.lab.command(host, PROGRAM)?;
        quiet(&mut command);
        command.arg("-re").arg("-i").arg(self.scratch.file(CLIP));
        command.args(["-c", "copy", "-f", "rtp"]);
        Ok(command)
    }

    fn url(&self, to: SocketAddr) -> String {
        format!("rtp://{to}?pkt_size={}", self.video.packet_bytes)
    }

    /// Sends the video in real time.
    ///
    /// # Errors
    /// When ffmpeg cannot be started.
    pub(super) fn send(
        &self,
        context: &LabContext,
        host: &HostId,
        to: SocketAddr,
    ) -> Result<Task, ProcessError> {
        let mut command = self.sender(context, host)?;
        command.arg(self.url(to));
        Task::start(command, "ffmpeg-send", &context.scratch)
    }

    /// Starts to receive on `host`; the task ends when the sender leaves.
    ///
    /// # Errors
    /// When ffmpeg fails.
    pub(super) fn receive(
        &self,
        context: &LabContext,
        host: &HostId,
    ) -> Result<Player, ProcessError> {
        let session = context.scratch.file(SESSION);
        // The session description for the receiver is a file that the sender writes.
        let mut command = self.sender(context, host)?;
        command.arg("-t").arg("0.1").arg("-sdp_file").arg(&session).arg(self.url(player()));
        Task::start(command, "ffmpeg-session", &context.scratch)?.end(MAX, &context.stop)?;
        let mut command = context.lab.command(host, PROGRAM)?;
        quiet(&mut command);
        command.args(["-protocol_whitelist", "file,udp,rtp", "-reorder_queue_size", "0"]);
        command.args(["-max_delay", "0", "-buffer_size", PLAYER_BUFFER]);
        command.args(["-probesize", "32", "-analyzeduration", "0", "-i"]);
        command.arg(&session).args(["-c", "copy", "-copyinkf"]);
        let received = context.scratch.file("received.nut");
        command.arg(&received);
        let listens = || listens(context, host, Port::Udp(PLAYER_PORT));
        let task = Task::start_listening(command, "ffmpeg-receive", &context.scratch, listens)?;
        Ok(Player { task, received })
    }

    /// Compares a received video with the source frame by frame; the received one begins later by
    /// `later`. A missing frame is replaced by the previous one.
    ///
    /// # Errors
    /// When ffmpeg fails.
    fn compare(
        &self,
        received: &Path,
        later: Duration,
        stop: &Stop,
    ) -> Result<Likeness, ProcessError> {
        let mut command = Command::new(PROGRAM);
        // Paths in filters would need quoting.
        command.current_dir(self.scratch.file(""));
        quiet(&mut command);
        command.args(["-f", "lavfi", "-t", &seconds(self.length), "-i", &self.video.source]);
        // Output time stamps must not restart at zero.
        command
            .args(["-copyts", "-itsoffset", &seconds(later), "-i"])
            .arg(received)
            .args(["-lavfi", &graph(self.has_vmaf)]);
        for output in &["[e]", "[f]", "[g]"][..if self.has_vmaf { 3 } else { 2 }] {
            command.args(["-map", output, "-f", "null", "-"]);
        }
        Task::start(command, "ffmpeg-compare", &self.scratch)?.end(MAX * 5, stop)?;
        let frames = (self.length.as_secs_f64() * self.video.frames_per_s).round() as usize;
        let read = |log: &str| {
            let path = self.scratch.file(log);
            std::fs::read_to_string(&path).map_err(|source| ProcessError::File { path, source })
        };
        let psnr_db = values(&read("psnr.log")?, "psnr_avg:", frames);
        let ssim = values(&read("ssim.log")?, "All:", frames);
        let vmaf = if self.has_vmaf { vmaf(&read("vmaf.json")?, &psnr_db) } else { Vec::new() };
        Ok(Likeness { psnr_db, ssim, vmaf })
    }
}

/// A receiver.
pub(super) struct Player {
    task: Task,
    received: std::path::PathBuf,
}

impl Player {
    /// Waits until the received video is written, and compares it; `later` is the offset of its
    /// first packet.
    ///
    /// # Errors
    /// When ffmpeg fails.
    pub(super) fn end(
        self,
        clip: &Clip,
        later: Duration,
        stop: &Stop,
    ) -> Result<Likeness, ProcessError> {
        self.task.end(MAX, stop)?;
        clip.compare(&self.received, later, stop)
    }
}

fn seconds(span: Duration) -> String {
    format!("{:.3}", span.as_secs_f64())
}

/// Returns the filters that compare the source, as first input, with the received video.
///
/// VMAF uses the time stamps of the received video, the others those of the source: for VMAF the
/// received frames are laid over the source's, so that a missing frame is replaced by the previous
/// one.
fn graph(has_vmaf: bool) -> String {
    let [source, received, last] = if has_vmaf {
        [
            "split=4[a][b][x][y]",
            "split=3[c][d][z]",
            ";[x][z]overlay=format=yuv420,format=yuv420p[s];\
             [s][y]libvmaf=log_fmt=json:log_path=vmaf.json[g]",
        ]
    } else {
        ["split[a][b]", "split[c][d]", ""]
    };
    format!(
        "[0:v]format=yuv420p,settb=1/90000,{source};[1:v]settb=1/90000,{received};\
         [a][c]psnr=stats_file=psnr.log[e];[b][d]ssim=stats_file=ssim.log[f]{last}"
    )
}

/// Returns the values of VMAF's log, and `None` where `known` is: before anything was received, the
/// source was compared with itself.
fn vmaf(log: &str, known: &[Option<f64>]) -> Vec<Option<f64>> {
    let log: serde_json::Value = serde_json::from_str(log).unwrap_or_default();
    let value = |(place, known): (usize, &Option<f64>)| {
        known.and_then(|_| log["frames"][place]["metrics"]["vmaf"].as_f64())
    };
    known.iter().enumerate().map(value).collect()
}

/// Returns the value after `key` in each line, for `frames` frames: a filter begins with the first
/// frame that both videos have.
fn values(log: &str, key: &str, frames: usize) -> Vec<Option<f64>> {
    let value = |line: &str| -> Option<f64> {
        let (_, after) = line.split_once(key)?;
        let word = after.split_whitespace().next()?;
        let value: f64 = word.parse().ok()?;
        Some(value.min(EQUAL_DB))
    };
    let values: Vec<Option<f64>> = log.lines().map(value).collect();
    let before = frames.saturating_sub(values.len());
    std::iter::repeat_n(None, before).chain(values).take(frames).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read_frame_by_frame() {
        let psnr = "n:1 mse_avg:3.85 mse_y:3.35 psnr_avg:42.28 psnr_y:42.89 \n\
                    n:2 mse_avg:0.00 mse_y:0.00 psnr_avg:inf psnr_y:inf \n";
        assert_eq!(values(psnr, "psnr_avg:", 2), [Some(42.28), Some(100.0)]);
        // The first frame of three was never received.
        assert_eq!(values(psnr, "psnr_avg:", 3), [None, Some(42.28), Some(100.0)]);
        assert_eq!(values(psnr, "psnr_avg:", 1), [Some(42.28)]);
        let ssim = "n:1 Y:0.993260 U:0.990712 V:0.995138 All:0.993148 (21.641828)\n";
        assert_eq!(values(ssim, "All:", 1), [Some(0.993_148)]);
        assert_eq!(values("", "All:", 2), [None, None]);
        assert_eq!(values("nonsense", "All:", 1), [None]);
        let log = r#"{"version": "3.0.0", "frames": [{"frameNum": 0, "metrics": {"vmaf": 100.0}},
            {"frameNum": 1, "metrics": {"integer_motion": 0.1, "vmaf": 96.25}}]}"#;
        assert_eq!(vmaf(log, &[None, Some(40.0), Some(41.0)]), [None, Some(96.25), None]);
        assert_eq!(vmaf("nonsense", &[Some(40.0)]), [None]);
    }

    #[test]
    fn vmaf_is_requested_if_the_filter_exists() {
        assert!(graph(true).contains("libvmaf") && graph(true).contains("psnr"));
        assert!(!graph(false).contains("vmaf") && graph(false).ends_with("[f]"));
    }
}
