//! A controller and the commands that ask it, by the program.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use common::controller::Controller;
use common::{Files, command};
use serde_json::Value;

#[test]
fn operator_declares_what_is_carried() {
    let mut controller = Controller::start("overlay");
    let files = &controller.files;
    let line = files.prints("invite --role gateway --site office");
    let invite = line.strip_prefix("tradewind agent join ").unwrap().trim();
    let invite: tradewind_control::Invite = invite.parse().unwrap();
    assert_eq!(invite.controller, "192.0.2.1:7440".parse().unwrap());
    files.prints("invite --role relay --region gcp:europe-north1");
    files.refuses_with("invite --role relay", 2, "the following required arguments");
    files.refuses_with("invite --role probe --region gcp:europe-north1", 2, "the following");
    files.refuses_with(
        "invite --role relay --region x:y",
        2,
        "region `x:y` is not in the catalogue",
    );

    let added = files.prints(
        "flow add backup --from office --to files.example.com:443 \
         --per-day 200GB",
    );
    assert!(added.contains("applications at office connect to 127.0.0.1:15000"), "{added}");
    let flows = files.json("flows -o json");
    assert_eq!(flows["schema_version"], 1);
    assert_eq!(flows["flows"][0]["per_day"], "200 GB");
    assert_eq!(flows["flows"][0]["demand"]["basis"], "declared");
    files.refuses_with("flow add x --from office --to files.example.com --per-day 1GB", 2, "");
    files.refuses_with("flow remove other", 2, "no flow `other`");

    let budget = files.prints("budget 6 usd/day --alarm 80%");
    assert!(budget.starts_with("budget: $6.00 a day, a warning from 80 % on"), "{budget}");
    files.prints("mode auto");
    assert_eq!(files.json("budget -o json")["mode"], "auto");
    files.refuses_with("budget 6 eur/day", 2, "amount: dollars a day");

    let gain = files.prints("gain --control-share 5%");
    assert!(gain.contains("control: 5.0 % of sessions over relays"), "{gain}");
    assert!(gain.contains("for a whole day, budget $6.00"), "{gain}");
    assert_eq!(files.json("gain --days 7 -o json")["days"], 7);
    files.refuses_with("gain --days 99", 2, "days: expected a number from 1 to 31");
    let why = files.prints("why-not backup");
    assert!(
        why.starts_with("flow backup: it goes direct: no gateway has joined at office"),
        "{why}"
    );
    let explained = files.prints("explain backup");
    assert!(explained.contains("office > files.example.com"), "{explained}");
    assert!(explained.contains("declared 200 GB a day; no forecast before 7 days"), "{explained}");
    assert_eq!(files.json("explain backup -o json")["is_over_relays"], false);
    files.refuses_with("why-not other", 2, "no flow `other`");

    // Something is wrong, and what to do about it is told.
    let status = files.run("status");
    assert_eq!(status.status.code(), Some(3));
    let status = common::text(&status.stdout);
    assert!(status.contains("-> `tradewind invite --role gateway --site office`"), "{status}");
    files.refuses_with("plan", 1, "no flow's direct path has been measured yet");
    files.refuses_with("plan --budget 6", 2, "the following required arguments");
    files.refuses_with("apply", 1, "there is no plan yet");
    files.refuses_with("host drain office-1", 2, "no host `office-1`");
    files.prints("flow remove backup");
    assert!(files.prints("flows").starts_with("no flows"));
    controller.end();
}

/// Returns the lines of a table of comma-separated values, whose heading must be this.
fn csv(files: &Files, arguments: &str, heading: &str) -> Vec<String> {
    let printed = files.prints(&format!("{arguments} -o csv"));
    let mut lines = printed.lines().map(str::to_owned);
    assert_eq!(lines.next().unwrap(), heading, "{arguments}");
    lines.collect()
}

/// Declares a flow, and returns the time now in milliseconds since the Unix epoch.
fn declared(files: &Files) -> u128 {
    files
        .prints("flow add backup --from office --to 192.0.2.7:443 --to-site plant --per-day 200GB");
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()
}

/// The columns of further tables. Within one `schema_version` some are only added at the end.
const HEADINGS: [(&str, &str); 5] = [
    (
        "packets",
        "id,from,to,to_site,listen,packets_per_second,packet,budget,max_loss,\
         service_now,path,counts.packets,counts.expected,counts.in_time,\
         counts.lost_by_internet,counts.recovered_cache,\
         counts.recovered_in_stream,counts.recovered_cross_stream,counts.late,\
         counts.lost,counts.relay_bytes,counts.usd",
    ),
    (
        "learned",
        "id,from,to,per_day,sessions,mean_seconds,concurrent,first_unix_ms,\
         last_unix_ms",
    ),
    (
        "measure",
        "src,dst,unix_ms,rtt_ms,median_ms,spread_ms,samples,mbps,connections,\
         method",
    ),
    (
        "tenant list",
        "id,budget_usd_per_day,alarm_share,is_stopped,planned_usd_per_day,\
         flows,tokens",
    ),
    ("cost --by tenant", "date,tenant,part,estimated_usd,metered_usd,budget_usd,is_stopped"),
];

/// The answers that are tables and tell of no problem.
const TABLES: [&str; 8] =
    ["flows", "hosts", "relays", "gain", "cost", "events", "measure", "why-not backup"];

#[test]
fn reader_who_has_enough_is_no_failure() {
    let mut controller = Controller::start("closed-pipe");
    let files = &controller.files;
    declared(files);
    let all = TABLES.map(|answer| (answer, 0)).into_iter().chain([("status", 3)]);
    for (answer, code) in all {
        for form in ["table", "json", "csv"] {
            let mut process = command(&format!("{answer} -o {form}"), &files.0);
            let process = process.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut process = process.spawn().unwrap();
            // As `| head -1`, but sooner than it.
            drop(process.stdout.take());
            let output = process.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{answer} -o {form}: {output:?}");
            assert!(output.stderr.is_empty(), "{answer} -o {form}: {output:?}");
        }
    }
    controller.end();
}

#[test]
fn tables_are_there_for_programs_and_narrow_for_people() {
    let mut controller = Controller::start("forms");
    let files = &controller.files;
    declared(files);
    let heading = "id,from,to,to_site,listen,per_day,weight,path,seconds_direct,seconds,tenant,\
                   is_stopped";
    let flows = csv(files, "flows", heading);
    assert_eq!(flows, ["backup,office,192.0.2.7:443,plant,127.0.0.1:15000,200 GB,1,,,,,false"]);
    csv(
        files,
        "relays",
        "id,role,region,relay_type,site,address,identity,state,seen_unix_ms,applied.epoch,\
         applied.version,refused.reason,agent_version,sessions,bounds.rate,\
         bounds.spend.usd_per_day,bounds.spend.is_used_up,bounds.spend.used_usd",
    );
    csv(files, "why-not backup", "hosts,reason,why,seconds,usd_per_day");
    let heading = "date,of,name,bytes,estimated_usd,metered_usd,billed_usd";
    let costs = csv(files, "cost --days 2", heading);
    assert_eq!(costs.len(), 1, "{costs:?}");
    assert!(costs[0].ends_with(",all,,,0.0,0.0,"), "{costs:?}");
    let heading = "number,unix_ms,actor,action";
    assert_eq!(csv(files, "events --last 1", heading).len(), 1);
    let gain = "day,flow,overlay_sessions,fallback_sessions,control_sessions,other_sessions,\
                failed_sessions,overlay_failed_sessions,control_failed_sessions,bytes,\
                speedup.value,speedup.low,speedup.high,speedup_predicted,\
                speedup_predicted_low,speedup_predicted_high,seconds_saved.value,seconds_saved.low,\
                seconds_saved.high,cost,usd_per_second_saved";
    assert!(csv(files, "gain", gain).is_empty());
    for (answer, heading) in HEADINGS {
        csv(files, answer, heading);
    }
    let status = command("status -o csv", &files.0).output().unwrap();
    assert_eq!(status.status.code(), Some(3), "with its problem");
    let problem = "what,remedy\nflow backup has no gateway at office,`tradewind invite";
    assert!(common::text(&status.stdout).starts_with(problem), "{status:?}");
    for answer in ["explain backup", "budget"] {
        let expected = "invalid value 'csv' for '--output <OUTPUT>'";
        files.refuses_with(&format!("{answer} -o csv"), 2, expected);
    }
    for answer in TABLES {
        assert_eq!(files.json(&format!("{answer} -o json"))["schema_version"], 1, "{answer}");
        for (key, value) in [("NO_COLOR", "1"), ("TERM", "dumb"), ("COLUMNS", "0")] {
            let printed = command(answer, &files.0).env(key, value).output().unwrap();
            assert!(printed.status.success(), "{answer}");
            assert!(!printed.stdout.contains(&27), "{answer}: an escape into a pipe");
            let printed = common::text(&printed.stdout);
            // The audit log holds sentences of any length.
            let widest = printed.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(100) || answer == "events", "{answer}: {printed}");
        }
    }
    controller.end();
}

#[test]
fn plans_are_asked_about_and_bills_imported() {
    let mut controller = Controller::start("asking");
    let files = &controller.files;
    let now = declared(files);
    files.refuses_with("plan front", 1, "no flow's direct path has been measured yet");
    files.write("legs.csv", format!("src,dst,unix_ms,rtt_ms\noffice,plant,{now},31\n"));
    files.prints("measure import legs.csv --format csv");
    let heading = "budget_usd_per_day,usd_per_day,seconds,seconds_saved,relays,flows_over_relays";
    let [only] = &csv(files, "plan front", heading)[..] else { panic!("without relays") };
    assert!(only.starts_with("0.0,0.0,") && only.ends_with(",0.0,0,0"), "{only}");
    assert!(files.prints("plan front").contains("in effect: $0.00 a day, 0 s saved"));
    let twice = files.json("what-if --volume *=x2 --budget 6 -o json");
    assert_eq!((&twice["schema_version"], &twice["moves"]), (&1.into(), &0.into()));
    let seconds = |of: &str| twice[of]["seconds"].as_f64().unwrap();
    assert!(seconds("plan") > 1.9 * seconds("present"), "{twice}");
    assert!(files.prints("what-if").contains("no flow would take another path"));
    assert!(csv(files, "what-if", "flow,from,to,seconds_before,seconds_after").is_empty());
    let none = "no relay host is in region `gcp:us-east4`";
    files.refuses_with("what-if --without gcp:us-east4", 2, none);
    files.refuses_with("what-if --volume none=x2", 2, "there is no flow `none`");
    files.refuses("what-if --price aws:*=2", "a name and a factor such as `aws:*=x2`");
    files.refuses_with("what-if --budget six", 2, "--budget: ");

    files.write("bill.csv", "day,host,usd\n2026-11-27,gcp:a-1,one\n");
    let wrong = "bill.csv: line 2: usd: `one`: expected dollars such as 1.25";
    files.refuses_with("cost import bill.csv", 2, wrong);
    files.write("bill.csv", "day,host,usd\n2026-11-27,gcp:a-1,1\n");
    let wrong = "bill.csv: none is taken: entry 1: there is no host `gcp:a-1`";
    files.refuses_with("cost import bill.csv", 2, wrong);
    files.write("bill.csv", "day,host,usd\n");
    files.refuses_with("cost import bill.csv", 2, "bill.csv: holds no bill");
    controller.end();
}

/// A rate once measured is not measured again by whoever measures round trips alone.
#[test]
fn history_of_imports_has_each_figure_once() {
    let mut controller = Controller::start("import-history");
    let files = &controller.files;
    let now = declared(files);
    for (unix_ms, rtt_ms, mbps) in
        [(now - 30_000, "30", "250"), (now - 20_000, "33", ""), (now - 10_000, "", "200")]
    {
        let row = format!("office,plant,{unix_ms},{rtt_ms},{mbps}");
        files.write("one.csv", format!("src,dst,unix_ms,rtt_ms,mbps\n{row}\n"));
        files.prints("measure import one.csv --format csv");
    }
    let history = files.json("measure office plant -o json");
    let figures = |once: &Value| {
        let age_s = (now as f64 - once["unix_ms"].as_f64().unwrap()) / 1000.0;
        (age_s, once["rtt_min_ms"].as_f64().unwrap(), once["rate_mbps"].as_f64())
    };
    let figures: Vec<_> = history["measured"].as_array().unwrap().iter().map(figures).collect();
    assert_eq!(figures, [(30.0, 30.0, Some(250.0)), (20.0, 33.0, None), (10.0, 33.0, Some(200.0))]);
    assert!(files.prints("measure office").contains("200"), "and the newest of each are known");
    controller.end();
}

#[test]
fn measurements_of_others_are_imported_and_come_back() {
    let mut controller = Controller::start("import");
    let files = &controller.files;
    let now = declared(files);
    files.write("legs.csv", format!("src,dst,unix_ms,rtt_ms,spread_ms\noffice,plant,{now},31,2\n"));
    files.prints("measure import legs.csv --format csv");
    let stamp = |ms: u128| format!("[{}.{:03}]", ms / 1000, ms % 1000);
    let reply = |ms| format!("{} 64 bytes from a: icmp_seq=1 ttl=9 time=29.5 ms\n", stamp(ms));
    files.write("ping.txt", reply(now - 60_000));
    files.prints("measure import ping.txt --format ping --from office --to plant");
    let measured = files.json("measure -o json");
    let leg = &measured["legs"][0];
    assert_eq!((&leg["method"], &leg["rtt"]["min"]), (&"imported".into(), &"31 ms".into()));
    assert_eq!(leg["measured_at_unix_ms"], u64::try_from(now).unwrap());
    let history = files.json("measure office plant -o json");
    let of_history: Vec<f64> = history["measured"]
        .as_array()
        .unwrap()
        .iter()
        .map(|once| once["rtt_min_ms"].as_f64().unwrap())
        .collect();
    assert_eq!(of_history, [29.5, 31.0], "each by its own time");
    let exported = files.prints("measure export");
    files.write("week.csv", &exported);
    let table = files.prints("measure office");
    assert!(table.contains("imported") && table.contains("31.0"), "{table}");
    assert!(files.prints("events").contains("imported 1 measurements of 1 legs"));
    files.prints("measure import week.csv --format csv");
    assert_eq!(files.prints("measure export").lines().count(), 5);

    files.write("wrong.csv", "src,dst,unix_ms,rtt_ms\noffice,plant,5,1\noffice,plant,5,fast\n");
    let wrong = "measure import wrong.csv --format csv";
    files.refuses_with(wrong, 2, "wrong.csv: line 3: rtt_ms: `fast`: expected milliseconds");
    let nowhere = "measure import ping.txt --format ping --from office --to mars";
    files.refuses_with(
        nowhere,
        2,
        "ping.txt: none is taken: measurement office > mars: `mars`: expected the place of a host",
    );
    files.refuses_with("measure import ping.txt --format ping", 2, "ping.txt: holds no places");
    files.refuses_with("measure import none --format ping", 2, "none: ");
    controller.end();
}

#[test]
fn followers_hear_what_happens_across_a_restart() {
    let mut controller = Controller::start("follow");
    let mut follower = command("events --follow -o json", &controller.files.0);
    let mut follower = follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut said = BufReader::new(follower.stderr.take().unwrap()).lines();
    let next = |told: &mut dyn Iterator<Item = std::io::Result<String>>, action: &str| loop {
        let line: Value = serde_json::from_str(&told.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["schema_version"], 1, "{line}");
        if line["event"] == "audit" && line["action"].as_str().unwrap().contains(action) {
            return;
        }
    };
    // It may still connect: what happens before is not told.
    let begun = std::thread::spawn({
        let folder = controller.files.0.clone();
        move || {
            for _ in 0..20 {
                let _ = command("budget 3", &folder).output();
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        }
    });
    next(&mut told, "set the budget to $3.00");
    begun.join().unwrap();
    controller.end();
    assert!(said.next().unwrap().unwrap().ends_with("waits until it is back"));
    controller.process = Controller::run(&controller.files);
    assert_eq!(said.next().unwrap().unwrap(), "tradewind: the controller is back");
    controller.files.prints("mode auto");
    next(&mut told, "plans are applied by the controller");
    let mut table = command("events --follow -o csv", &controller.files.0);
    let mut table = table.stdout(Stdio::piped()).spawn().unwrap();
    let mut rows = BufReader::new(table.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(rows.next().unwrap(), "number,unix_ms,actor,action");
    controller.files.prints("budget 4");
    let row = rows.next().unwrap();
    assert!(row.ends_with(",operator,set the budget to $4.00 a day"), "{row}");
    // One who has enough ends it.
    drop((told, rows));
    controller.files.prints("mode suggest");
    assert!(follower.wait().unwrap().success());
    assert!(table.wait().unwrap().success());
    controller.end();
    let mut alone = command("events --follow", &controller.files.0);
    assert_eq!(common::ended(&mut alone).status.code(), Some(1), "nobody was there to begin with");
}

/// Returns what a command prints on a terminal with so many columns.
fn on_terminal(files: &Files, words: &str, columns: u32, environment: (&str, &str)) -> String {
    let line = format!("stty cols {columns} rows 24; '{}' {words}", common::PROGRAM);
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(&files.0).stdin(Stdio::null());
    script.env_remove("COLUMNS").env("TERM", "xterm").env(environment.0, environment.1);
    let output = script.output().unwrap();
    assert!(output.status.success(), "{words}: {output:?}");
    common::text(&output.stdout).replace('\r', "")
}

#[test]
fn terminals_get_tables_of_their_width_without_escapes() {
    if std::process::Command::new("script").arg("--version").output().is_err() {
        return common::daemon::skipped("tables on a terminal", "needs script (Debian: bsdutils)");
    }
    let mut controller = Controller::start("terminal");
    let files = &controller.files;
    declared(files);
    for answer in ["flows", "hosts", "gain", "cost", "events", "measure"] {
        for columns in [0, 20, 80] {
            for environment in [("NO_COLOR", "1"), ("TERM", "dumb"), ("LANG", "C")] {
                let printed = on_terminal(files, answer, columns, environment);
                assert!(!printed.contains('\u{1b}'), "{answer}: {printed}");
            }
        }
    }
    let narrow = on_terminal(files, "flows", 40, ("NO_COLOR", "1"));
    let wide = on_terminal(files, "flows", 200, ("NO_COLOR", "1"));
    assert!(narrow.lines().count() > wide.lines().count(), "{narrow}\n{wide}");
    let rows = narrow.lines().filter(|line| line.contains("15000") || line.contains('\u{2500}'));
    assert!(rows.clone().all(|line| line.chars().count() <= 40), "{narrow}");
    controller.end();
}

#[test]
fn status_fits_a_screen() {
    let mut controller = Controller::start("screen");
    let files = &controller.files;
    for number in 0..40 {
        files.prints(&format!(
            "flow add f{number} --from site-{} --to files.example.com:{} --per-day 1GB",
            number % 7,
            1000 + number
        ));
    }
    let shown = |words: &str| {
        let output = common::ended(&mut command(words, &files.0));
        assert_eq!(output.status.code(), Some(3));
        common::text(&output.stdout)
    };
    let problems: Value = serde_json::from_str(&shown("status -o json")).unwrap();
    let count = problems["problems"].as_array().unwrap().len();
    assert!(count >= 40, "{problems}");
    assert_eq!(shown("status -o csv").lines().count(), count + 1, "programs get all of them");
    let screen = shown("status");
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines.len() <= 24, "{screen}");
    assert_eq!(lines[0], format!("{count} problems"), "{screen}");
    assert!(lines.iter().any(|line| line.starts_with("flows: 40, 0 of them over relays")));
    assert!(screen.contains("more"), "{screen}");
    let line = "all of them: tradewind status -o csv";
    assert!(screen.trim_end().ends_with(line), "{screen}");
    controller.end();
}

#[test]
fn exit_codes_are_as_the_help_says() {
    let mut controller = Controller::start("codes");
    let files = &controller.files;
    let help = files.prints("--help");
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "1 failed, no plan, or no controller answers",
        "2 wrong usage, something named that is not there, or a bad file",
    ] {
        assert!(help.contains(part), "{help}");
    }
    files.refuses_with("apply", 1, "there is no plan");
    files.refuses_with("apply --yes", 1, "there is no plan");
    files.refuses_with("plan", 1, "no flow is declared");
    files.refuses_with("apply 99", 2, "there is no plan 99");
    files.refuses_with("flow remove other", 2, "no flow `other`");
    files.refuses_with("host drain other", 2, "no host");
    for days in ["cost --days 0", "cost --days 32"] {
        let line = files.refuses(days, "1..=31");
        assert!(!line.contains("1844"), "{line}");
    }
    controller.end();
    controller.files.refuses_with("apply", 1, "http://127.0.0.1:");
}

#[test]
fn follower_of_a_quiet_overlay_ends_with_its_reader() {
    let mut controller = Controller::start("quiet");
    let mut follower = command("events --follow -o csv", &controller.files.0);
    let mut follower = follower.stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(follower.stdout.take().unwrap());
    let mut heading = String::new();
    told.read_line(&mut heading).unwrap();
    assert_eq!(heading, "number,unix_ms,actor,action\n");
    drop(told);
    // Nothing changes.
    let mut ended = None;
    common::daemon::until("it ends", || {
        ended = follower.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success());
    controller.end();
}

#[test]
fn backup_comes_back_in_a_new_epoch() {
    let mut controller = Controller::start("restore");
    controller.files.prints("budget 6");
    controller.files.prints("controller backup net copy.db");
    controller.files.refuses_with("controller backup net copy.db", 2, "copy.db: is there already");
    controller.files.prints("budget 7");
    controller.files.refuses_with("controller restore net copy.db", 1, "net: another controller");
    controller.files.refuses_with("controller run net", 1, "net: another controller");
    controller.end();
    controller.files.refuses_with("status", 1, "http://127.0.0.1:");
    controller.files.prints("controller restore net copy.db");
    controller.process = Controller::run(&controller.files);
    assert_eq!(controller.files.json("budget -o json")["budget_usd_per_day"], 6.0);
    controller.end();

    controller.files.write("net/store.db", "damaged".repeat(1000));
    controller.files.refuses("controller run net", "tradewind controller restore");
    controller.files.refuses_with("controller init net", 2, "net/controller.toml: is there");
    controller.files.refuses_with("controller run none", 2, "none/controller.toml: is not there");
    controller.files.refuses_with("hosts --controller none", 2, "none/admin.toml: is not there");
}
