//! `tradewind deploy` to hosts that are folders: what stands for `ssh` runs the scripts of hosts
//! here, with their paths inside the folder.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use common::controller::Controller;
use common::{Files, PROGRAM, command, text};
use serde_json::Value;

/// Runs the last argument, the line for the remote shell, as if it were on the host. The
/// destination before it is the folder.
const SSH: &str = r#"#!/bin/sh
while [ $# -gt 2 ]; do shift; done
line=$(printf '%s\n' "$2" | sed "s|/var/lib/tradewind|$1/data|g; s|/var/cache/tradewind|$1/cache|g
s|/usr/bin/tradewind|$1/program|g; s|/run/tradewind-deploy|$1/lock|g; s|/etc/tradewind|$1/etc|g
s|/run/systemd/system|$1/systemd|g")
exec sh -c "$line"
"#;

/// The tools that scripts of hosts have as root. There are no packages.
const TOOLS: [(&str, &str); 5] = [
    ("ssh", SSH),
    ("id", "#!/bin/sh\necho 0\n"),
    ("su", "#!/bin/sh\nexec sh -c \"$5\"\n"),
    ("getent", "#!/bin/sh\n:\n"),
    ("dpkg-query", "#!/bin/sh\nexit 1\n"),
];

/// The program of a host, whose agent has its folder there.
const AGENT: &str = r#"#!/bin/sh
# VERSION
case "$1 $2" in
  "doctor -o") echo '{}' ;;
  "agent join") JOIN ;;
  "agent "*) RUN ;;
  *) exec PROGRAM "$@" ;;
esac
"#;
const HONEST: &str = "exec PROGRAM \"$@\" --dir FOLDER/data/agent";
/// An agent that runs, and says so, but nothing of it reaches the controller.
const UNHEARD: &str = "case $2 in
    run) exec sleep 600 ;;
    status) ! [ -e FOLDER/pid ] || ! grep -q . /proc/$(cat FOLDER/pid)/cmdline ||
      echo '\"is_running\": true' ;;
    *) exec PROGRAM \"$@\" --dir FOLDER/data/agent ;;
  esac";

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The patience with an agent that is heard, and with one that is not.
const LONG: &str = "60s";
const SHORT: &str = "2s";

/// A controller that agents reach, and the folder of its hosts.
struct Overlay(Controller);

impl Overlay {
    fn start(test: &str) -> Self {
        let files = Files::new(test);
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        files.prints(&format!(
            "controller init net --agents {free} --api 127.0.0.1:0 --advertise {free}"
        ));
        fs::create_dir(files.0.join("bin")).unwrap();
        for (name, script) in TOOLS {
            Self::script(&files, &format!("bin/{name}"), script);
        }
        fs::create_dir_all(files.0.join("host/data")).unwrap();
        let process = Controller::run(&files);
        Self(Controller { files, process })
    }

    fn script(files: &Files, name: &str, script: &str) {
        let path = files.write(name, script);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Writes a version of the program, whose agent does these instead of joining and of all else.
    fn package(&self, name: &str, join: &str, run: &str) {
        let files = &self.0.files;
        let script = AGENT.replace("VERSION", name).replace("JOIN", join).replace("RUN", run);
        let folder = files.0.join("host");
        let script = script.replace("PROGRAM", PROGRAM).replace("FOLDER", folder.to_str().unwrap());
        Self::script(files, name, &script);
    }

    /// Deploys a version, and returns the answer about the host.
    fn deploy(&self, package: &str, patience: &str) -> Value {
        let files = &self.0.files;
        let folder = files.0.join("host").display().to_string();
        let start = format!(
            "{folder}/program agent run </dev/null >{folder}/log 2>&1 & echo $! >{folder}/pid"
        );
        let stop = format!("kill $(cat {folder}/pid)");
        files.write(
            "hosts.toml",
            format!(
                "[[host]]\nname = 'host'\nssh = '{folder}'\nrole = 'gateway'\nsite = 'office'\n\
                 package = '{package}'\nstart = '{start}'\nstop = '{stop}'\n"
            ),
        );
        let arguments = format!("deploy hosts.toml --controller net --patience {patience} -o json");
        let path = format!("{}/bin:{}", files.0.display(), std::env::var("PATH").unwrap());
        let output = command(&arguments, &files.0).env("PATH", path).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        answer["hosts"][0].clone()
    }

    /// Returns the hosts at the controller and their states.
    fn states(&self) -> Vec<(String, String)> {
        let known = self.0.files.json("hosts --controller net -o json");
        let word = |host: &Value, key: &str| host[key].as_str().unwrap().to_owned();
        let hosts = known["hosts"].as_array().unwrap();
        hosts.iter().map(|host| (word(host, "id"), word(host, "state"))).collect()
    }

    fn state_of(&self, host: &str) -> String {
        let states = self.states();
        states.into_iter().find(|(name, _)| name == host).map(|(_, state)| state).unwrap()
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if let Ok(agent) = fs::read_to_string(self.0.files.0.join("host/pid")) {
            let _ended_already = Command::new("kill").arg(agent.trim()).status();
        }
    }
}

/// Waits until a host is in a state at the controller.
fn until(overlay: &Overlay, host: &str, state: &str) {
    let begun = Instant::now();
    while overlay.state_of(host) != state {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", overlay.states());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn host_that_names_another_one_gets_its_own_name() {
    let overlay = Overlay::start("deploy-names");
    let files = &overlay.0.files;
    // Another host of the same role and place joins meanwhile, whose name it gives for its own.
    let line = files.prints("invite --role gateway --site office --controller net");
    files.write("host/invite", line.rsplit(' ').next().unwrap());
    let join = "PROGRAM \"$@\" --dir FOLDER/data/agent >/dev/null || exit 1
    PROGRAM agent join --enrol-only --dir FOLDER/bystander - <FOLDER/invite";
    // Its agent is not heard, so that what has begun is undone.
    overlay.package("hostile", join, UNHEARD);
    let answer = overlay.deploy("hostile", SHORT);
    assert_eq!((&answer["outcome"], &answer["joined"]), (&"failed".into(), &"office-1".into()));
    assert_eq!(answer["reason"], "agent-not-connected", "{answer}");
    assert!(!answer["problem"].as_str().unwrap().contains("half done"), "{answer}");
    assert_eq!(overlay.state_of("office-1"), "revoked");
    assert_ne!(overlay.state_of("office-2"), "revoked");
}

#[test]
fn upgrade_whose_agent_is_not_heard_is_undone() {
    let overlay = Overlay::start("deploy-upgrade");
    overlay.package("first", HONEST, HONEST);
    let answer = overlay.deploy("first", LONG);
    assert_eq!(answer["outcome"], "done", "{answer}");
    assert_eq!(overlay.deploy("first", LONG)["outcome"], "unchanged");
    overlay.package("second", HONEST, UNHEARD);
    let answer = overlay.deploy("second", SHORT);
    assert_eq!((&answer["outcome"], &answer["found"]), (&"failed".into(), &VERSION.into()));
    assert_eq!(answer["reason"], "agent-not-connected", "{answer}");
    let problem = answer["problem"].as_str().unwrap();
    assert!(problem.contains("after 2 s the controller says: "), "{problem}");
    assert!(!problem.contains("half done"), "{problem}");
    let files = &overlay.0.files;
    assert_eq!(files.read("host/program"), files.read("first"));
    until(&overlay, "office-1", "well");
    assert_eq!(overlay.deploy("first", LONG)["outcome"], "unchanged");
    // The next one is heard.
    overlay.package("third", HONEST, HONEST);
    let answer = overlay.deploy("third", LONG);
    assert_eq!((&answer["outcome"], &answer["joined"]), (&"done".into(), &"office-1".into()));
    assert_eq!(files.read("host/program"), files.read("third"));
}
