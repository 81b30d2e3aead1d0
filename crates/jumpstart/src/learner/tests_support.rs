//! A plain sample for tests: 50 segments of 1000 bytes, 10 Mbit/s over 40 ms.

use tradewind_units::{Bandwidth, Bytes, Duration, Segments};

use crate::Sample;

pub(crate) fn sample(connection: u64, remote: &str) -> Sample {
    Sample {
        connection,
        remote: remote.parse().unwrap(),
        window: Segments::new(50).unwrap(),
        slow_start_threshold: None,
        mss: Bytes::new(1000),
        rtt_min: Some(Duration::from_millis(40)),
        delivery_rate: Some(Bandwidth::from_mbps(10.0).unwrap()),
        application_limited: false,
        rate_limit: None,
        acked: Bytes::new(1_000_000),
        retransmitted_segments: 0,
        busy: Duration::from_secs(1),
    }
}
