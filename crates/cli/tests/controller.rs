//! A controller and the commands that ask it, by the program.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use common::{Files, command};
use serde_json::Value;

/// A controller that runs in the folder `net` of a test.
struct Controller {
    files: Files,
    process: Child,
}

impl Controller {
    fn start(test: &str) -> Self {
        let files = Files::new(test);
        let made = files.prints(
            "controller init net --agents 127.0.0.1:0 --api 127.0.0.1:0 \
             --advertise 192.0.2.1:7440",
        );
        assert!(made.contains("tradewind controller run net"), "{made}");
        let process = Self::run(&files);
        Self { files, process }
    }

    /// Starts the process, and writes the port that it got where commands look.
    fn run(files: &Files) -> Child {
        let mut process = command("controller run net", &files.0);
        let mut process = process.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["ready"], "controller");
        let access = files.read("net/admin.toml");
        let (_, token) = access.split_once('\n').unwrap();
        let api = ready["api"].as_str().unwrap();
        files.write("net/admin.toml", format!("api = \"http://{api}\"\n{token}"));
        process
    }

    /// Ends the process by SIGTERM, in order.
    fn end(&mut self) {
        let id = self.process.id().to_string();
        std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _ = self.process.wait();
    }
}

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
    files.refuses_with("flow add x --from office --to files.example.com --per-day 1GB", 2, "");
    files.refuses_with("flow remove other", 2, "no flow `other`");

    let budget = files.prints("budget 6 usd/day --alarm 80%");
    assert!(budget.starts_with("budget: $6.00 a day, a warning from 80 % on"), "{budget}");
    files.prints("mode auto");
    assert_eq!(files.json("budget -o json")["mode"], "auto");
    files.refuses_with("budget 6 eur/day", 2, "budget: ");

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
    assert!(files.prints("explain backup").contains("office > files.example.com"));
    assert_eq!(files.json("explain backup -o json")["is_over_relays"], false);
    files.refuses_with("why-not other", 2, "no flow `other`");

    // Something is wrong, and what to do about it is told.
    let status = files.run("status");
    assert_eq!(status.status.code(), Some(3));
    let status = common::text(&status.stdout);
    assert!(status.contains("-> `tradewind invite --role gateway --site office`"), "{status}");
    files.refuses_with("plan", 1, "no flow's direct path has been measured yet");
    files.refuses_with("plan --budget 6", 2, "the following required arguments");
    files.refuses_with("apply", 2, "there is no plan yet");
    files.refuses_with("host drain office-1", 2, "no host `office-1`");
    files.prints("flow remove backup");
    assert!(files.prints("flows").starts_with("no flows"));
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
