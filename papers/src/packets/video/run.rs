//! One run: a video and a voice call with one carrier, first with their paths' usual losses, then
//! with these paths out.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use tradewind_lab::{LabError, LabOptions};
use tradewind_model::voice::{self, Codec, Loss};
use tradewind_units::SiteId;
use tradewind_wan::counters::LinkName;
use tradewind_wan::{PairChange, Topology};

use super::arm::{self, Arm, Group};
use super::call::{self, Call, Clock, Played, Source};
use super::ffmpeg::{self, Clip, Likeness, Player};
use super::ledger::{Arrival, Frame, Freezes, freezes};
use super::scenario::{Background, Scenario, Spans};
use crate::harness::checked::Checked;
use crate::harness::{LabContext, ProcessError, Stop};
use crate::packets::traffic::{self, Pace};

/// The groups of the topology.
pub(super) const VIDEO: &str = "video";
pub(super) const VOICE: &str = "voice";
const CALLS: usize = 2;
/// The part of a voice call's budget for the packet itself, which is spoken before it is sent.
const PACKET_TIME: Duration = Duration::from_millis(20);
/// The time for which receivers continue beyond the budget after the last packet was sent.
const LAST_ONES: Duration = Duration::from_millis(200);

/// The results of a part of a video call.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) psnr_db: Vec<f64>,
    pub(super) ssim: Vec<f64>,
    /// VMAF, 0 to 100; empty if ffmpeg does not support it.
    pub(super) vmaf: Vec<f64>,
    /// The number of frames, and of those that were late or broken.
    pub(super) frames: usize,
    pub(super) late: usize,
    pub(super) broken: usize,
    pub(super) freezes: Freezes,
}

/// The results of a part of a voice call.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallQuality {
    pub(super) loss: Loss,
    /// The rating R of the E-model.
    pub(super) rating: f64,
    /// The mean opinion score.
    pub(super) opinion: f64,
}

/// The results of a run: with usual losses, and in the outage.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) arm: Arm,
    pub(super) seen: [Seen; 2],
    pub(super) call_quality: [CallQuality; 2],
    /// Packets and bytes from the ingress to the egress relay of the video's group.
    pub(super) between_relays: [f64; 2],
}

/// The shared context of all runs.
pub(super) struct Stage<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) spans: Spans,
    pub(super) topology: &'a Topology,
    pub(super) clip: &'a Clip,
    pub(super) program: &'a Path,
    pub(super) stop: &'a Stop,
}

impl Stage<'_> {
    /// Carries both calls.
    ///
    /// # Errors
    /// When the lab or a process on it fails, or the run is stopped.
    pub(super) fn run(
        &self,
        arm: Arm,
        seed: u64,
        checked: &mut Checked,
    ) -> Result<Outcome, ProcessError> {
        let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
        let context = &LabContext::start(self.topology, &lab, self.program, self.stop)?;
        let [video, voice] =
            [VIDEO, VOICE].map(|name| arm::start(context, self.scenario, name, arm));
        let (video, voice) = (video?, voice?);
        let player = self.clip.receive(context, &arm::host(VIDEO, "r0")?)?;
        let clock = &Clock::start();
        let calls =
            [self.call(context, VIDEO, arm, &video)?, self.call(context, VOICE, arm, &voice)?];
        let played = thread::scope(|scope| {
            let running = calls.each_ref().map(|call| scope.spawn(|| call.run(clock)));
            let beside =
                [(&video, self.scenario.beside_video), (&voice, self.scenario.beside_voice)]
                    .map(|(group, load)| scope.spawn(move || self.load(group, load, clock)));
            let directed = self.direct(context, clock);
            clock.all_sent.store(true, Ordering::Relaxed);
            thread::sleep(self.scenario.budget() + LAST_ONES);
            clock.over.store(true, Ordering::Relaxed);
            let played = running.map(|call| call.join().expect("a call does not panic"));
            for load in beside {
                load.join().expect("flows do not panic")?;
            }
            let [seen, audio] = played;
            Ok::<_, ProcessError>((directed?, seen?, audio?))
        });
        let (directed, seen, audio) = played?;
        checked.add(&format!("{}, seed {seed}", arm.name()), directed.reasons);
        let frames = self.frames(player, &seen)?;
        let parts = [directed.settled..directed.out, directed.out..Duration::MAX];
        Ok(Outcome {
            arm,
            seen: parts.each_ref().map(|part| self.seen(&frames, part)),
            call_quality: parts.each_ref().map(|part| self.call_quality(&audio, part)),
            between_relays: directed.between_relays,
        })
    }

    /// Opens the sockets of a group's call.
    fn call(
        &self,
        context: &LabContext,
        group: &str,
        arm: Arm,
        addresses: &Group,
    ) -> Result<Call, ProcessError> {
        let (near, remote) = (arm::host(group, "s0")?, arm::host(group, "r0")?);
        let is_video = group == VIDEO;
        let source = if is_video {
            let socket = call::bind(context, &near, ffmpeg::player())?;
            Source::Player(socket, self.scenario.gap())
        } else {
            Source::Voice
        };
        let player = is_video.then(|| call::towards(context, &remote, ffmpeg::player()));
        Ok(Call {
            source,
            out: call::towards(context, &near, addresses.listener)?,
            listen: (call::bind(context, &remote, addresses.exit)?, addresses.exit),
            player: player.transpose()?,
            shield: arm.shield(self.scenario),
            budget: self.scenario.budget(),
        })
    }

    /// Sends the other flows of a group, for as long as its call lasts.
    fn load(&self, group: &Group, load: Background, clock: &Clock) -> Result<(), ProcessError> {
        while !clock.has_arrived(CALLS) && !clock.all_sent.load(Ordering::Relaxed) {
            thread::sleep(call::LOOK);
        }
        let interval = Duration::from_secs_f64(load.interval_ms / 1e3);
        let count = (self.spans.all().as_secs_f64() / interval.as_secs_f64()).ceil() as usize;
        let pace = Pace { interval, count, bytes: load.bytes, last_ones: LAST_ONES };
        traffic::run(&group.beside, pace, self.stop).map(drop)
    }

    /// Sends the video, first with the paths' usual losses, then with all packets lost.
    fn direct(&self, context: &LabContext, clock: &Clock) -> Result<Directed, ProcessError> {
        context.lab.reset_validity()?;
        let sender = self.clip.send(context, &arm::host(VIDEO, "s0")?, ffmpeg::player())?;
        wait_for_calls(context, clock)?;
        context.wait(self.spans.settle())?;
        let settled = clock.now();
        let before = between_relays(context)?;
        context.wait(self.spans.usual())?;
        for group in [VIDEO, VOICE] {
            let change = PairChange::parse(&format!("{group}-s0,{group}-r0"), ["loss=1"]);
            context.lab.apply(&change.map_err(LabError::from)?)?;
        }
        let out = clock.now();
        sender.end(self.spans.all() + ffmpeg::MAX, self.stop)?;
        let after = between_relays(context)?;
        let reasons = context.lab.validity()?.reasons;
        let between_relays = [after[0] - before[0], after[1] - before[1]];
        Ok(Directed { settled, out, between_relays, reasons })
    }

    /// Returns the video's frames, with the similarity of each to the source's.
    fn frames(&self, player: Player, played: &Played) -> Result<Vec<Judged>, ProcessError> {
        let frames = played.ledger.frames();
        let likeness = match played.first {
            Some(first) => player.end(self.clip, played.ledger.later(first), self.stop)?,
            // Nothing arrived at all.
            None => Likeness::default(),
        };
        let of =
            |values: &[Option<f64>], index| values.get(index).copied().flatten().unwrap_or(0.0);
        let judged = frames.into_iter().enumerate().map(|(index, frame)| Judged {
            frame,
            psnr_db: of(&likeness.psnr_db, index),
            ssim: of(&likeness.ssim, index),
            vmaf: self.clip.has_vmaf.then(|| of(&likeness.vmaf, index)),
        });
        Ok(judged.collect())
    }

    fn seen(&self, frames: &[Judged], part: &Range<Duration>) -> Seen {
        let such: Vec<&Judged> =
            frames.iter().filter(|judged| part.contains(&judged.frame.sent)).collect();
        let count = |arrival| such.iter().filter(|judged| judged.frame.arrival == arrival).count();
        let only: Vec<Frame> = such.iter().map(|judged| judged.frame).collect();
        Seen {
            psnr_db: such.iter().map(|judged| judged.psnr_db).collect(),
            ssim: such.iter().map(|judged| judged.ssim).collect(),
            vmaf: such.iter().filter_map(|judged| judged.vmaf).collect(),
            frames: such.len(),
            late: count(Arrival::Late),
            broken: count(Arrival::Broken),
            freezes: freezes(&only, self.scenario.frame_interval()),
        }
    }

    fn call_quality(&self, played: &Played, part: &Range<Duration>) -> CallQuality {
        let loss = Loss::of(played.ledger.played(part));
        let delay = self.scenario.budget() + PACKET_TIME;
        let rating = voice::rating(delay, Codec::G711_CONCEALED, loss);
        CallQuality { loss, rating, opinion: voice::mean_opinion(rating) }
    }
}

/// A frame of the video, and its similarity to the source's.
struct Judged {
    frame: Frame,
    psnr_db: f64,
    ssim: f64,
    vmaf: Option<f64>,
}

/// The times of a run's changes to the network, and its counters.
struct Directed {
    /// The end of settling.
    settled: Duration,
    /// The begin of the outage.
    out: Duration,
    between_relays: [f64; 2],
    reasons: Vec<String>,
}

/// Waits until a packet of every call has arrived: paths take different times to open.
fn wait_for_calls(context: &LabContext, clock: &Clock) -> Result<(), ProcessError> {
    let begun = clock.now();
    while !clock.has_arrived(CALLS) {
        if clock.now() - begun > ffmpeg::MAX {
            let why = format!("nothing of one has come within {} s", ffmpeg::MAX.as_secs());
            return Err(ProcessError::Program { name: "calls".into(), why });
        }
        context.wait(call::LOOK)?;
    }
    Ok(())
}

/// Returns the packets and bytes so far from the ingress to the egress relay of the video's group.
fn between_relays(context: &LabContext) -> Result<[f64; 2], ProcessError> {
    let site = |name| SiteId::new(format!("{VIDEO}-{name}"));
    let name = LinkName::Pair(site("in")?, site("out")?);
    let counters = context.lab.counters()?;
    let tally = counters.links.iter().find(|link| link.name == name).map(|link| link.tally);
    Ok(tally.map_or([0.0; 2], |tally| [tally.delivered as f64, tally.delivered_bytes as f64]))
}
