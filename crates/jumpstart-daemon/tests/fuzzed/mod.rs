//! Properties that hold for any bytes on the control socket and for any configuration file, checked
//! by the fuzzer and by the replay of its corpora.

#![allow(dead_code, reason = "a fuzz target takes one of these")]
#![allow(clippy::unwrap_used, reason = "a panic is what a fuzzer looks for")]

use tradewind_config::{GatewayConfig, JumpstartConfig};
use tradewind_jumpstart::{Config, Hint, Learner, Sample};
use tradewind_jumpstart_daemon::{Request, kernel};
use tradewind_units::{Bandwidth, Bytes, Duration, Segments, Timestamp};

/// Checks that a request is refused in one line, or has one meaning, which a learner can carry out.
pub(crate) fn control(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut learner = Learner::new(Config::resolve(&JumpstartConfig::default().learn).unwrap());
    let now = Timestamp::ZERO + Duration::from_secs(1);
    learn(&mut learner, now);
    for line in text.lines() {
        let request = match Request::parse(line) {
            Ok(request) => request,
            Err(error) => {
                assert!(!error.contains('\n'), "{error}");
                continue;
            }
        };
        let written = serde_json::to_string(&request).unwrap();
        // A span in seconds is a number with a fraction, so it may come back rounded.
        let again = Request::parse(&written).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), written);
        carry_out(&mut learner, now, request);
    }
    learn(&mut learner, now + Duration::from_secs(1));
}

fn carry_out(learner: &mut Learner, now: Timestamp, request: Request) {
    match request {
        Request::Explain { address } => {
            let explanation = learner.explain(address, now);
            assert!(explanation.is_none_or(|explanation| explanation.expires_in_s.is_finite()));
        }
        Request::Flush { within } => {
            let _changes = learner.flush(within);
        }
        Request::Hint { within, order, lasts_s } => {
            learner.hint(Hint { within, order, until: now + lasts_s });
        }
        Request::Share { windows, lasts_s } => {
            let windows = windows.into_iter().map(|it| (it.destination, it.window_segments));
            learner.share(windows, now + lasts_s);
        }
        Request::Status {} | Request::Switch {} => {}
    }
}

/// Checks that a configuration is refused in one line, or that windows keep to its bounds.
pub(crate) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // As a section of another file, whose other keys are not its own.
    let section = format!("socks5 = ['127.0.0.1:0']\n{}", text.replace('[', "[jumpstart."));
    if let Err(error) = GatewayConfig::parse(&section) {
        let error = error.to_string();
        assert!(!error.contains('\n'), "{error}");
    }
    let config = match JumpstartConfig::parse(text) {
        Ok(config) => config,
        Err(error) => {
            let error = error.to_string();
            return assert!(!error.contains('\n'), "{error}");
        }
    };
    let learn_by = Config::resolve(&config.learn).unwrap();
    let (least, most) = (learn_by.window_min, learn_by.window_max);
    let _acts = (kernel::filter(&config), kernel::options(&config, &learn_by));
    let mut learner = Learner::new(learn_by);
    for second in 1..5 {
        let now = Timestamp::ZERO + Duration::from_secs(second);
        learn(&mut learner, now);
        for known in learner.explain_all(now) {
            let window = known.window_segments;
            assert!((least.as_u32()..=most.as_u32()).contains(&window), "{known:?}");
            assert!(known.pacing_mbps.is_none_or(|rate| rate.is_finite() && rate >= 0.0));
        }
    }
}

/// Runs a round with two connections, one of each family.
fn learn(learner: &mut Learner, now: Timestamp) {
    for (connection, remote) in [(1, "10.0.0.1"), (2, "2001:db8::1")] {
        learner.observe(&Sample {
            connection,
            remote: remote.parse().unwrap(),
            window: Segments::new(60).unwrap(),
            slow_start_threshold: None,
            mss: Bytes::new(1448),
            rtt_min: Some(Duration::from_millis(40)),
            delivery_rate: Some(Bandwidth::from_mbps(20.0).unwrap()),
            application_limited: false,
            rate_limit: None,
            acked: Bytes::new(now.as_nanos() / 1000),
            retransmitted_segments: 0,
            busy: Duration::from_secs(1),
        });
    }
    let _changes = learner.decide(now);
}
