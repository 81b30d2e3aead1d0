//! The controller's process under faults: killed at any moment, its disk full; and that it tells
//! nobody its secrets.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::controller::Controller;
use common::daemon::{is_root, skipped};
use common::{Files, command};
use serde_json::{Value, json};
use tradewind_controller::{Client, ClientError, Folder};
use tradewind_units::Bytes;

/// Times that the controller is killed.
const KILLS: u64 = 50;
/// Flows that are declared again and again.
const FLOWS: u64 = 6;

fn client(files: &Files) -> Client {
    Client::new(&Folder::new(files.0.join("net")).admin().unwrap()).unwrap()
}

/// Returns the request for a flow of so many gigabytes a day.
fn flow(number: u64, gigabytes: u64) -> Value {
    json!({
        "from": "office",
        "to": format!("192.0.2.{}:443", 1 + number),
        "per_day": format!("{gigabytes} GB"),
        "listen": format!("127.0.0.1:{}", 15_000 + number),
    })
}

/// Returns the gigabytes of each flow.
fn declared(client: &Client) -> BTreeMap<String, u64> {
    let flows: Value = client.get("/v1/flows").unwrap();
    let gigabytes = |flow: &Value| {
        let per_day: Bytes = flow["per_day"].as_str().unwrap().parse().unwrap();
        (flow["id"].as_str().unwrap().to_owned(), per_day.as_gb() as u64)
    };
    flows["flows"].as_array().unwrap().iter().map(gigabytes).collect()
}

/// Numbers by chance under a seed (splitmix64).
struct Random(u64);

impl Random {
    const fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

fn kill(process: &mut Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Declares flows with ever larger figures from `first` on until the controller is gone; sends each
/// before it is asked for, and after it was acknowledged.
fn declare(client: &Client, first: u64, told: &mpsc::Sender<(u64, bool)>) {
    for gigabytes in first.. {
        told.send((gigabytes, false)).unwrap();
        let number = gigabytes % FLOWS;
        let path = format!("/v1/flows/flow-{number}");
        if client.put::<Value>(&path, &flow(number, gigabytes)).is_err() {
            return;
        }
        told.send((gigabytes, true)).unwrap();
    }
}

#[test]
fn acknowledged_changes_survive_kills_at_any_moment() {
    let mut controller = Controller::start("kills");
    let mut random = Random(36);
    let (mut next, mut acknowledged, mut count) = (1, BTreeMap::new(), 0);
    for round in 0..KILLS {
        let api = client(&controller.files);
        let (told, heard) = mpsc::channel();
        let declares = thread::spawn(move || declare(&api, next, &told));
        thread::sleep(Duration::from_micros(random.below(60_000)));
        kill(&mut controller.process);
        declares.join().unwrap();
        let mut open = None;
        for (gigabytes, is_done) in heard {
            next = gigabytes + 1;
            open = (!is_done).then_some(gigabytes);
            if is_done {
                count += 1;
                acknowledged.insert(format!("flow-{}", gigabytes % FLOWS), gigabytes);
            }
        }
        if round % 5 == 0 {
            // While it starts, too.
            let mut starts = command("controller run net", &controller.files.0);
            let mut process = starts.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(Duration::from_micros(random.below(60_000)));
            kill(&mut process);
        }
        controller.process = Controller::run(&controller.files);
        let known = declared(&client(&controller.files));
        if let Some(open) = open {
            // The change that was under way has happened, or not.
            let name = format!("flow-{}", open % FLOWS);
            if known.get(&name) == Some(&open) {
                acknowledged.insert(name, open);
            }
        }
        assert_eq!(known, acknowledged, "round {round}");
    }
    assert!(count > KILLS / 5, "{count}");
    controller.end();
}

/// A disk of one megabyte, under the folder `net` of a test, which processes in it see alone.
struct Disk {
    holder: Child,
    folder: PathBuf,
}

impl Disk {
    fn new(files: &Files) -> Self {
        let script = "mkdir disk && mount -t tmpfs -o size=1m none disk && cp -a net/. disk/ && \
                      mount --bind disk net && echo made && exec sleep 600";
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "sh", "-c", script]).current_dir(&files.0);
        let mut holder = holder.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "made\n");
        Self { holder, folder: files.0.join("net") }
    }

    /// Returns a command in its namespace, whose last argument is the folder.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--mount"]);
        command.args(words).arg(&self.folder);
        command
    }

    fn controller(&self, files: &Files) -> Child {
        let words = [common::PROGRAM, "controller", "run"];
        Controller::begin(files, &mut self.command(&words)).0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        kill(&mut self.holder);
    }
}

#[test]
fn full_disk_refuses_changes_and_keeps_what_there_is() {
    if !is_root() {
        return skipped("a controller with a full disk", "needs root");
    }
    let mut controller = Controller::start("full-disk");
    controller.end();
    let disk = Disk::new(&controller.files);
    controller.process = disk.controller(&controller.files);
    let api = client(&controller.files);
    let mut acknowledged = BTreeMap::new();
    let mut add = |api: &Client, number: u64| {
        let request = json!({
            "from": "office",
            "to": "192.0.2.7:443",
            "per_day": format!("{number} GB"),
        });
        let name = format!("flow-{number}");
        api.put::<Value>(&format!("/v1/flows/{name}"), &request)?;
        acknowledged.insert(name, number);
        Ok::<_, ClientError>(acknowledged.clone())
    };
    let refused = (1..5000).find_map(|number| add(&api, number).err()).unwrap().to_string();
    assert!(refused.contains("the disk is full; nothing was changed"), "{refused}");
    api.put::<Value>("/v1/settings", &json!({ "mode": "auto" })).unwrap_err();
    // Killed meanwhile, it starts again, and tells what it had acknowledged.
    kill(&mut controller.process);
    controller.process = disk.controller(&controller.files);
    let api = client(&controller.files);
    let before = declared(&api);
    // With room again it goes on by itself.
    let grown = disk.command(&["mount", "-o", "remount,size=16m"]).status().unwrap();
    assert!(grown.success());
    let all = add(&api, 5000).unwrap();
    assert_eq!(before.len() + 1, all.len());
    assert_eq!(declared(&api), all);
    kill(&mut controller.process);
    controller.process = disk.controller(&controller.files);
    assert_eq!(declared(&client(&controller.files)), all);
}

/// Returns the answer to a request as it came, head and body.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream.write_all(b"Authorization: Bearer twtoken_wrong\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn secrets_are_told_to_nobody() {
    let mut controller = Controller::start("told-secrets");
    controller.end();
    let files = &controller.files;
    let settings = files.read("net/controller.toml");
    // Agents dial the address that invites name.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = settings.replace("192.0.2.1:7440", &format!("127.0.0.1:{port}"));
    let settings = settings.replacen("127.0.0.1:0", &format!("127.0.0.1:{port}"), 1);
    files.write("net/controller.toml", format!("{settings}metrics = \"127.0.0.1:0\"\n"));
    let mut run = command("controller run net", &files.0);
    let (process, ready) = Controller::begin(files, run.env("TRADEWIND_LOG", "trace"));
    controller.process = process;
    let files = &controller.files;

    let mut secrets = Vec::new();
    for (file, name) in [("admin.toml", "admin"), ("reader.toml", "reader")] {
        let text = files.read(&format!("net/{file}"));
        let token = text.lines().find_map(|line| line.strip_prefix("token = \"")).unwrap();
        let token = token.trim_end_matches('"').to_owned();
        secrets.push((name, token.rsplit('_').next().unwrap().to_owned()));
    }
    for name in ["controller.key", "operator.key"] {
        let key = files.read(&format!("net/{name}")).trim().to_owned();
        secrets.push((name, key.rsplit('_').next().unwrap().to_owned()));
    }
    let mut told = String::new();
    let invited = files.prints("invite --role gateway --site office");
    let invite = invited.split(' ').next_back().unwrap().trim().to_owned();
    let parsed: tradewind_control::Invite = invite.parse().unwrap();
    let secret = serde_json::to_value(parsed.secret).unwrap().as_str().unwrap().to_owned();
    secrets.push(("invite's secret", secret));
    secrets.push(("invite", invite.rsplit('_').next().unwrap().to_owned()));
    for (_, secret) in &secrets {
        assert!(secret.len() >= 20, "{secret}");
    }
    // Whatever is done, and refused.
    told += &files.prints(&format!("agent join {invite} --enrol-only --dir host"));
    let other = files.run(&format!("agent join {invite} --enrol-only --dir other"));
    assert!(!other.status.success());
    told += &common::text(&other.stderr);
    told += &files.prints("flow add backup --from office --to 192.0.2.7:443 --per-day 1GB");
    for words in ["status -o json", "hosts -o json", "flows -o json", "plan"] {
        let output = files.run(words);
        told += &(common::text(&output.stdout) + &common::text(&output.stderr));
    }
    let api = client(files);
    told += &api.get::<Value>("/v1/audit").unwrap().to_string();
    told += &api.get::<Value>("/v1/openapi.json").unwrap().to_string();
    let address = ready["api"].as_str().unwrap();
    for request in ["GET /v1/hosts", "PUT /v1/settings", "GET /nothing", "BAD"] {
        told += &ask(address, request);
    }
    told += &ask(ready["metrics"].as_str().unwrap(), "GET /metrics");
    assert!(told.contains("tradewind_controller_decisions_total"), "{told}");
    told += &files.prints("controller backup net copy.db");
    let listed = fs::read_dir(&files.0).unwrap();
    for entry in listed {
        told += &entry.unwrap().file_name().into_string().unwrap();
    }
    let copy = fs::read(files.0.join("copy.db")).unwrap();
    told += &String::from_utf8_lossy(&copy);
    told += &ready.to_string();
    controller.end();
    let log = controller.files.read("log");
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
    told += &log;
    for (name, secret) in &secrets {
        assert!(!told.contains(secret), "the {name} is told");
    }
}
