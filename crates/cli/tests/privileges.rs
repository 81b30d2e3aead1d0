//! The rights of a long-running process: the user that it continues as, its capabilities, and its
//! sandbox, also after an upgrade; and keys that others may read.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::daemon::{Folder, capabilities, field, is_root, nobody, skipped, status, until};
use common::ended;
use tradewind_grant::IdentityKey;

/// Bits of capabilities (capabilities(7)).
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const BPF: u64 = 1 << 39;

/// Checks that a process and its workers are in the sandbox, and that the process runs as `user`
/// and has no more capabilities than `retained`.
fn assert_bound(process: u32, user: u32, retained: u64) {
    assert_bound_alone(process, user, retained);
    assert_sandboxed(process);
}

/// Checks the same of a process that may have no workers.
fn assert_bound_alone(process: u32, user: u32, retained: u64) {
    let of = |name: &str| field(&status(process), name);
    let text = fs::read_to_string(status(process)).unwrap();
    let numbers = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect::<Vec<u32>>()
    };
    assert_eq!(numbers("Uid:"), [user; 4]);
    assert!(user == 0 || of("Groups") == of("Gid"), "no group of root's");
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd"] {
        assert_eq!(capabilities(process, set), retained, "{set}");
    }
    assert_has_sandbox(process);
    if user == 0 {
        return;
    }
    // Another process of the same user may read nothing of it.
    for file in ["maps", "environ", "mem"] {
        let mut look = Command::new("cat");
        look.arg(format!("/proc/{process}/{file}")).uid(user).gid(user);
        let looked = look.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(!looked.success(), "{file} can be read");
    }
}

/// Checks that a process gains no privileges, and that its workers start no programs.
fn assert_sandboxed(process: u32) {
    let filters = |thread: &Path| field(&thread.join("status"), "Seccomp_filters").parse::<u32>();
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    // Since Linux 5.9.
    let Ok(of_main) = filters(&tasks.join(process.to_string())) else { return };
    let threads = || fs::read_dir(&tasks).unwrap().flatten().map(|entry| entry.path());
    let called = |thread: &Path| fs::read_to_string(thread.join("comm")).unwrap_or_default();
    let is_exposed = |name: &str| name.starts_with("worker") || name == "telemetry\n";
    // Started, and restricted by then.
    until("workers without the right to start programs", || {
        let mut exposed = threads().filter(|thread| is_exposed(&called(thread))).peekable();
        exposed.peek().is_some() && exposed.all(|thread| filters(&thread) == Ok(of_main + 1))
    });
}

/// Checks that a process gains no privileges, and that its memory cannot be read.
fn assert_has_sandbox(process: u32) {
    let of = |name: &str| field(&status(process), name);
    assert_eq!((of("NoNewPrivs"), of("Seccomp")), ("1".into(), "2".into()));
    assert_eq!(fs::metadata(format!("/proc/{process}/mem")).unwrap().uid(), 0, "is dumpable");
}

/// Returns the capabilities of the threads with this name, once there are any.
fn of_threads(process: u32, name: &str) -> Vec<u64> {
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    let mut found = Vec::new();
    until(name, || {
        let threads = fs::read_dir(&tasks).unwrap().flatten().map(|entry| entry.path());
        let called = |thread: &Path| fs::read_to_string(thread.join("comm")).unwrap_or_default();
        let threads = threads.filter(|thread| called(thread).starts_with(name));
        let of = |thread: PathBuf| field(&thread.join("status"), "CapPrm");
        found = threads.map(|thread| u64::from_str_radix(&of(thread), 16).unwrap()).collect();
        !found.is_empty()
    });
    found
}

/// Checks the capabilities of a process's workers, once they are restricted.
fn assert_workers_keep(process: u32, retained: u64) {
    until("workers that have given up the rest", || {
        of_threads(process, "worker").iter().all(|of_worker| *of_worker == retained)
    });
}

#[test]
fn relay_and_successor_drop_root() {
    let Some(user) = nobody("drop") else { return };
    let folder = Folder::new("drop", "run_as = 'nobody'\nmetrics = '127.0.0.1:0'\n");
    let mut relay = folder.relay();
    assert_bound(relay.number(), user, 0);
    // The key is root's alone, and the next process gets it all the same.
    let key = fs::metadata(folder.key()).unwrap();
    assert_eq!((key.uid(), key.mode() & 0o777), (0, 0o600));
    let identity = relay.ready["identity"].clone();
    let filters = |process| field(&status(process), "Seccomp_filters");
    let first = filters(relay.number());
    for _ in 0..2 {
        let successor = folder.upgrade(&mut relay);
        assert_bound(successor, user, 0);
        assert_eq!(relay.ready["identity"], identity);
        assert_eq!(filters(successor), first, "each upgrade binds it once more");
    }
}

#[test]
fn unneeded_capabilities_are_dropped() {
    let Some(user) = nobody("capabilities") else { return };
    let (warm, plain) = ("run_as = 'nobody'\n[leg.dial]\nwarm = 4\n", "run_as = 'nobody'\n");
    let folder = Folder::new("capabilities", warm);
    let mut relay = folder.relay();
    assert_bound(relay.number(), user, NET_ADMIN);
    assert_workers_keep(relay.number(), 0);
    let successor = folder.upgrade(&mut relay);
    assert_bound(successor, user, NET_ADMIN);
    assert_workers_keep(successor, 0);
    folder.configure(plain);
    let successor = folder.upgrade(&mut relay);
    let sets = ["CapPrm", "CapEff", "CapInh", "CapAmb"];
    assert_eq!(sets.map(|set| capabilities(successor, set)), [0; 4]);
    // Dropped capabilities do not come back, and that is logged.
    folder.configure(warm);
    let successor = folder.upgrade(&mut relay);
    assert_eq!(sets.map(|set| capabilities(successor, set)), [0; 4]);
    folder.wait_for_log("has not kept CAP_NET_ADMIN, which this configuration takes: restart it");
}

#[test]
fn learning_relay_drops_root() {
    let Some(user) = nobody("learns") else { return };
    let folder = Folder::new("learns", "");
    let socket = folder.of_user(user).join("jumpstart.sock");
    folder.configure("run_as = 'root'\n[jumpstart]\n");
    let through = folder.relay().ready["jumpstart"]["through"].clone();
    assert!(through.is_string(), "{through}");
    let learns = format!("[jumpstart]\nsocket = '{}'\n", socket.display());
    folder.configure(&format!("run_as = 'nobody'\n{learns}"));
    let mut relay = folder.relay();
    assert_eq!(relay.ready["jumpstart"]["through"], through, "{}", relay.ready);
    assert_bound(relay.number(), user, NET_ADMIN | BPF);
    let successor = folder.upgrade(&mut relay);
    assert_eq!(relay.ready["jumpstart"]["through"], through, "{}", relay.ready);
    assert_bound(successor, user, NET_ADMIN | BPF);
}

#[test]
fn changed_unreadable_key_requires_restart() {
    let Some(_) = nobody("replaced") else { return };
    let folder = Folder::new("replaced", "run_as = 'nobody'\n");
    let relay = folder.relay();
    fs::remove_file(folder.key()).unwrap();
    folder.keygen("identity");
    relay.signal("USR2", relay.number());
    folder.wait_for_log("upgrade failed, nothing has changed: the new process says: ");
    folder.wait_for_log("this process's user may not read it: restart instead");
    assert_eq!(folder.processes(), [relay.number()]);
}

#[test]
fn unreadable_config_is_reported_at_start() {
    let Some(_) = nobody("unreadable") else { return };
    let folder = Folder::new("unreadable", "run_as = 'nobody'\n");
    let relay = folder.relay();
    relay.signal("HUP", relay.number());
    folder.wait_for_log(&format!("{}: taken over", folder.config().display()));
    assert!(!folder.log().contains("may not"), "{}", folder.log());
    drop(relay);
    fs::set_permissions(folder.config(), fs::Permissions::from_mode(0o600)).unwrap();
    // In a directory that only root may read.
    let (program, inside) = (folder.0.join("tradewind"), folder.0.join("inside"));
    fs::create_dir(&inside).unwrap();
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(&program, inside.join("tradewind")).unwrap();
    symlink(inside.join("tradewind"), &program).unwrap();
    let relay = folder.relay();
    folder.wait_for_log(
        "relay.toml: user `nobody` may not read it, so that SIGHUP and SIGUSR2 change",
    );
    folder.wait_for_log("user `nobody` may not start it, so that SIGUSR2 changes nothing");
    relay.signal("HUP", relay.number());
    folder.wait_for_log("nothing of it is taken over, what was in force before stays");
    relay.signal("USR2", relay.number());
    folder.wait_for_log("upgrade failed, nothing has changed: ");
    assert_eq!(folder.processes(), [relay.number()]);
}

#[test]
fn access_log_is_reopened_as_other_user() {
    let Some(user) = nobody("access-log") else { return };
    let folder = Folder::empty("access-log");
    let log = folder.of_user(user).join("access.log");
    let destination = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "run_as = 'nobody'\ndirect = true\nallow_loopback = true\nworkers = 1\n\
         [[forward]]\nlisten = '127.0.0.1:0'\nto = '{}'\n\
         [routes]\ndefault = 'direct'\n[access_log]\nto = '{}'\n",
        destination.local_addr().unwrap(),
        log.display(),
    );
    fs::write(folder.config(), text).unwrap();
    let gateway = folder.start("gateway", &[]);
    let listener: SocketAddr = gateway.ready["listen"][0].as_str().unwrap().parse().unwrap();
    let has_line = || {
        let stream = TcpStream::connect(listener).unwrap();
        drop((destination.accept().unwrap(), stream));
        fs::read_to_string(&log).unwrap_or_default().contains("\"outcome\"")
    };
    until("a line", has_line);
    fs::rename(&log, log.with_extension("1")).unwrap();
    until("a line in a new file", has_line);
    assert_eq!(fs::metadata(&log).unwrap().uid(), user);
}

#[test]
fn relay_staying_root_warns_and_is_sandboxed() {
    if !is_root() {
        return skipped("root", "needs root");
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let folder = Folder::new("root", "");
    if users.lines().any(|line| line.starts_with("tradewind:")) {
        skipped("root", "there is a user `tradewind`");
    } else {
        let mut relay = folder.relay();
        assert_bound(relay.number(), 0, 0);
        folder.wait_for_log("(`tradewind`: no such user on this host): make it (`systemd-sysusers");
        assert_bound(folder.upgrade(&mut relay), 0, 0);
        folder.configure("[leg.dial]\nwarm = 4\n");
        assert_bound(folder.relay().number(), 0, NET_ADMIN);
    }
    let relay = folder.start("relay", &["--user", "root"]);
    let of = |process: u32| field(&status(process), "Seccomp_filters");
    assert_eq!(of(relay.number()), of(std::process::id()));
    assert!(!folder.log().contains("runs as root"), "{}", folder.log());
}

#[test]
fn intercepting_gateway_workers_drop_net_admin() {
    let Some(user) = nobody("workers") else { return };
    let folder = Folder::empty("workers");
    let tproxy = "[[tproxy]]\ndestinations = ['192.0.2.0/24:80']\nport = 7001\n";
    for (more, retained) in [("", 0), ("local_output = true\n", NET_RAW)] {
        let text = format!(
            "run_as = 'nobody'\ndirect = true\nworkers = 1\nmetrics = '127.0.0.1:0'\n{tproxy}\
             {more}[routes]\ndefault = 'direct'\n"
        );
        fs::write(folder.config(), text).unwrap();
        let gateway =
            folder.start_apart(&["gateway", "--config", folder.config().to_str().unwrap()]);
        assert_bound(gateway.number(), user, NET_ADMIN | retained);
        assert_workers_keep(gateway.number(), retained);
        assert_eq!(of_threads(gateway.number(), "telemetry"), [0]);
    }
}

#[test]
fn forwarder_drops_root_and_nft_holds_rules() {
    let Some(user) = nobody("forward") else { return };
    let folder = Folder::empty("forward");
    let forwarder =
        folder.start_apart(&["forward", "--user", "nobody", "192.0.2.1:7000=192.0.2.9:443"]);
    assert_eq!(forwarder.ready["ready"], "forward", "{}", folder.log());
    let of = |process: u32| ["CapPrm", "CapAmb"].map(|set| capabilities(process, set));
    assert_eq!(of(forwarder.number()), [0; 2]);
    assert_has_sandbox(forwarder.number());
    let children = format!("/proc/{0}/task/{0}/children", forwarder.number());
    let children = fs::read_to_string(children).unwrap();
    let tool: u32 = children.trim().parse().unwrap();
    assert_eq!(of(tool), [NET_ADMIN; 2]);
    for process in [forwarder.number(), tool] {
        assert_eq!(field(&status(process), "Uid"), user.to_string());
    }
    forwarder.signal("TERM", forwarder.number());
    until("the end of its tool", || !status(tool).exists());
}

#[test]
fn probe_responder_drops_root_and_capabilities() {
    let Some(user) = nobody("responder") else { return };
    let folder = Folder::empty("responder");
    let words = ["probe", "responder", "--listen", "127.0.0.1:0", "--user", "nobody"];
    let mut command = folder.command();
    command.args(words);
    let responder = folder.begin(command);
    assert_bound_alone(responder.number(), user, 0);
    let missing = ended(folder.command().args(&words[..5]).arg("tradewind-no-such-user"));
    let line = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(line, "tradewind: user `tradewind-no-such-user`: no such user on this host\n");
}

#[test]
fn jumpstart_daemon_stays_root_with_few_capabilities() {
    if !is_root() {
        return skipped("daemon", "needs root");
    }
    let folder = Folder::empty("daemon");
    for (more, retained) in [(&[][..], NET_ADMIN | BPF), (&["--dry-run"][..], 0)] {
        let daemon = folder.start_apart(&[&["jumpstart", "run"][..], more].concat());
        assert_eq!(daemon.ready["ready"], "jumpstart", "{}", folder.log());
        assert_bound_alone(daemon.number(), 0, retained);
    }
}

#[test]
fn unknown_user_is_refused_in_one_line() {
    if !is_root() {
        return skipped("missing", "needs root");
    }
    let folder = Folder::new("missing", "");
    let mut command = folder.command();
    command.args(["relay", "--user", "tradewind-no-such-user", "--config"]).arg(folder.config());
    let output = ended(&mut command);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line, "tradewind: user `tradewind-no-such-user`: no such user on this host\n");
}

/// Returns the number of copies of `wanted` in the writable memory of a process.
fn copies(process: u32, wanted: &[u8]) -> usize {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let mut memory = fs::File::open(format!("/proc/{process}/mem")).unwrap();
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; usize::try_from(number(end) - number(start)).unwrap()];
        memory.seek(SeekFrom::Start(number(start))).unwrap();
        // Memory that is only reserved, for a stack say, cannot be read.
        if memory.read_exact(&mut bytes).is_ok() {
            count += bytes.windows(wanted.len()).filter(|window| *window == wanted).count();
        }
    }
    count
}

#[test]
fn relay_of_64_workers_holds_its_key_once_or_twice() {
    if !is_root() {
        return skipped("copies", "only root looks into another process's memory");
    }
    let folder = Folder::new("copies", "[packet]\nlisten = '127.0.0.1:0'\n");
    let text = fs::read_to_string(folder.config()).unwrap();
    fs::write(folder.config(), text.replace("workers = 1", "workers = 64")).unwrap();
    let relay = folder.relay();
    let text = fs::read_to_string(folder.key()).unwrap();
    let key: IdentityKey = text.trim().parse().unwrap();
    let secret = key.to_secret_bytes();
    until("64 workers", || {
        fs::read_dir(format!("/proc/{}/task", relay.number())).unwrap().count() > 64
    });
    let count = copies(relay.number(), &*secret);
    assert!((1..=2).contains(&count), "{count} copies");
    assert_eq!(copies(relay.number(), text.trim().as_bytes()), 0, "of the file");
}

#[test]
fn world_readable_key_is_refused_in_one_line() {
    let folder = Folder::new("key", "");
    let open = |name: &str| {
        let file = folder.0.join(name);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        file
    };
    let refused = |command: &mut Command, file: &Path| {
        let output = ended(command);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && line.lines().count() == 1, "{line}");
        assert!(line.contains(&file.display().to_string()), "{line}");
        assert!(
            line.ends_with("others may read or change it (mode 644); `chmod 600` it\n"),
            "{line}"
        );
    };
    let file = open("identity.key");
    refused(folder.command().args(["relay", "--config"]).arg(folder.config()), &file);
    let file = open("operator.key");
    let spec = folder.config();
    refused(folder.command().args(["grant", "issue", "--key"]).arg(&file).arg(spec), &file);
}
