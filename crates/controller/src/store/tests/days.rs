//! Rows of days: read of a month, kept for thirteen.

use super::*;

#[test]
fn sessions_are_read_of_a_month_and_kept_for_thirteen() {
    const DAY_MS: u64 = 86_400_000;
    let place = TestFolder::new("sessions");
    let file = place.path().join("store.db");
    let sessions = |day: u64, size_class: u8| {
        let tally = SessionTally {
            flow: "a".parse().unwrap(),
            path: vec!["gcp:us-east1-1".parse().unwrap()],
            arm: Arm::Overlay,
            size_class,
            sessions: day,
            failed: 0,
            bytes_up: 1,
            bytes_down: 2,
            seconds: 1.5,
            log_seconds: 0.25,
            log_seconds_squared: 0.5,
        };
        Record::Sessions(DaySessions { day, tally })
    };
    let class = |day| ClassPredicted { size_class: 9, sessions: day, log_speedup: 0.1 + 0.2 };
    let mut store = Store::open(&file).unwrap();
    for day in 1..=450 {
        let spent = Spent { day, traffic: Money::from_usd(0.5).unwrap(), ..Spent::default() };
        let batch = BatchTaken { host: "office-1".parse().unwrap(), run: u64::MAX, number: day };
        let host = "gcp:asia-east1-1".parse().unwrap();
        let billed = Record::Billed(Billed { day, host, usd: Money::ZERO });
        let money = [Record::Spent(spent), billed];
        let (flow, classes) = ("a".parse().unwrap(), vec![class(day)]);
        let predicted = Record::Predicted(DayPredicted { day, flow, classes });
        let records = [sessions(day, 9), sessions(day, 10), predicted, Record::Batch(batch)];
        store.append(day * DAY_MS, &[&records[..], &money].concat()).unwrap();
    }
    // The same kind of sessions again: the sum replaces the one before.
    store.append(450 * DAY_MS, &[sessions(450, 10)]).unwrap();
    let days = |store: &Store| -> Vec<u64> {
        let day = |record: &Record| match record {
            Record::Sessions(sessions) => Some(sessions.day),
            _ => None,
        };
        store.records().unwrap().iter().filter_map(day).collect()
    };
    let expected: Vec<u64> = (420..=450).flat_map(|day| [day, day]).collect();
    assert_eq!(days(&store), expected);
    let predicted = |record: &Record| match record {
        Record::Predicted(row) => Some((row.day, row.classes[0])),
        _ => None,
    };
    let predicted: Vec<_> = store.records().unwrap().iter().filter_map(predicted).collect();
    let expected: Vec<_> = (420..=450).map(|day| (day, class(day))).collect();
    assert_eq!(predicted, expected);
    let is_batch = |record: &&Record| matches!(record, Record::Batch(_));
    let records = store.records().unwrap();
    let batches: Vec<&Record> = records.iter().filter(is_batch).collect();
    let newest = BatchTaken { host: "office-1".parse().unwrap(), run: u64::MAX, number: 450 };
    assert_eq!(batches, [&Record::Batch(newest)]);
    store.prune(450 * DAY_MS, &BTreeSet::new()).unwrap();
    let count = |kind: &str| -> u64 {
        let query = "SELECT count(*) FROM records WHERE kind = ?1";
        store.connection.query_row(query, [kind], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("sessions"), count("predicted")), (2 * 401, 401));
    assert_eq!((count("spent"), count("billed")), (401, 401));
}

#[test]
fn usage_is_read_of_a_month_and_kept_for_thirteen_or_until_its_flow_ends() {
    const DAY_MS: u64 = 86_400_000;
    let place = TestFolder::new("usage");
    let file = place.path().join("store.db");
    let usage = |flow: &str, day: u64| {
        let hour = HourUsage { hour: day * 24 + 3, sessions: 2, bytes: 1 << 53, concurrent: 1 };
        Record::Usage(DayUsage { flow: flow.parse().unwrap(), day, hours: vec![hour] })
    };
    let mut store = Store::open(&file).unwrap();
    for day in 1..=450 {
        let records = [usage("a", day), usage("a-b", day), usage("a.b", day)];
        store.append(day * DAY_MS, &records).unwrap();
    }
    let read = |store: &Store| -> Vec<Record> {
        let records = store.records().unwrap();
        records.into_iter().filter(|record| matches!(record, Record::Usage(_))).collect()
    };
    let month = |flows: &[&str]| -> Vec<Record> {
        (420..=450).flat_map(|day| flows.iter().map(move |flow| usage(flow, day))).collect()
    };
    assert_eq!(read(&store), month(&["a", "a-b", "a.b"]));
    store.append(450 * DAY_MS, &[Record::FlowRemoved { flow: "a".parse().unwrap() }]).unwrap();
    assert_eq!(read(&store), month(&["a-b", "a.b"]));
    store.prune(450 * DAY_MS, &BTreeSet::new()).unwrap();
    let count = "SELECT count(*) FROM records WHERE kind = 'usage'";
    let count: u64 = store.connection.query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 2 * 401);
}

#[test]
fn packets_are_read_of_a_month_and_end_with_their_flow() {
    const DAY_MS: u64 = 86_400_000;
    let place = TestFolder::new("packets");
    let file = place.path().join("store.db");
    let declared = |name: &str| {
        Record::PacketFlow(PacketFlowRecord {
            id: name.parse().unwrap(),
            from: "office".parse().unwrap(),
            to: "192.0.2.7:5004".parse().unwrap(),
            to_site: "plant".parse().unwrap(),
            packets_per_second: 50.5,
            packet: "200 B".parse().unwrap(),
            budget: Duration::from_millis(150),
            max_loss: Ratio::default(),
            listen: "127.0.0.1:16000".parse().unwrap(),
            service: Chooser::Planned,
        })
    };
    let packets = |flow: &str, day: u64| {
        let usd = Money::from_usd(0.25).unwrap();
        let counts = PacketCounts { packets: 1 << 53, late: 2, usd, ..PacketCounts::default() };
        let (service, why) = ("caching".to_owned(), String::new());
        Record::Packets(DayPackets {
            flow: flow.parse().unwrap(),
            day,
            service,
            why,
            counts,
            by_path: None,
        })
    };
    let mut store = Store::open(&file).unwrap();
    store.append(0, &[declared("a"), declared("b"), flow("c")]).unwrap();
    for day in 1..=410 {
        store.append(day * DAY_MS, &[packets("a", day), packets("b", day)]).unwrap();
    }
    let month = |flow: &'static str| (380..=410).map(move |day| packets(flow, day));
    let read = store.records().unwrap();
    assert!(month("a").chain(month("b")).all(|one| read.contains(&one)));
    assert_eq!(read.len(), 2 * 31 + 3);
    store.append(410 * DAY_MS, &[Record::FlowRemoved { flow: "a".parse().unwrap() }]).unwrap();
    let left = store.records().unwrap();
    assert!(left.contains(&declared("b")) && left.contains(&flow("c")));
    assert_eq!(left.len(), 31 + 2);
    store.prune(450 * DAY_MS, &BTreeSet::new()).unwrap();
    let count = "SELECT count(*) FROM records WHERE kind = 'packets'";
    let count: u64 = store.connection.query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 410 - 49);
    // Handshakes between their sites end with the last of them.
    let handshakes = Record::Handshakes(Handshakes {
        source: "office".parse().unwrap(),
        destination: "plant".parse().unwrap(),
        day: 410,
        today: PathPackets { expected: 5, lost: 1 },
        yesterday: PathPackets::default(),
    });
    store.append(410 * DAY_MS, &[declared("d"), handshakes.clone()]).unwrap();
    for (flow, are_kept) in [("d", true), ("b", false)] {
        store.append(0, &[Record::FlowRemoved { flow: flow.parse().unwrap() }]).unwrap();
        assert_eq!(store.records().unwrap().contains(&handshakes), are_kept);
    }
}

#[test]
fn jumps_are_read_of_a_month_and_kept_for_thirteen() {
    const DAY_MS: u64 = 86_400_000;
    let place = TestFolder::new("jumps");
    let file = place.path().join("store.db");
    let jumps = |day: u64| {
        let (host, tallies, counted) = ("office-1".parse().unwrap(), Vec::new(), Vec::new());
        Record::Jumps(DayJumps { host, day, tallies, counted })
    };
    let mut store = Store::open(&file).unwrap();
    for day in 1..=450 {
        store.append(day * DAY_MS, &[jumps(day)]).unwrap();
    }
    let month: Vec<Record> = (420..=450).map(jumps).collect();
    assert_eq!(store.records().unwrap(), month);
    store.prune(450 * DAY_MS, &BTreeSet::new()).unwrap();
    let count = "SELECT count(*) FROM records WHERE kind = 'jumps'";
    let count: u64 = store.connection.query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 401);
}

#[test]
fn days_of_a_flow_are_removed_by_an_index() {
    let place = TestFolder::new("index");
    let store = Store::open(&place.path().join("store.db")).unwrap();
    let plan = "EXPLAIN QUERY PLAN DELETE FROM records \
                WHERE kind IN ('usage', 'packets') AND substr(key, 22) = 'a'";
    let plan: String = store.connection.query_row(plan, [], |row| row.get(3)).unwrap();
    assert!(plan.contains("days_of_flows"), "{plan}");
}
