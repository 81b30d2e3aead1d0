//! The responder of rate tests as a process: its log, and signals.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::net::SocketAddr;

use common::daemon::Folder;
use tokio::net::{TcpSocket, TcpStream};

/// Opens connections from this address of loopback.
async fn connect_from(source: &str, to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let source: SocketAddr = format!("{source}:0").parse().unwrap();
    let mut all = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(source).unwrap();
        all.push(socket.connect(to).await.unwrap());
    }
    all
}

#[test]
fn responder_logs_ignored_signals_and_samples_refusals() {
    let folder = Folder::empty("responder");
    let mut command = folder.command();
    command.args(["probe", "responder", "--listen", "127.0.0.1:0"]);
    let responder = folder.begin(command);
    for name in ["HUP", "USR1", "USR2", "ALRM"] {
        responder.signal(name, responder.number());
        folder.wait_for_log(&format!("SIG{name} has no meaning here and is ignored"));
    }
    let target = responder.ready["listen"][0].as_str().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connections = runtime.block_on(connect_from("127.0.0.9", target.parse().unwrap(), 400));
    folder.wait_for_log("too many callers at once");
    // Later connections are answered after all of them.
    let mut caller = folder.command();
    caller.args(["probe", "rate", target, "--volume", "1 MB", "--steady-for", "0s"]);
    let answer = caller.output().unwrap();
    assert!(answer.status.success(), "{answer:?}");
    let log = folder.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("too many callers")).collect();
    assert!(lines.len() <= 20, "{} lines of {} callers", lines.len(), connections.len());
    assert!(lines.iter().all(|line| line.contains("source=127.0.0.9")), "{log}");
}
