//! A video and a voice call through an outage of their Internet paths, by each packet service and
//! by the means of an application without relays: `jq-video` [JQ 5.3].
//!
//! The video is real: ffmpeg generates it, sends it as H.264 over RTP, and decodes the packets that
//! arrived in time; each frame is compared with the source's. Voice is rated by the E-model.
//!
//! | module | holds |
//! |---|---|
//! | [`scenario`] | the scenario file |
//! | [`arm`] | the carriers of a call and their processes |
//! | [`mod@run`] | one run of one carrier |
//! | [`call`] | the call's ends: pacing, play-out |
//! | [`shield`] | duplication and repair packets on the direct path |
//! | [`ledger`] | packets and frames: in time, late, lost; freezes |
//! | [`ffmpeg`] | the video, and its similarity to the received one |
//! | [`rtp`] | packets of RTP |

mod arm;
mod call;
mod ffmpeg;
mod ledger;
mod rtp;
mod run;
mod scenario;
mod shield;

use tradewind_output::chart::Scale;
use tradewind_wan::Topology;

use self::arm::Arm;
use self::ffmpeg::Clip;
use self::run::{Outcome, Seen, Stage, VIDEO, VOICE};
use self::scenario::Scenario;
use crate::harness::{
    Experiment, ExperimentError, Figure, Finding, Observer, ProcessError, Record, Row, RunOptions,
    Spot, missing, repeats,
};

/// The parts of a run.
const PARTS: [&str; 2] = ["usual losses", "outage"];
const OUTAGE: usize = 1;
/// The PSNR below which a frame is poor. Chosen: artefacts are plain to see.
const POOR_DB: f64 = 30.0;
/// The percentiles of frames that are drawn.
const DRAWN_PERCENT: [f64; 5] = [5.0, 25.0, 50.0, 75.0, 95.0];
/// The largest difference in mean PSNR between videos that count as alike.
const ALIKE_DB: f64 = 1.0;
/// The same by VMAF. Chosen: about the difference that half of all viewers notice.
const ALIKE_VMAF: f64 = 6.0;
/// The largest difference in opinion scores between voice calls that count as alike.
const ALIKE_MOS: f64 = 0.2;
/// The least loss of PSNR of a video that an outage affects.
const RUINED_DB: f64 = 6.0;

/// Runs the experiment.
///
/// # Errors
/// When the scenario is inconsistent, ffmpeg is missing, the lab or a process on it fails, or the
/// run is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let topology = experiment.read_topology(options, &scenario.topology, lacking)?;
    ffmpeg::check()?;
    let spans = if options.quick { scenario.spans_quick } else { scenario.spans };
    let wanted = if options.quick { &scenario.arms_quick } else { &scenario.arms };
    let arms: Vec<Arm> = wanted.iter().copied().filter(|arm| arm.is_possible()).collect();
    observer.begin("encode the video", 1);
    let clip = Clip::encode(&scenario.video, spans.all(), &options.stop)?;
    observer.advance_to(1);
    let seeds = scenario.runs.seeds(options);
    let cases: Vec<(u64, Arm)> =
        seeds.iter().flat_map(|seed| arms.iter().map(|arm| (*seed, *arm))).collect();
    let stage = Stage {
        scenario: &scenario,
        spans,
        topology: &topology,
        clip: &clip,
        program: &options.program,
        stop: &options.stop,
    };
    let step = "carry calls";
    let completed = repeats::each(step, &cases, 1, options, observer, |(seed, arm), checked| {
        stage.run(*arm, *seed, checked)
    })?;
    Ok(completed.record(|all, options| {
        let mut assumptions = scenario.assumptions.clone();
        assumptions.push(describe(&scenario, options, &stage, wanted.len() - arms.len()));
        record(&scenario.name, assumptions, &clip, &arms, all)
    }))
}

fn lacking(topology: &Topology) -> Option<String> {
    let hosts =
        [VIDEO, VOICE].map(arm::hosts).into_iter().collect::<Result<Vec<_>, ProcessError>>();
    match hosts {
        Ok(hosts) => missing(topology, hosts.iter().flatten()),
        Err(error) => Some(error.to_string()),
    }
}

fn describe(
    scenario: &Scenario,
    options: &RunOptions,
    stage: &Stage<'_>,
    missing: usize,
) -> String {
    let scenario::Spans { settle_s, usual_s, outage_s } = stage.spans;
    let without = if missing > 0 {
        "; without SRT, which is not installed (Debian package srt-tools)"
    } else {
        ""
    };
    let vmaf = if stage.clip.has_vmaf {
        ""
    } else {
        "; without VMAF, for which this ffmpeg has no filter (libvmaf)"
    };
    let quick = if options.quick { " (quick: shorter, and without some arms)" } else { "" };
    format!(
        "{usual_s} s with usual losses after {settle_s} s to settle, \
         then {outage_s} s of outage{quick}; {}{without}{vmaf}",
        scenario.runs.describe(options)
    )
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the value below which `percent` of all values are.
fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (percent / 100.0 * sorted.len() as f64) as usize;
    sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

fn share(part: usize, of: usize) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

fn poor(seen: &Seen) -> f64 {
    share(seen.psnr_db.iter().filter(|psnr_db| **psnr_db < POOR_DB).count(), seen.psnr_db.len())
}

/// The name, the unit and the function of a reported value of a part of a run.
type Measure = (&'static str, &'static str, fn(&Outcome, usize) -> f64);

const OPINION: &str = "voice: MOS";
const VMAF: &str = "video: mean VMAF";
const MEASURES: [Measure; 12] = [
    ("video: mean PSNR", "dB", |it, part| mean(&it.seen[part].psnr_db)),
    ("video: mean SSIM", "", |it, part| mean(&it.seen[part].ssim)),
    (VMAF, "of 100", |it, part| mean(&it.seen[part].vmaf)),
    ("video: frames below 30 dB", "% of frames", |it, part| poor(&it.seen[part])),
    ("video: frames late", "% of frames", |it, part| {
        share(it.seen[part].late, it.seen[part].frames)
    }),
    ("video: frames broken", "% of frames", |it, part| {
        share(it.seen[part].broken, it.seen[part].frames)
    }),
    ("video: freezes", "", |it, part| it.seen[part].freezes.count as f64),
    ("video: frozen", "s", |it, part| it.seen[part].freezes.seconds),
    ("voice: late or lost", "% of packets", |it, part| 100.0 * it.call_quality[part].loss.share),
    ("voice: BurstR", "", |it, part| it.call_quality[part].loss.burst_ratio),
    ("voice: R", "", |it, part| it.call_quality[part].rating),
    (OPINION, "", |it, part| it.call_quality[part].opinion),
];

/// Returns the repeats of one arm.
fn of_arm(all: &[Outcome], arm: Arm) -> Vec<&Outcome> {
    all.iter().filter(|outcome| outcome.arm == arm).collect()
}

fn record(
    name: &str,
    assumptions: Vec<String>,
    clip: &Clip,
    arms: &[Arm],
    all: &[Outcome],
) -> Record {
    let lossless: Vec<f64> = clip.lossless.psnr_db.iter().flatten().copied().collect();
    let lossless = mean(&lossless);
    let mut rows = vec![Row::of("video: mean PSNR, without losses", None, &[lossless], "dB", "")];
    if clip.has_vmaf {
        let vmaf: Vec<f64> = clip.lossless.vmaf.iter().flatten().copied().collect();
        let case = format!("{VMAF}, without losses");
        rows.push(Row::of(&case, None, &[mean(&vmaf)], "of 100", ""));
    }
    for (part, part_name) in PARTS.iter().enumerate() {
        for (name, unit, measure) in MEASURES {
            if name == VMAF && !clip.has_vmaf {
                continue;
            }
            for arm in arms {
                let values: Vec<f64> =
                    of_arm(all, *arm).iter().map(|outcome| measure(outcome, part)).collect();
                let case = format!("{name}, {part_name}, {}", arm.name());
                let row = Row::of(&case, None, &values, unit, "");
                let x_name = (*part_name).to_owned();
                let spot = Spot { figure: 1, line: arm.name().to_owned(), x: part as f64, x_name };
                rows.push(if name == OPINION { row.drawn_at(spot) } else { row });
            }
        }
    }
    rows.extend(arms.iter().flat_map(|arm| distribution(*arm, &of_arm(all, *arm))));
    rows.extend(relative(all));
    let findings = findings(all, lossless);
    let tables = Record::of_tables(name, assumptions, (rows, findings));
    Record { figures: figures(), ..tables }
}

fn figures() -> Vec<Figure> {
    let figure = |title: &str, x_label: &str, y_label: &str, scale| Figure {
        title: title.to_owned(),
        x_label: x_label.to_owned(),
        y_label: y_label.to_owned(),
        scale,
    };
    vec![
        figure("frames in the outage", "frames (%)", "PSNR at most (dB)", Scale::Linear),
        figure("voice calls", "part", "MOS", Scale::Names),
    ]
}

/// Returns the distribution of frames in the outage, as in the paper's figure 7(a).
fn distribution(arm: Arm, runs: &[&Outcome]) -> Vec<Row> {
    let row = |percent: f64| {
        let values: Vec<f64> =
            runs.iter().map(|run| percentile(&run.seen[OUTAGE].psnr_db, percent)).collect();
        let x_name = format!("{percent} %");
        let case = format!("video: PSNR that {x_name} of frames are below, outage, {}", arm.name());
        let line = arm.name().to_owned();
        Row::of(&case, None, &values, "dB", "").drawn_at(Spot {
            figure: 0,
            line,
            x: percent,
            x_name,
        })
    };
    DRAWN_PERCENT.map(row).to_vec()
}

/// Returns the traffic from ingress to egress relay with a kind of coding, in per cent of that with
/// forwarding, by run: packets, and bytes.
fn of_forwarding(all: &[Outcome], coding: Arm) -> [Vec<f64>; 2] {
    let [coding, forwarding] = [coding, Arm::Forwarding].map(|arm| of_arm(all, arm));
    [0, 1].map(|what| {
        let both = coding.iter().zip(&forwarding);
        both.map(|(one, other)| 100.0 * one.between_relays[what] / other.between_relays[what])
            .collect()
    })
}

fn relative(all: &[Outcome]) -> Vec<Row> {
    let [packets, bytes] = of_forwarding(all, Arm::Coding);
    let [more_packets, more_bytes] = of_forwarding(all, Arm::CodingMore);
    let rows = [
        ("packets", Arm::Coding, Some(13.4), packets),
        ("bytes", Arm::Coding, Some(13.6), bytes),
        ("packets", Arm::CodingMore, None, more_packets),
        ("bytes", Arm::CodingMore, None, more_bytes),
    ];
    let shown = rows.into_iter().filter(|(.., values)| !values.is_empty());
    shown
        .map(|(what, arm, paper, values)| {
            let case = format!("{what} between relays, {}", arm.name());
            Row::of(&case, paper, &values, "% of forwarding's", "all four flows of the group")
        })
        .collect()
}

/// Returns the findings of the paper; those about an arm that did not run are left out.
fn findings(all: &[Outcome], lossless: f64) -> Vec<Finding> {
    let over = |arm, value: fn(&Outcome) -> f64| {
        let values: Vec<f64> = of_arm(all, arm).into_iter().map(value).collect();
        (!values.is_empty()).then(|| mean(&values))
    };
    let psnr = |arm| over(arm, |it| mean(&it.seen[OUTAGE].psnr_db));
    let opinion = |arm| over(arm, |it| it.call_quality[OUTAGE].opinion);
    let mut findings = Vec::new();
    if let Some(direct) = psnr(Arm::Direct) {
        let claim = "an outage of the Internet path ruins the video";
        let ours = format!("{direct:.1} dB, {lossless:.1} without losses");
        findings.push(Finding::new(claim, direct <= lossless - RUINED_DB, ours));
    }
    if let Some(fec) = psnr(Arm::Fec) {
        let claim = "repair packets on the same path do not help it";
        let ours = format!("{fec:.1} dB");
        findings.push(Finding::new(claim, fec <= lossless - RUINED_DB, ours));
    }
    if let Some(forwarding) = psnr(Arm::Forwarding) {
        let claim = "with forwarding it is as without losses";
        let ours = format!("{forwarding:.1} dB, {lossless:.1} without losses");
        findings.push(Finding::new(claim, forwarding >= lossless - ALIKE_DB, ours));
    }
    if let (Some(coding), Some(forwarding)) = (psnr(Arm::Coding), psnr(Arm::Forwarding)) {
        let claim = "coding achieves a similar quality as forwarding";
        let ours = format!("{coding:.1} dB, {forwarding:.1} with forwarding");
        findings.push(Finding::new(claim, coding >= forwarding - ALIKE_DB, ours));
    }
    let vmaf = |arm| over(arm, |it| mean(&it.seen[OUTAGE].vmaf)).filter(|vmaf| vmaf.is_finite());
    if let (Some(coding), Some(forwarding)) = (vmaf(Arm::Coding), vmaf(Arm::Forwarding)) {
        let claim = "so it does by VMAF (ours)";
        let ours = format!("{coding:.1} of 100, {forwarding:.1} with forwarding");
        findings.push(Finding::new(claim, coding >= forwarding - ALIKE_VMAF, ours));
    }
    if let (Some(coding), Some(forwarding)) = (opinion(Arm::Coding), opinion(Arm::Forwarding)) {
        let claim = "so it does for voice (ours)";
        let ours = format!("MOS {coding:.2}, {forwarding:.2} with forwarding");
        findings.push(Finding::new(claim, coding >= forwarding - ALIKE_MOS, ours));
    }
    let [packets, bytes] = of_forwarding(all, Arm::Coding).map(|values| mean(&values));
    if packets.is_finite() {
        let claim =
            "and sends much less between the relays: less than half of the packets and bytes";
        let ours = format!("{packets:.1} % of packets, {bytes:.1} % of bytes");
        findings.push(Finding::new(claim, packets < 50.0 && bytes < 50.0, ours));
    }
    if let (Some(coding), Some(forwarding)) = (psnr(Arm::CodingMore), psnr(Arm::Forwarding)) {
        let claim =
            "coding with more repair packets achieves a similar quality as forwarding (ours)";
        let ours = format!("{coding:.1} dB, {forwarding:.1} with forwarding");
        findings.push(Finding::new(claim, coding >= forwarding - ALIKE_DB, ours));
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TEXT: &str = include_str!("../../../scenarios/jq-video.toml");
    const NETWORK: &str = include_str!("../../../scenarios/jq-video-wan.toml");

    #[test]
    fn built_in_scenario_is_consistent() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let catalogue = tradewind_model::Catalogue::builtin();
        let topology = Topology::parse(NETWORK, &catalogue).unwrap();
        assert_eq!(lacking(&topology), None);
        assert_eq!(scenario.frame_interval(), Duration::from_millis(40));
        // 1,100 bytes at two and a half times 1 Mbit/s.
        assert_eq!(scenario.gap(), Duration::from_micros(3_520));
        let without = NETWORK.replace("id = \"voice-out\"", "id = \"voice-off\"");
        let without = without.replace("\"voice-out\"", "\"voice-off\"");
        let topology = Topology::parse(&without, &catalogue).unwrap();
        assert_eq!(lacking(&topology).as_deref(), Some("no host `voice-out`"));
    }

    #[test]
    fn inconsistent_video_scenario_is_refused_in_one_line() {
        for (from, to, expected) in [
            ("fec = [1, 5]", "fec = [9, 5]", "fec repair packets: 9 given, expected 1 to 8"),
            ("budget_ms = 150", "budget_ms = 1", "budget_ms: 1 given, expected 10 to 2000"),
            ("outage_s = 30", "outage_s = 1000", "outage_s: 1000 given"),
            ("kbit_per_s = 1000", "kbit_per_s = 9000", "packets of the video: "),
            ("\"direct\", \"dup", "\"diret\", \"dup", "unknown variant `diret`"),
            ("pacing = 2.5", "pace = 2.5", "unknown field `pace`"),
        ] {
            let error = Scenario::parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }

    fn outcome(arm: Arm, psnr_db: f64, opinion: f64, between_relays: [f64; 2]) -> Outcome {
        let seen =
            Seen { psnr_db: vec![psnr_db; 4], ssim: vec![0.9; 4], frames: 4, ..<_>::default() };
        let loss = tradewind_model::voice::Loss::NONE;
        let quality = run::CallQuality { loss, rating: 80.0, opinion };
        let seen = [seen.clone(), seen];
        Outcome { arm, seen, call_quality: [quality; 2], between_relays }
    }

    #[test]
    fn findings_follow_the_figures_of_arms_that_ran() {
        let good = [
            outcome(Arm::Direct, 12.0, 1.0, [0.0; 2]),
            outcome(Arm::Coding, 39.5, 4.2, [25.0, 40.0]),
            outcome(Arm::Forwarding, 40.0, 4.3, [100.0; 2]),
        ];
        let found = findings(&good, 40.5);
        assert_eq!(found.len(), 5);
        assert!(found.iter().all(|finding| finding.holds), "{found:?}");
        let bad = [
            outcome(Arm::Direct, 36.0, 1.0, [0.0; 2]),
            outcome(Arm::Coding, 30.0, 3.0, [25.0, 60.0]),
            outcome(Arm::Forwarding, 38.0, 4.3, [100.0; 2]),
        ];
        let found = findings(&bad, 40.5);
        assert!(found.iter().all(|finding| !finding.holds), "{found:?}");
        assert_eq!(findings(&good[..1], 40.5).len(), 1);
        // Coding with more repair packets adds a finding.
        for (psnr_db, holds) in [(39.5, true), (30.0, false)] {
            let more = outcome(Arm::CodingMore, psnr_db, 4.2, [50.0, 80.0]);
            let all = [good[1].clone(), more, good[2].clone()];
            let found = findings(&all, 40.5);
            let finding = found.iter().find(|finding| finding.paper.contains("more repair"));
            assert_eq!(finding.unwrap().holds, holds);
            assert_eq!(relative(&all).len(), 4);
        }
        // With VMAF there is one more finding.
        let with_vmaf = |vmaf: f64, outcome: &Outcome| {
            let mut outcome = outcome.clone();
            outcome.seen[OUTAGE].vmaf = vec![vmaf; 4];
            outcome
        };
        for (coding, holds) in [(90.0, true), (80.0, false)] {
            let all = [with_vmaf(coding, &good[1]), with_vmaf(95.0, &good[2])];
            let found = findings(&all, 40.5);
            let finding = found.iter().find(|finding| finding.paper.contains("VMAF")).unwrap();
            assert_eq!(finding.holds, holds, "{finding:?}");
        }
        let rows = relative(&good);
        assert_eq!(rows.iter().map(|row| row.ours).collect::<Vec<_>>(), [25.0, 40.0]);
        assert!(relative(&good[..2]).is_empty());
    }

    #[test]
    fn shares_of_frames_are_those_of_their_order() {
        let values: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(
            [5.0, 50.0, 95.0].map(|percent| percentile(&values, percent)),
            [5.0, 50.0, 95.0]
        );
        assert_eq!(percentile(&[7.0], 100.0), 7.0);
        assert!(percentile(&[], 50.0).is_nan());
        let seen = Seen { psnr_db: vec![10.0, 29.9, 30.0, 40.0], ..Seen::default() };
        assert_eq!(poor(&seen), 50.0);
    }
}
