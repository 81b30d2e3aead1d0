//! The scenario file of `jq-video`.

use std::time::Duration;

use serde::Deserialize;

use super::arm::Arm;
use super::ledger::MAX_PACKETS;
use super::shield::Rate;
use crate::harness::{Runs, ScenarioError, from_toml, within};

/// The video and its encoding.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Video {
    /// The video source, for ffmpeg's device lavfi.
    pub(super) source: String,
    pub(super) frames_per_s: f64,
    pub(super) kbit_per_s: f64,
    /// Longest RTP packet.
    pub(super) packet_bytes: u32,
    /// The largest ratio of the packets' rate to the video's.
    pub(super) pacing: f64,
}

/// The traffic of the other flows of a call's group.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Background {
    pub(super) interval_ms: f64,
    pub(super) bytes: usize,
}

/// The parts of a run, in their order.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spans {
    /// The time before anything counts.
    pub(super) settle_s: f64,
    /// The time with the paths' usual losses.
    pub(super) usual_s: f64,
    /// The time with the calls' Internet paths out.
    pub(super) outage_s: f64,
}

impl Spans {
    pub(super) fn settle(&self) -> Duration {
        Duration::from_secs_f64(self.settle_s)
    }

    pub(super) fn usual(&self) -> Duration {
        Duration::from_secs_f64(self.usual_s)
    }

    pub(super) fn all(&self) -> Duration {
        self.settle() + self.usual() + Duration::from_secs_f64(self.outage_s)
    }
}

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) name: String,
    #[serde(default)]
    pub(super) assumptions: Vec<String>,
    pub(super) runs: Runs,
    pub(super) topology: String,
    /// The compared arms, of all runs and of quick runs.
    pub(super) arms: Vec<Arm>,
    pub(super) arms_quick: Vec<Arm>,
    pub(super) spans: Spans,
    pub(super) spans_quick: Spans,
    /// The time from sending to playing a packet.
    pub(super) budget_ms: f64,
    pub(super) video: Video,
    /// The other flows of the video's group, and of the voice call's.
    pub(super) beside_video: Background,
    pub(super) beside_voice: Background,
    /// The cross-stream rate r, the same with more repair packets, and the in-stream rate s.
    pub(super) cross_stream: [u8; 2],
    pub(super) cross_stream_more: [u8; 2],
    pub(super) in_stream: [u8; 2],
    /// Repair packets on the direct path.
    pub(super) fec: Rate,
    /// The margin between SRT's delivery and the call's deadline.
    pub(super) srt_margin_ms: f64,
}

impl Scenario {
    /// Parses a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value is out of range.
    pub(super) fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let video = &scenario.video;
        let spans = [&scenario.spans, &scenario.spans_quick].into_iter().flat_map(|spans| {
            [
                ("settle_s", spans.settle_s, 1.0, 60.0),
                ("usual_s", spans.usual_s, 1.0, 300.0),
                ("outage_s", spans.outage_s, 1.0, 100.0),
            ]
        });
        let beside =
            [scenario.beside_video, scenario.beside_voice].into_iter().flat_map(|beside| {
                [
                    ("interval_ms", beside.interval_ms, 1.0, 1_000.0),
                    ("bytes", beside.bytes as f64, 16.0, 1_100.0),
                ]
            });
        // Slices are shorter than packets, some by half.
        let packets = 2.0 * scenario.spans.all().as_secs_f64() * video.kbit_per_s * 125.0
            / f64::from(video.packet_bytes);
        let ranges = [
            ("budget_ms", scenario.budget_ms, 10.0, 2_000.0),
            ("srt_margin_ms", scenario.srt_margin_ms, 0.0, 2_000.0),
            ("frames_per_s", video.frames_per_s, 5.0, 60.0),
            ("kbit_per_s", video.kbit_per_s, 50.0, 20_000.0),
            ("packet_bytes", f64::from(video.packet_bytes), 300.0, 1_130.0),
            ("pacing", video.pacing, 1.0, 100.0),
            ("cross_stream packets", scenario.cross_stream[1].into(), 1.0, 32.0),
            ("cross_stream_more packets", scenario.cross_stream_more[1].into(), 1.0, 32.0),
            ("in_stream packets", scenario.in_stream[1].into(), 1.0, 32.0),
            ("fec packets", scenario.fec.packets as f64, 1.0, 32.0),
            ("fec repair packets", scenario.fec.repairs as f64, 1.0, 8.0),
        ];
        let packets = [("packets of the video", packets.ceil(), 1.0, MAX_PACKETS)];
        within(ranges.into_iter().chain(spans).chain(beside).chain(packets))?;
        if scenario.arms.is_empty() || scenario.arms_quick.is_empty() {
            let what = "arms, arms_quick: none given, expected one at least".to_owned();
            return Err(ScenarioError::Inconsistent { what });
        }
        Ok(scenario)
    }

    pub(super) fn budget(&self) -> Duration {
        Duration::from_secs_f64(self.budget_ms / 1e3)
    }

    pub(super) fn srt_margin(&self) -> Duration {
        Duration::from_secs_f64(self.srt_margin_ms / 1e3)
    }

    /// Returns the time between two packets of the video.
    pub(super) fn gap(&self) -> Duration {
        let bits = f64::from(self.video.packet_bytes) * 8.0;
        Duration::from_secs_f64(bits / (self.video.kbit_per_s * 1e3 * self.video.pacing))
    }

    /// Returns the time between two frames.
    pub(super) fn frame_interval(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.video.frames_per_s)
    }
}
