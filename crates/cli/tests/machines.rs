//! `tradewind machines` with a program in Terraform's place, whose state the test writes; real
//! Terraform is tried by `make test-machines`.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use common::controller::Controller;
use common::{Files, command, text};
use serde_json::{Value, json};
use tradewind_config::MachinesConfig;
use tradewind_machines::{Tag, document, order};
use tradewind_model::catalogue::Catalogue;

/// Notes its commands and the invites that it gets; `apply` takes the state that the test wrote.
const TERRAFORM: &str = r#"#!/bin/sh
[ "$1" = show ] || echo "$* $TF_VAR_invites" >>../runs
case "$1 $2" in
  "show -json")
    state=$(cat state.json)
    case $3 in *.tfplan) state="{\"prior_state\": $state}" ;; esac
    echo "$state"; exit ;;
  "init "*) mkdir -p .terraform; [ -e state.json ] || echo '{}' >state.json ;;
  "plan "*) : >look.tfplan; [ ! -e ../refreshed.json ] || mv ../refreshed.json state.json ;;
  "apply "*) [ ! -e ../fails ] || exit 1; mv ../next.json state.json ;;
  "destroy "*) echo '{}' >state.json ;;
esac
"#;

const HEAD: &str = "name = 'net'\npackage = 'https://example.org/t.deb'\nsha256 = \
    '0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef'\n";

struct Trial(Controller);

impl Trial {
    fn start(test: &str) -> Self {
        let files = Files::new(test);
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        files.prints(&format!(
            "controller init net --agents {free} --api 127.0.0.1:0 --advertise {free}"
        ));
        let program = files.write("terraform", TERRAFORM);
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        let process = Controller::run(&files);
        Self(Controller { files, process })
    }

    /// Makes a machine `a`, which does not boot.
    fn with_one(test: &str) -> Self {
        let trial = Self::start(test);
        trial.file(&[("a", "c5n.large")]);
        trial.state("next.json", &["a1"]);
        trial.machines(" --yes");
        trial
    }

    /// Writes the file with these machines of a region, each a name and a type.
    fn file(&self, machines: &[(&str, &str)]) {
        let section = |(name, kind): &(&str, &str)| {
            format!("[[machine]]\nname = '{name}'\nregion = 'aws:us-east-1'\ntype = 'aws:{kind}'\n")
        };
        let machines: String = machines.iter().map(section).collect();
        self.0.files.write("net.toml", format!("{HEAD}{machines}"));
    }

    /// Writes a state of Terraform with these machines: a letter, which is the name, and a number,
    /// which distinguishes machines of this name.
    fn state(&self, name: &str, machines: &[&str]) {
        let resource = |machine: &&str| {
            json!({"mode": "managed", "type": "aws_instance", "name": machine[..1],
                "values": {"id": format!("i-{machine}")}})
        };
        let resources: Vec<Value> = machines.iter().map(resource).collect();
        let state = json!({"values": {"root_module": {"resources": resources}}});
        self.0.files.write(name, state.to_string());
    }

    /// Runs the command; returns its exit code and the answer.
    fn machines(&self, more: &str) -> (i32, Value) {
        let arguments = format!(
            "machines net.toml --controller net --terraform {}/terraform -o json \
             --patience 0s{more}",
            self.0.files.0.display()
        );
        let output = command(&arguments, &self.0.files.0).output().unwrap();
        let answer = serde_json::from_slice(&output.stdout);
        (output.status.code().unwrap(), answer.unwrap_or_else(|_| text(&output.stderr).into()))
    }

    /// Returns the last run of Terraform, and the invites in it.
    fn last_run(&self) -> (String, Value) {
        let runs = self.0.files.read("runs");
        let last = runs.lines().last().unwrap();
        let (command, invites) = last.rsplit_once(' ').unwrap();
        (command.to_owned(), serde_json::from_str(invites).unwrap_or_default())
    }

    /// Has a host join by the invite that a machine was given.
    fn boot(&self, machine: &str) {
        let (_, invites) = self.last_run();
        let invite = invites[machine].as_str().unwrap();
        let folder = format!("agent-{machine}-{}", invite.len());
        let _ = fs::remove_dir_all(self.0.files.0.join(&folder));
        self.0.files.prints(&format!("agent join {invite} --enrol-only --dir {folder}"));
    }

    /// Returns hosts' names and whether they are revoked.
    fn hosts(&self) -> Vec<(String, bool)> {
        let hosts = self.0.files.json("hosts --controller net -o json");
        let hosts = hosts["hosts"].as_array().unwrap();
        let host = |it: &Value| (it["id"].as_str().unwrap().to_owned(), it["state"] == "revoked");
        hosts.iter().map(host).collect()
    }
}

fn of<'a>(answer: &'a Value, key: &str) -> Vec<&'a str> {
    let machines = answer["machines"].as_array().unwrap_or_else(|| panic!("{answer}"));
    machines.iter().map(|machine| machine[key].as_str().unwrap()).collect()
}

#[test]
fn nothing_is_made_before_prices_are_shown() {
    let trial = Trial::start("machines-prices");
    trial.file(&[("a", "c5n.large"), ("b", "m5.8xlarge")]);
    let (code, answer) = trial.machines("");
    assert_eq!((code, of(&answer, "action")), (0, vec!["make", "make"]));
    let hours: Vec<f64> = answer["orders"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["usd_per_hour"].as_f64().unwrap())
        .collect();
    let sum = answer["usd_per_hour"].as_f64().unwrap();
    assert!(sum > 0.5 && (sum - hours.iter().sum::<f64>()).abs() < 1e-9, "{answer}");
    let files = &trial.0.files;
    let table = files.prints("machines net.toml --controller net");
    assert!(table.contains("all machines: $") && table.contains("us-east-1"), "{table}");
    assert!(!files.0.join("net.machines").exists() && !files.0.join("runs").exists());
}

#[test]
fn machines_join_by_their_invites_and_leave_with_their_hosts() {
    let trial = Trial::start("machines-life");
    trial.file(&[("a", "c5n.large"), ("b", "c5n.large")]);
    trial.state("next.json", &["a1", "b1"]);
    let (code, answer) = trial.machines(" --yes");
    // Nobody has booted them.
    assert_eq!((code, of(&answer, "state")), (1, vec!["not joined", "not joined"]));
    let (_, first) = trial.last_run();
    assert_ne!(first["a"], first["b"]);
    trial.boot("a");
    trial.boot("b");
    // The agents do not run, which is not as it should be; but they have joined.
    trial.state("next.json", &["a1", "b1"]);
    let (code, answer) = trial.machines(" --yes");
    assert_eq!((code, of(&answer, "action")), (1, vec!["keep", "keep"]));
    let run = "apply -auto-approve -input=false -no-color".to_owned();
    assert_eq!(trial.last_run(), (run, json!({})));

    // Somebody removes b; a gets another type. Terraform fails at first: nobody is revoked.
    trial.file(&[("a", "m5.8xlarge"), ("b", "c5n.large")]);
    trial.state("refreshed.json", &["a1"]);
    trial.state("next.json", &["a2", "b2"]);
    trial.0.files.write("fails", "");
    let (code, said) = trial.machines(" --yes");
    assert!(code == 1 && said.as_str().unwrap().contains("`terraform apply` failed"), "{said}");
    assert_eq!(trial.hosts().iter().filter(|(_, is_revoked)| *is_revoked).count(), 0);
    fs::remove_file(trial.0.files.0.join("fails")).unwrap();
    // What that run had begun may still join.
    trial.boot("a");
    let (_, answer) = trial.machines(" --yes");
    assert_eq!(of(&answer, "action"), ["replace", "make"]);
    let (run, second) = trial.last_run();
    assert!(run.contains("-replace=aws_instance.a"), "{run}");
    assert!(second["b"].is_string() && second["b"] != first["b"], "{second}");
    let hosts = trial.hosts();
    assert!(hosts.len() == 3 && hosts.iter().all(|(_, is_revoked)| *is_revoked), "{hosts:?}");

    // b is no longer wanted.
    trial.boot("b");
    trial.file(&[("a", "m5.8xlarge")]);
    trial.state("next.json", &["a2"]);
    let (_, answer) = trial.machines(" --yes");
    assert_eq!(of(&answer, "action"), ["keep", "remove"]);
    let hosts = trial.hosts();
    assert!(hosts.len() == 4 && hosts.iter().all(|(_, is_revoked)| *is_revoked), "{hosts:?}");

    // What was made goes without the file.
    trial.0.files.write("net.toml", "no longer a file of machines");
    let (code, answer) = trial.machines(" --destroy --yes");
    assert_eq!((code, of(&answer, "state")), (0, vec!["removed"]));
    assert_eq!(trial.machines(" --destroy").1["machines"], json!([]));
}

#[test]
fn machine_whose_host_was_revoked_is_made_anew() {
    let trial = Trial::with_one("machines-revoked");
    trial.boot("a");
    let (host, _) = trial.hosts().remove(0);
    trial.0.files.prints(&format!("host revoke {host} --controller net"));
    trial.state("next.json", &["a2"]);
    let (_, answer) = trial.machines(" --yes");
    assert_eq!(of(&answer, "action"), ["replace"]);
    assert!(trial.last_run().1["a"].is_string());
}

#[test]
fn another_controller_is_refused() {
    let mut trial = Trial::with_one("machines-controllers");
    trial.0.end();
    fs::rename(trial.0.files.0.join("net"), trial.0.files.0.join("before")).unwrap();
    trial.0.files.prints(
        "controller init net --agents 127.0.0.1:0 --api 127.0.0.1:0 --advertise 192.0.2.1:7440",
    );
    trial.0.process = Controller::run(&trial.0.files);
    let (code, said) = trial.machines(" --yes");
    let said = said.as_str().unwrap();
    assert!(code == 2 && said.contains("belong to the controller"), "{said}");
    // What costs money goes all the same.
    assert_eq!(trial.machines(" --destroy --yes").0, 0);
}

#[test]
fn other_region_for_the_same_machine_is_refused() {
    let trial = Trial::with_one("machines-region");
    let text = trial.0.files.read("net.toml").replace("us-east-1", "eu-west-1");
    trial.0.files.write("net.toml", text);
    let (code, said) = trial.machines(" --yes");
    assert!(
        code == 2 && said.as_str().unwrap().contains("give the one in aws:eu-west-1"),
        "{said}"
    );
}

#[test]
fn name_cannot_change_while_machines_are_there() {
    let trial = Trial::with_one("machines-name");
    let text = trial.0.files.read("net.toml").replace("'net'", "'other'");
    trial.0.files.write("net.toml", text);
    let (code, said) = trial.machines(" --yes");
    let said = said.as_str().unwrap();
    assert!(code == 2 && said.contains("`name` is `other`"), "{said}");
}

#[test]
fn machines_go_without_the_controller() {
    let mut trial = Trial::with_one("machines-alone");
    trial.0.end();
    let (code, answer) = trial.machines(" --destroy --yes");
    assert_eq!((code, of(&answer, "state")), (0, vec!["removed"]));
    assert!(trial.last_run().0.starts_with("destroy -auto-approve"));
}

#[test]
fn mistakes_are_one_line() {
    let files = Files::new("machines-mistakes");
    let machine = "[[machine]]\nname = 'a'\nregion = 'aws:us-esat-1'\n";
    files.write("net.toml", format!("{HEAD}{machine}"));
    files.refuses_with("machines net.toml", 2, "machine `a`: no region `aws:us-esat-1` in the");
    files.write("net.toml", HEAD);
    files.refuses_with("machines net.toml", 2, "net.toml: configuration, `machine`: expected a");
    let text = format!("{HEAD}{}", machine.replace("esat", "east"));
    files.write("net.toml", &text);
    let nothing = "net.machines: nothing was ever made";
    files.refuses_with("machines net.toml --destroy --yes", 2, nothing);
    files.refuses_with("machines net.toml --sweep", 2, "net.machines: nothing was ever made");
    files.refuses_with("machines net.toml --yes", 2, "net/admin.toml: ");
}

#[test]
fn relays_of_a_plan_are_machines() {
    let files = Files::new("machines-plan");
    files.write("rtt.csv", common::RTTS);
    files.write("net.toml", format!("plan = 'plan.json'\n{HEAD}[gcp]\nproject = 'p'\n"));
    let problem = "budget_usd = 1.0
        regions = ['gcp:europe-west2']
        rtt_tables = ['rtt.csv']
        [[site]]
        id = 'a'
        [[site]]
        id = 'b'
        [[flow]]
        id = 'f'
        from = 'a'
        to = 'b'
        volume = '2 GB'
        [egress]
        usd_per_gb = 0.08
        ";
    files.write("problem.toml", problem);
    let output = files.run("plan --problem problem.toml -o json");
    assert!(output.status.success(), "{}", text(&output.stderr));
    files.write("plan.json", output.stdout);
    let answer = files.json("machines net.toml -o json");
    let order = &answer["orders"][0];
    assert_eq!(
        (&order["machine"], &order["region"]),
        (&"gcp-europe-west2-1".into(), &"gcp:europe-west2".into())
    );
    assert!(order["type"].as_str().unwrap().starts_with("gcp:"), "{order}");
}

/// Runs the script of a machine's first boot, with tools that note what they are told.
#[test]
fn first_boot_installs_the_package_and_joins() {
    let files = Files::new("machines-boot");
    let package = "the package";
    let sum = format!("printf '{package}' | sha256sum");
    let sum = text(&Command::new("sh").args(["-c", &sum]).output().unwrap().stdout);
    let digest = sum.split(' ').next().unwrap();
    let head =
        HEAD.replace("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", digest);
    let machine = "[[machine]]\nname = 'a'\nregion = 'aws:us-east-1'\n";
    let config = MachinesConfig::parse(&format!("{head}{machine}"), Path::new("")).unwrap();
    let orders = [order(&config.machine[0], &Catalogue::builtin()).unwrap()];
    let document = document(&config, &orders, &Tag::new("net", 1), &[].into());
    let script = document["resource"]["aws_instance"]["a"]["user_data"].as_str().unwrap();
    let script = script.replace("${lookup(var.invites, \"a\", \"\")}", "twinvite1_x");
    let mark = files.0.join("mark").display().to_string();
    let script = script.replace("/var/lib/tradewind-machine", &mark).replace("sleep 5", "sleep 0");
    fs::create_dir(files.0.join("bin")).unwrap();
    let folder = files.0.display();
    for (tool, does) in [
        // The first answer is cut off.
        (
            "curl",
            format!(
                "[ -e {folder}/once ] || {{ echo x >tradewind.deb; : >{folder}/once; exit; }}\n\
                 printf '{package}' >tradewind.deb"
            ),
        ),
        ("apt-get", format!("echo \"apt $*\" >>{folder}/did")),
        ("runuser", format!("read line; echo \"$* $line\" >>{folder}/did")),
        ("systemctl", format!("echo \"$*\" >>{folder}/did")),
    ] {
        let path = files.write(&format!("bin/{tool}"), format!("#!/bin/sh\n{does}\n"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    files.write("script", script);
    let run = || {
        let path = format!("{folder}/bin:{}", std::env::var("PATH").unwrap());
        let output = Command::new("sh").arg(files.0.join("script")).env("PATH", path).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output.stdout));
    };
    run();
    let expected = "apt -qq install -y ./tradewind.deb\n\
        -u tradewind -- tradewind agent join --enrol-only - twinvite1_x\n\
        enable --now tradewind-agent\n";
    assert_eq!(files.read("did"), expected);
    // At the next boot, nothing.
    run();
    assert_eq!(files.read("did"), expected);
}
