//! `iperf3 --json`: the rate of a TCP test, and the round trips of its sender.

use serde_json::Value;
use tradewind_control::imported::{Imported, ImportedRate};

use super::given::{Given, summary};

/// Reads a test. With `--reverse` the server sends, and round trips are not told.
pub(super) fn read(text: &str, given: &Given) -> Result<Imported, String> {
    let test: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(error) = test["error"].as_str() {
        return Err(format!("error: the test failed: {}", tradewind_units::shown(error)));
    }
    let (from, to) = given.ends()?;
    let start = &test["start"]["test_start"];
    if start["protocol"] != "TCP" {
        return Err(format!("start.test_start.protocol: {}: expected TCP", start["protocol"]));
    }
    if start["bidir"].as_u64().is_some_and(|bidir| bidir > 0) {
        return Err("start.test_start.bidir: expected a test in one direction".to_owned());
    }
    let connections = number(&test, "start.test_start.num_streams")?;
    let sent = number(&test, "end.sum_sent.bytes")?;
    let rate = ImportedRate {
        rate_mbps: number(&test, "end.sum_received.bits_per_second")? / 1e6,
        connections: connections as u32,
        retransmitted: retransmitted(&test, sent),
    };
    let seconds = field(&test, "start.timestamp.timesecs").as_u64();
    let unix_ms = seconds.and_then(|seconds| seconds.checked_mul(1000));
    let unix_ms = given.time(unix_ms, "run `iperf3 --json`")?;
    Ok(Imported { from, to, unix_ms, rtt: summary(round_trips(&test)), rate: Some(rate) })
}

/// Returns the share of segments that were sent again, of those that the bytes take at least.
fn retransmitted(test: &Value, sent_bytes: f64) -> Option<f64> {
    let again = field(test, "end.sum_sent.retransmits").as_f64()?;
    let segment = field(test, "start.tcp_mss_default").as_f64().filter(|bytes| *bytes > 0.0)?;
    let segments = sent_bytes / segment + again;
    (segments > 0.0).then(|| again / segments)
}

/// Returns the sender's round-trip times of each interval, which are in microseconds.
fn round_trips(test: &Value) -> Vec<f64> {
    let intervals = test["intervals"].as_array().into_iter().flatten();
    let streams =
        intervals.flat_map(|interval| interval["streams"].as_array().into_iter().flatten());
    let times = streams.filter_map(|stream| stream["rtt"].as_f64());
    times.filter(|micros| *micros > 0.0).map(|micros| micros / 1e3).collect()
}

fn field<'a>(value: &'a Value, key: &str) -> &'a Value {
    key.split('.').fold(value, |value, name| &value[name])
}

/// Returns the number above zero at `key`.
fn number(test: &Value, key: &str) -> Result<f64, String> {
    let found = field(test, key);
    let number = found.as_f64().filter(|number| *number > 0.0);
    number.ok_or_else(|| format!("{key}: {found}: expected a number above zero"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::given::tests::given;
    use super::*;

    /// The keys that are read, as iperf 3.12 writes them.
    fn test() -> Value {
        json!({
            "start": {
                "timestamp": { "time": "Fri, 27 Nov 2026 13:14:28 GMT", "timesecs": 1_795_785_268 },
                "tcp_mss_default": 1000,
                "test_start": { "protocol": "TCP", "num_streams": 2, "reverse": 0 },
            },
            "intervals": [
                { "streams": [{ "rtt": 31_000, "sender": true }, { "rtt": 33_000 }] },
                { "streams": [{ "rtt": 30_000, "sender": true }, { "rtt": 32_000 }] },
            ],
            "end": {
                "sum_sent": { "bytes": 99_000, "bits_per_second": 2e8, "retransmits": 1 },
                "sum_received": { "bytes": 99_000, "bits_per_second": 1.9e8 },
            },
        })
    }

    #[test]
    fn rate_is_the_receivers_and_round_trips_are_the_senders() {
        let one = read(&test().to_string(), &given()).unwrap();
        let rate = one.rate.unwrap();
        assert_eq!((rate.rate_mbps, rate.connections), (190.0, 2));
        assert_eq!((rate.retransmitted, one.unix_ms), (Some(0.01), 1_795_785_268_000));
        let rtt = one.rtt.unwrap();
        assert_eq!((rtt.min_ms, rtt.median_ms, rtt.samples), (30.0, 31.5, 4));
    }

    #[test]
    fn refusals_name_the_key() {
        let with = |pointer: &str, value: Value| {
            let mut test = test();
            *test.pointer_mut(pointer).unwrap() = value;
            read(&test.to_string(), &given()).unwrap_err()
        };
        let failed = json!({ "error": "unable to connect to server: Connection refused" });
        for (refused, expected) in [
            (
                with("/start/test_start/protocol", json!("UDP")),
                "start.test_start.protocol: \"UDP\"",
            ),
            (with("/start/test_start", json!({ "protocol": "TCP", "bidir": 1 })), "start.test_st"),
            (with("/end/sum_received", json!({})), "end.sum_received.bits_per_second: null"),
            (with("/start/timestamp", json!({})), "holds no time: "),
            (read(&failed.to_string(), &given()).unwrap_err(), "error: the test failed: unable"),
            (read("{\n  x", &given()).unwrap_err(), "key must be a string at line 2"),
        ] {
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
