//! The daemon with its environment: systemd, the kill switch, a file of hints.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::world::{Guard, World, skipped, until};

/// User ids of a person, and of a system service.
const PERSON: u32 = 12345;
const SERVICE: u32 = 999;

#[test]
fn watchdog_is_notified_between_polls() {
    let Some(world) = World::new("jumpstart-watchdog") else { return };
    let config = "[observe]\ninterval = \"60 s\"\n[learn]\nttl = \"2min\"\n";
    std::fs::write(world.directory.join("slow.toml"), config).unwrap();
    let name = world.directory.join("notify");
    let systemd = UnixDatagram::bind(&name).unwrap();
    // Far shorter than an interval, far longer than a heartbeat takes.
    systemd.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut command = world.command(&["run", "--config", "slow.toml", "--dry-run"]);
    command.env("NOTIFY_SOCKET", &name).env("WATCHDOG_USEC", "100000");
    let mut daemon = Guard(world.near.run(|| command.spawn().unwrap()).unwrap());
    let notified = || {
        let mut buffer = [0; 32];
        let length = systemd.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    assert_eq!(notified(), "READY=1\n");
    for _ in 0..5 {
        assert_eq!(notified(), "WATCHDOG=1\n");
    }
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn unit_enables_the_watchdog() {
    let unit = include_str!("../../../../systemd/tradewind-jumpstart.service");
    assert!(unit.contains("\nType=notify\n") && unit.contains("\nWatchdogSec="));
}

#[test]
fn unknown_signals_are_ignored_by_daemon() {
    let Some(world) = World::new("jumpstart-signals") else { return };
    let mut command = world.command(&["run", "--dry-run"]);
    command.env("TRADEWIND_LOG", "warn");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = world.near.run(|| command.spawn().unwrap()).unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut daemon = Guard(child);
    for name in ["USR1", "USR2", "RTMIN+3"] {
        daemon.signal(name);
        let words = format!("SIG{name} has no meaning here and is ignored");
        let is_logged = log.by_ref().map(Result::unwrap).any(|line| line.contains(&words));
        assert!(is_logged, "SIG{name} ended it");
    }
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn hint_file_is_applied_and_errors_reported() {
    let Some(world) = World::new("jumpstart-hints") else { return };
    let config = std::fs::read_to_string(world.directory.join("config.toml")).unwrap();
    let config = format!("hints = \"hints.toml\"\n{config}");
    std::fs::write(world.directory.join("config.toml"), config).unwrap();
    let hints = |text: &str| std::fs::write(world.directory.join("hints.toml"), text).unwrap();
    let _open = world.connection_with_window(40);
    let mut daemon = world.daemon(&[]);
    until("a route", || world.ours().contains("initcwnd 40"));
    assert!(world.ask(&["status"]).contains("hints.toml: no such file, so there are no"));
    hints("[[hint]]\nwithin = \"10.1.0.0/16\"\nat_most = 20\n");
    until("the hint's window", || world.ours().contains("initcwnd 20"));
    hints("[[hint]]\nwithin = \"10.1.0.0/16\"\nat_least = 20\n");
    until("the mistake to be told", || world.ask(&["status"]).contains("hints.toml: `hint[0]"));
    assert!(world.ours().contains("initcwnd 20"), "{}", world.ours());
    std::fs::remove_file(world.directory.join("hints.toml")).unwrap();
    until("the window without hints", || world.ours().contains("initcwnd 40"));
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn kill_switch_works_without_a_daemon() {
    let Some(world) = World::new("jumpstart-alone") else { return };
    let directory = world.directory.join("never-made");
    let turn = |word: &str| {
        let mut command = world.command(&[word]);
        command.env("TRADEWIND_RUNTIME_DIR", &directory).stdout(Stdio::piped());
        let output = world.near.run(|| command.output().unwrap()).unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let off = turn("off");
    assert!(off.starts_with("off for daemons") && off.contains("none answers there now"), "{off}");
    assert!(directory.join("jumpstart.off").exists());
    assert!(turn("on").starts_with("on for daemons"));
    assert!(!directory.join("jumpstart.off").exists());
}

#[test]
fn kill_switch_of_root_ignores_symlinks_of_others() {
    let test = "jumpstart-astray";
    let Some(world) = World::new(test) else { return };
    let (theirs, link) = (world.directory.join("theirs"), world.directory.join("link"));
    let victim = world.directory.join("victim");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(&victim, "precious").unwrap();
    if let Err(error) = chown(&theirs, Some(PERSON), None) {
        return skipped(test, &error);
    }
    symlink(&theirs, &link).unwrap();
    let turn = |directory: &Path, word: &str| {
        let mut command = world.command(&[word]);
        command.env("TRADEWIND_RUNTIME_DIR", directory);
        let output = world.near.run(|| command.output().unwrap()).unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let refused = |directory: &Path, word: &str, why: &str| {
        let (done, line) = turn(directory, word);
        assert!(!done && line.lines().count() == 1 && line.contains(why), "{line}");
    };
    let switch = theirs.join("jumpstart.off");
    refused(&theirs, "off", &format!("the directory belongs to user {PERSON}"));
    assert!(!switch.exists());
    std::fs::write(&switch, "").unwrap();
    refused(&theirs, "on", &format!("the directory belongs to user {PERSON}"));
    // For a service's directory root acts with that user's rights, and never through a link.
    chown(&theirs, Some(SERVICE), None).unwrap();
    refused(&link, "off", "is a symbolic link");
    refused(&link, "on", "is a symbolic link");
    assert!(switch.exists());
    std::fs::remove_file(&switch).unwrap();
    symlink(&victim, &switch).unwrap();
    refused(&theirs, "off", "symbolic link");
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    std::fs::remove_file(&switch).unwrap();
    assert!(turn(&theirs, "off").0);
    assert_eq!(switch.metadata().unwrap().uid(), SERVICE);
}
