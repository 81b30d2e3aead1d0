//! Stores that are written, cut off, full, damaged, older, newer, copied and restored.

mod days;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tradewind_control::by_path::{Handshakes, PathPackets};
use tradewind_control::imported::Billed;
use tradewind_control::learner::DayJumps;
use tradewind_control::message::{Arm, Document, DocumentVersion, SessionTally};
use tradewind_control::packet_flow::{DayPackets, PacketCounts, PacketFlowRecord};
use tradewind_control::record::{
    BatchTaken, ClassPredicted, Counters, DayPredicted, DaySessions, DayUsage, FlowRecord,
    HourUsage, PlanRecord, Rollout, Seen, Settings as OperatorSettings, Spent, Step,
};
use tradewind_control::state::NEWEST_PLANS;
use tradewind_desired::packets::Chooser;
use tradewind_model::measurement::{RateSummary, RttSummary};
use tradewind_plan::Plan;
use tradewind_units::{Bandwidth, Money, Ratio};

use super::*;
use crate::testing::TestFolder;

fn flow(name: &str) -> Record {
    Record::Flow(FlowRecord {
        id: name.parse().unwrap(),
        from: "office".parse().unwrap(),
        to: "files.example.com:443".parse().unwrap(),
        to_site: "files.example.com".parse().unwrap(),
        per_day: "200 GB".parse().unwrap(),
        weight: 1,
        listen: "127.0.0.1:7500".parse().unwrap(),
    })
}

fn plan(number: u64) -> Record {
    Record::Plan(PlanRecord {
        number,
        made_unix_ms: 1,
        plan: Plan::nothing(),
        hosts: std::collections::BTreeMap::new(),
        usd_per_day: Money::ZERO,
        flows: Vec::new(),
        demands: std::collections::BTreeMap::new(),
        paths_since: std::collections::BTreeMap::new(),
        was_used: false,
        rests_on: Vec::new(),
        measurements: Vec::new(),
        measurements_in_effect: Vec::new(),
        known_legs: 0,
        budget: None,
        tenants: std::collections::BTreeMap::new(),
        packets: Box::default(),
    })
}

fn measurement(rtt_ms: u64) -> Record {
    let rtt = RttSummary::single(Duration::from_millis(rtt_ms));
    let rate = RateSummary {
        rate: Bandwidth::from_mbps(100.0).unwrap(),
        connections: 4,
        window: None,
        retransmitted: None,
    };
    Record::Measurement(LegMeasurement {
        source: "office".parse().unwrap(),
        destination: "gcp:europe-north1".parse().unwrap(),
        rtt,
        rate: Some(rate),
        method: Method::Tcp,
        measured_at_unix_ms: Some(1),
    })
}

fn audit(number: u64) -> Record {
    let (actor, action) = ("operator".to_owned(), format!("did {number}"));
    Record::Audit(AuditEntry { number, unix_ms: number, actor, action })
}

fn epoch_of(file: &Path) -> u64 {
    let records = Store::open(file).unwrap().records().unwrap();
    let epoch = |record| match record {
        Record::Counters(counters) => Some(counters.epoch),
        _ => None,
    };
    records.into_iter().find_map(epoch).unwrap_or(1)
}

#[test]
fn newest_record_of_each_key_survives() {
    let place = TestFolder::new("newest");
    let file = place.path().join("store.db");
    let settings = OperatorSettings {
        budget_usd_per_day: Money::from_usd(6.0).unwrap(),
        ..OperatorSettings::default()
    };
    let document = Document {
        schema_version: 1,
        version: DocumentVersion { epoch: 1, version: 1 },
        host: "office-1".parse().unwrap(),
        issued_unix_ms: 1,
        processes: Vec::new(),
        responder_port: 7442,
        report_every_ms: 10_000,
        watched: Vec::new(),
    };
    let seen = Record::Seen(Seen {
        host: "office-1".parse().unwrap(),
        unix_ms: 1,
        applied: None,
        refused: None,
        processes: Vec::new(),
        agent_version: "0.1.0".to_owned(),
        bounds: None,
        shown: Vec::new(),
    });
    let mut store = Store::open(&file).unwrap();
    store.append(1, &[Record::Counters(Counters::default()), flow("a"), flow("b")]).unwrap();
    store.append(2, &[measurement(30), audit(1), seen.clone()]).unwrap();
    let removed = Record::FlowRemoved { flow: "a".parse().unwrap() };
    store.append(3, &[removed, measurement(20), audit(2)]).unwrap();
    store
        .append(4, &[Record::Settings(settings.clone()), Record::Document(document.clone())])
        .unwrap();
    // Nothing of it is kept, so nothing is written.
    store.append(5, &[seen]).unwrap();
    drop(store);
    let records = Store::open(&file).unwrap().records().unwrap();
    let expected = [
        Record::Counters(Counters::default()),
        Record::Document(document),
        flow("b"),
        measurement(20),
        Record::Settings(settings),
        audit(1),
        audit(2),
    ];
    assert_eq!(records, expected);
}

#[test]
fn used_plans_come_back_whatever_their_number() {
    let place = TestFolder::new("plans");
    let file = place.path().join("store.db");
    let mut store = Store::open(&file).unwrap();
    let newest = 11..11 + NEWEST_PLANS as u64;
    for number in [9, 10].into_iter().chain(newest.clone()) {
        store.append(1, &[plan(number)]).unwrap();
    }
    let rollout = Rollout { to: Some(9), step: Step::Done, since_unix_ms: 1, ..Rollout::default() };
    store.append(1, &[Record::Rollout(rollout)]).unwrap();
    let mut state = tradewind_control::State::default();
    store.records().unwrap().into_iter().for_each(|record| state.apply(record));
    let kept: Vec<u64> = [9].into_iter().chain(newest).collect();
    assert_eq!(state.plans.keys().copied().collect::<Vec<_>>(), kept);
    store.prune(2, &state.plans.keys().copied().collect()).unwrap();
    let plans = store.records().unwrap();
    assert!(!plans.contains(&plan(10)) && plans.contains(&plan(9)));
}

#[test]
fn history_holds_a_week() {
    let place = TestFolder::new("history");
    let mut store = Store::open(&place.path().join("store.db")).unwrap();
    let day = 24 * 3_600_000;
    store.append(day, &[measurement(30)]).unwrap();
    store.append(2 * day, &[measurement(20)]).unwrap();
    let history = |store: &Store| -> Vec<(u64, f64)> {
        let history = store.history("office", "gcp:europe-north1").unwrap();
        history.iter().map(|once| (once.unix_ms / day, once.rtt_min_ms)).collect()
    };
    assert_eq!(history(&store), [(1, 30.0), (2, 20.0)]);
    assert!(store.history("gcp:europe-north1", "office").unwrap().is_empty());
    let Record::Measurement(newest) = measurement(20) else { unreachable!() };
    let imported = LegMeasurement {
        rtt: RttSummary { spread: Duration::from_millis(3), ..newest.rtt },
        method: Method::Imported,
        measured_at_unix_ms: Some(day + 1),
        ..newest
    };
    store.append(3 * day, &[Record::OldMeasurement(imported)]).unwrap();
    let between = store.history("office", "gcp:europe-north1").unwrap()[1].clone();
    assert_eq!((between.unix_ms, between.method), (day + 1, Method::Imported), "by its own time");
    assert_eq!((between.rtt_spread_ms, between.rate_mbps), (3.0, Some(100.0)));
    assert_eq!(store.records().unwrap(), [measurement(20)], "the newest stays so");
    store.prune(8 * day + 2, &BTreeSet::new()).unwrap();
    assert_eq!(history(&store), [(2, 20.0)]);
}

#[test]
fn full_disk_changes_nothing() {
    let place = TestFolder::new("full");
    let mut store = Store::open(&place.path().join("store.db")).unwrap();
    store.append(1, &[flow("a")]).unwrap();
    let pages: u32 =
        store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    store.connection.pragma_update(None, "max_page_count", pages).unwrap();
    let many: Vec<Record> = (0..1000).map(|number| flow(&format!("flow-{number}"))).collect();
    let refused = store.append(2, &many).unwrap_err();
    assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
    assert_eq!(store.records().unwrap(), [flow("a")]);
}

#[test]
fn newer_store_is_refused_in_one_line() {
    let place = TestFolder::new("newer");
    let file = place.path().join("store.db");
    let store = Store::open(&file).unwrap();
    store.connection.pragma_update(None, "user_version", 99).unwrap();
    drop(store);
    let refused = Store::open(&file).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { found: 99, .. }));
    assert!(refused.to_string().contains("run the newer tradewind"), "{refused}");
    assert_eq!(refused.to_string().lines().count(), 1);
}

#[test]
fn damaged_store_names_restore() {
    let place = TestFolder::new("damaged");
    let file = place.path().join("store.db");
    drop(Store::open(&file).unwrap());
    let mut bytes = fs::read(&file).unwrap();
    bytes[100..].fill(0xa5);
    for bytes in [bytes, b"no store at all, but long enough for a head".repeat(100)] {
        fs::write(&file, bytes).unwrap();
        let refused = Store::open(&file).unwrap_err();
        assert!(matches!(refused, StoreError::Damaged { .. }), "{refused}");
        assert!(refused.to_string().contains("tradewind controller restore"), "{refused}");
    }
}

#[test]
fn other_programs_database_is_refused() {
    let place = TestFolder::new("other");
    let file = place.path().join("store.db");
    let other = Connection::open(&file).unwrap();
    other.execute_batch("CREATE TABLE theirs (x); PRAGMA user_version = 1;").unwrap();
    drop(other);
    let refused = Store::open(&file).unwrap_err().to_string();
    assert!(refused.contains("it is another program's"), "{refused}");
    let refused = backup(&file, &place.path().join("copy")).unwrap_err();
    assert!(matches!(refused, StoreError::Damaged { .. }), "{refused}");
}

#[test]
fn unreadable_record_names_its_key() {
    let place = TestFolder::new("record");
    let file = place.path().join("store.db");
    let mut store = Store::open(&file).unwrap();
    store.append(1, &[flow("a")]).unwrap();
    store.connection.execute("UPDATE records SET body = '{}'", []).unwrap();
    let refused = store.records().unwrap_err().to_string();
    assert!(refused.contains("flow `a`") && refused.contains("restore"), "{refused}");
}

#[test]
fn migration_copies_first_and_is_tried_again() {
    let place = TestFolder::new("migrate");
    let file = place.path().join("store.db");
    let mut store = Store::open(&file).unwrap();
    store.append(1, &[flow("a")]).unwrap();
    let known = schema::MIGRATIONS;
    let steps = |last| [known, &["CREATE TABLE more (x)", last]].concat();
    let broken = steps("CREATE TABLE evenmore (x); CREATE TABLE more (x);");
    schema::migrate(&file, &mut store.connection, &broken).unwrap_err();
    // The step before it is done, the broken one not even in part.
    let known = u32::try_from(known.len()).unwrap();
    assert_eq!(schema::version(&file, &store.connection).unwrap(), known + 1);
    let copy = Store::open(&schema::copy_name(&file, known)).unwrap();
    assert_eq!(copy.records().unwrap(), [flow("a")]);
    let mended = steps("CREATE TABLE evenmore (x)");
    schema::migrate(&file, &mut store.connection, &mended).unwrap();
    assert_eq!(schema::version(&file, &store.connection).unwrap(), known + 2);
}

#[test]
fn store_of_the_first_schema_is_read_and_its_new_rows_are_summed() {
    let place = TestFolder::new("first-schema");
    let file = place.path().join("store.db");
    let mut old = Connection::open(&file).unwrap();
    schema::migrate(&file, &mut old, &schema::MIGRATIONS[..1]).unwrap();
    let body = serde_json::to_string(&flow("a")).unwrap();
    old.execute("INSERT INTO records VALUES ('flow', 'a', ?1)", [&body]).unwrap();
    old.execute("INSERT INTO audit VALUES (1, 1, 'operator', 'did 1')", []).unwrap();
    drop(old);
    let mut store = Store::open(&file).unwrap();
    assert_eq!(store.records().unwrap(), [flow("a"), audit(1)]);
    store.append(2, &[flow("b"), audit(2)]).unwrap();
    assert_eq!(store.records().unwrap(), [flow("a"), flow("b"), audit(1), audit(2)]);
    let altered = "UPDATE audit SET action = 'did nothing' WHERE number = 2";
    store.connection.execute(altered, []).unwrap();
    assert!(store.records().unwrap_err().to_string().contains("audit entry 2 is altered"));
}

#[test]
fn store_from_before_tenants_takes_them_and_older_programs_are_kept_off() {
    let place = TestFolder::new("tenants-schema");
    let file = place.path().join("store.db");
    let mut old = Connection::open(&file).unwrap();
    schema::migrate(&file, &mut old, &schema::MIGRATIONS[..3]).unwrap();
    let body = serde_json::to_string(&flow("a")).unwrap();
    old.execute("INSERT INTO records VALUES ('flow', 'a', ?1, NULL)", [&body]).unwrap();
    drop(old);
    let mut store = Store::open(&file).unwrap();
    assert_eq!(schema::version(&file, &store.connection).unwrap(), 4);
    let tenant: Record = serde_json::from_value(serde_json::json!({
        "record": "tenant", "id": "acme", "budget_usd_per_day": 6.0, "alarm_share": 0.8,
        "flows": ["a"], "tokens": [{ "hash": "00", "may_write": true }],
        "alarmed_day": null, "stopped_day": 20_000,
    }))
    .unwrap();
    store.append(1, std::slice::from_ref(&tenant)).unwrap();
    drop(store);
    let mut store = Store::open(&file).unwrap();
    assert_eq!(store.records().unwrap(), [flow("a"), tenant]);
    let removed = Record::TenantRemoved { tenant: "acme".parse().unwrap() };
    store.append(2, &[removed]).unwrap();
    assert_eq!(store.records().unwrap(), [flow("a")]);
}

#[test]
fn backup_of_the_first_schema_is_restored_and_leaves_nothing_beside() {
    let place = TestFolder::new("first-backup");
    let (file, kept) = (place.path().join("store.db"), place.path().join("kept.db"));
    let mut old = Connection::open(&kept).unwrap();
    schema::migrate(&kept, &mut old, &schema::MIGRATIONS[..1]).unwrap();
    let body = serde_json::to_string(&flow("a")).unwrap();
    old.execute("INSERT INTO records VALUES ('flow', 'a', ?1)", [&body]).unwrap();
    drop(old);
    drop(Store::open(&file).unwrap());
    restore(&file, &kept).unwrap();
    let names = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
    names.sort();
    assert_eq!(names, ["kept.db", "store.db", "store.db.before-restore"]);
    assert!(Store::open(&file).unwrap().records().unwrap().contains(&flow("a")));
}

/// Returns a store of some decisions, with the records after each of them and the length of its
/// write-ahead log then.
fn decided(file: &Path) -> (Store, Vec<(u64, Vec<Record>)>) {
    let mut store = Store::open(file).unwrap();
    let log = with_log(file);
    let mut steps = Vec::new();
    for number in 1..=12 {
        let records = [audit(number), flow(&format!("flow-{}", number % 5)), plan(number)];
        store.append(number, &records).unwrap();
        steps.push((fs::metadata(&log).unwrap().len(), store.records().unwrap()));
    }
    (store, steps)
}

fn with_log(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

#[test]
fn log_that_was_cut_off_anywhere_gives_whole_decisions() {
    let place = TestFolder::new("cut");
    let file = place.path().join("store.db");
    let (store, steps) = decided(&file);
    let (whole, log) = (fs::read(&file).unwrap(), fs::read(with_log(&file)).unwrap());
    drop(store);
    let last = log.len() as u64;
    let around = steps.iter().flat_map(|(end, _)| end.saturating_sub(1)..=(end + 1).min(last));
    let cuts: BTreeSet<u64> = (0..last).step_by(499).chain(around).collect();
    let cut = place.path().join("cut.db");
    for length in cuts.into_iter().filter(|length| *length >= steps[0].0) {
        let _none = fs::remove_file(place.path().join("cut.db-shm"));
        fs::write(&cut, &whole).unwrap();
        fs::write(with_log(&cut), &log[..length as usize]).unwrap();
        let stored = steps.iter().rfind(|(end, _)| *end <= length).unwrap();
        assert_eq!(Store::open(&cut).unwrap().records().unwrap(), stored.1, "cut at {length}");
    }
}

#[test]
fn altered_bytes_are_refused_or_change_nothing() {
    let place = TestFolder::new("altered");
    let (file, altered) = (place.path().join("store.db"), place.path().join("altered.db"));
    let (store, steps) = decided(&file);
    // What is closed in order leaves one file.
    drop(store);
    let (_, expected) = steps.last().unwrap();
    let bytes = fs::read(&file).unwrap();
    let mut state = 36_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut refused = 0;
    // The head is small, and each byte of it has a meaning.
    for place_of in (0..100).map(|round| if round < 20 { 100 } else { bytes.len() }) {
        let (at, by) = (random(place_of), 1 + random(255) as u8);
        let mut bytes = bytes.clone();
        bytes[at] ^= by;
        for end in ["-wal", "-shm"] {
            let _none = fs::remove_file(format!("{}{end}", altered.display()));
        }
        fs::write(&altered, &bytes).unwrap();
        match Store::open(&altered).and_then(|store| store.records()) {
            Ok(records) => assert_eq!(records, *expected, "byte {at} by {by}"),
            Err(error) => {
                let line = error.to_string();
                assert!(line.contains("restore") && line.lines().count() == 1, "{at}: {line}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused}");
}

#[test]
fn restored_store_begins_an_epoch_that_never_was() {
    let place = TestFolder::new("restore");
    let (file, copy) = (place.path().join("store.db"), place.path().join("copy.db"));
    let mut store = Store::open(&file).unwrap();
    store.append(1, &[Record::Counters(Counters::default()), flow("a")]).unwrap();
    // The controller runs on while it is copied.
    backup(&file, &copy).unwrap();
    assert!(matches!(backup(&file, &copy), Err(StoreError::Exists { .. })));
    store.append(2, &[flow("b")]).unwrap();
    drop(store);
    assert_eq!(restore(&file, &copy).unwrap(), 2);
    assert_eq!(epoch_of(&file), 2);
    let records = Store::open(&file).unwrap().records().unwrap();
    assert!(records.contains(&flow("a")) && !records.contains(&flow("b")));
    let is_told = |record: &Record| {
        matches!(record, Record::Audit(entry)
        if entry.action.starts_with("restored a backup as epoch 2"))
    };
    assert!(records.iter().any(is_told), "{records:?}");
    let kept = place.path().join("store.db.before-restore");
    for file in [&file, &copy, &kept] {
        let mode = fs::metadata(file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.display());
    }
    let before = Store::open(&kept).unwrap();
    assert!(before.records().unwrap().contains(&flow("b")));
    // The same backup again: documents of epoch 2 are known to agents.
    assert_eq!(restore(&file, &copy).unwrap(), 3);
    fs::write(&file, "damaged").unwrap();
    assert!(restore(&file, &copy).unwrap() > 1_000_000_000, "beyond every number of before");
}

#[test]
fn restore_of_something_else_changes_nothing() {
    let place = TestFolder::new("restore-other");
    let (file, copy) = (place.path().join("store.db"), place.path().join("copy.db"));
    Store::open(&file).unwrap().append(1, &[flow("a")]).unwrap();
    restore(&file, &copy).unwrap_err();
    for text in ["", "not a store"] {
        fs::write(&copy, text).unwrap();
        restore(&file, &copy).unwrap_err();
    }
    assert_eq!(Store::open(&file).unwrap().records().unwrap(), [flow("a")]);
}

/// Appends decisions of two records each until it is killed, in the process that the test below
/// starts; does nothing elsewhere.
#[test]
fn writer_to_be_killed() {
    let Some(file) = std::env::var_os("TRADEWIND_TEST_STORE") else { return };
    let mut store = Store::open(Path::new(&file)).unwrap();
    for number in 1.. {
        store.append(number, &[audit(number), flow(&format!("flow-{number}"))]).unwrap();
        println!("stored {number}");
    }
}

#[test]
fn killed_writer_leaves_whole_decisions() {
    use std::io::BufRead as _;

    let place = TestFolder::new("killed");
    let file = place.path().join("store.db");
    for round in 1..=3 {
        let test = "store::tests::writer_to_be_killed";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("TRADEWIND_TEST_STORE", &file)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut acknowledged = 0;
        for line in output.lines().map_while(Result::ok) {
            if let Some(number) = line.rsplit_once("stored ").and_then(|(_, n)| n.parse().ok()) {
                acknowledged = number;
            }
            if acknowledged == 20 * round {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let records = Store::open(&file).unwrap().records().unwrap();
        let flows = records.iter().filter(|record| matches!(record, Record::Flow(_))).count();
        let entries = records.iter().filter(|record| matches!(record, Record::Audit(_))).count();
        assert!(acknowledged >= 20 * round, "{acknowledged}");
        assert!(flows as u64 >= acknowledged, "{flows} of {acknowledged}");
        assert_eq!(flows, entries, "a decision is stored whole");
    }
}
