//! Real connections selected by the control group in which their sockets were created.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::skipped;
use tradewind_net::cgroup;
use tradewind_net::sock_diag::{Filter, SockDiag};

/// A script that dials the port in its last argument from inside the group in its first, and stays.
const DIAL: &str =
    "echo $$ > \"$0/cgroup.procs\" && exec 3<>/dev/tcp/127.0.0.1/$1 && exec sleep 600";

/// A control group below this process's, with another inside; removed with the test.
struct Group {
    directory: PathBuf,
    child: Option<Child>,
}

impl Group {
    fn new() -> Option<Self> {
        let made = cgroup::own().and_then(|own| {
            let directory = own.join(format!("tw-sock-diag-{}", std::process::id()));
            fs::create_dir_all(directory.join("inner"))
                .map_err(|error| tradewind_net::NetError::system("make a control group", error))?;
            Ok(Self { directory, child: None })
        });
        made.map_err(|error| skipped(&error)).ok()
    }

    /// Starts a process inside `inner` that dials `port`.
    fn dial(&mut self, port: u16) {
        let mut command = Command::new("bash");
        command.args(["-c", DIAL]).arg(self.directory.join("inner")).arg(port.to_string());
        self.child = Some(command.stdin(Stdio::null()).spawn().unwrap());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ended = (child.kill(), child.wait());
        }
        // The kernel releases a group a moment after its last process.
        for directory in [self.directory.join("inner"), self.directory.clone()] {
            let removed = (0..200).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                fs::remove_dir(&directory).is_ok()
            });
            if !removed {
                skipped(&format!("{} could not be removed", directory.display()));
            }
        }
    }
}

/// Returns the local ports of the connections with an end at `port` that belong to `cgroup`.
fn seen(port: u16, cgroup: PathBuf) -> Vec<u16> {
    let filter = Filter { ports: vec![port], cgroup: Some(cgroup), ..Filter::default() };
    let mut ports = Vec::new();
    SockDiag::open().unwrap().each(&filter, |c| ports.push(c.local.port())).unwrap();
    ports.sort_unstable();
    ports
}

#[test]
fn connections_are_found_by_group() {
    let Some(mut group) = Group::new() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().port();
    group.dial(here);
    let (_accepted, from) = listener.accept().unwrap();
    // Only the dialling end: the accepted one belongs to this process's group.
    assert_eq!(seen(here, group.directory.join("inner")), [from.port()]);
    assert_eq!(seen(here, group.directory.clone()), [from.port()]);
    let mut both = [here, from.port()];
    both.sort_unstable();
    assert_eq!(seen(here, cgroup::own().unwrap()), both);
}

#[test]
fn missing_group_is_an_error() {
    let filter = Filter { cgroup: Some("/proc".into()), ..Filter::default() };
    let error = SockDiag::open().unwrap().each(&filter, |_| {}).unwrap_err().to_string();
    assert!(error.contains("/proc") && !error.contains('\n'), "{error}");
}
