//! Jump-start that a controller turns on and off, in the kernel of a host with an agent.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::legs::windows_to;
use crate::sockops::can_attach;
use crate::world::{Guard, PROGRAM, World, until};

/// Returns a command of the program on the near host.
fn command(world: &World, words: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words.split(' ')).current_dir(&world.directory);
    command.env("TRADEWIND_LOG", "off").stdin(Stdio::null());
    command
}

fn prints(world: &World, words: &str) -> String {
    let output = world.near.run(|| command(world, words).output().unwrap()).unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Starts a process, and waits until it is ready.
fn start(world: &World, words: &str) -> Guard {
    let mut command = command(world, words);
    let spawned = world.near.run(|| command.stdout(Stdio::piped()).spawn().unwrap());
    let mut process = Guard(spawned.unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"ready\""), "{words}: {line}");
    process
}

/// Waits until the sessions have so many connections, of which so many began by default.
fn until_windows(world: &World, connections: usize, by_default: usize) {
    let port = world.listener.local_addr().unwrap().port();
    until("connections that began so", || {
        let windows = windows_to(world, port);
        // A byte makes little of a window; a learned one is larger by far.
        let found = windows.iter().filter(|window| **window < 20).count();
        (windows.len(), found) == (connections, by_default)
    });
}

/// Opens a session over the gateway, and sends so many bytes; returns both ends.
fn session(world: &World, bytes: usize) -> (TcpStream, TcpStream) {
    let dial = || TcpStream::connect("127.0.0.1:15000");
    let mut near = None;
    until("the gateway listens", || {
        near = world.near.run(dial).unwrap().ok();
        near.is_some()
    });
    let near = near.unwrap();
    let mut sender = near.try_clone().unwrap();
    let sent = std::thread::spawn(move || sender.write_all(&vec![7; bytes]).unwrap());
    // The agent's handshakes, which measure round-trip times, end without a byte.
    let remote = loop {
        let mut remote = world.listener.accept().unwrap().0;
        if remote.read_exact(&mut vec![0; bytes]).is_ok() {
            break remote;
        }
    };
    sent.join().unwrap();
    (near, remote)
}

/// Sends a byte over an open session.
fn goes_on((near, remote): &mut (TcpStream, TcpStream)) {
    near.write_all(&[7]).unwrap();
    remote.read_exact(&mut [0]).unwrap();
}

/// Has hosts time transfers, and waits for those of both arms to the remote host.
fn times_transfers(world: &World) {
    let invite = prints(world, "invite --role probe --site plant");
    let invite = invite.trim().rsplit(' ').next().unwrap();
    let join = format!("agent join {invite} --dir plant --address 10.1.0.2");
    let mut agent = command(world, &join);
    agent.stdout(Stdio::null());
    let mut agent = Guard(world.remote.run(|| agent.spawn().unwrap()).unwrap());
    prints(world, "budget 1usd/day");
    prints(world, "jumpstart overlay on --probes");
    until("transfers in both arms", || {
        let shown = prints(world, "jumpstart overlay show -o json");
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let has = |size: u64, arm: &str| {
            let of = |it: &&Value| it["size_bytes"] == size && it["arm"] == arm;
            let found = shown["transfers"].as_array().unwrap().iter().find(of);
            found.is_some_and(|it| it["p50_ms"].as_f64().unwrap() > 0.0)
        };
        let sizes = [10_000, 50_000, 100_000];
        sizes.iter().all(|size| has(*size, "jumped") && has(*size, "control"))
    });
    let table = prints(world, "jumpstart overlay show");
    assert!(table.contains("100 KB") && table.contains("learned"), "{table}");
    assert_eq!(agent.terminate(), Some(0));
}

#[test]
fn controller_turns_windows_on_and_off() {
    let Some(world) = World::new("fleet-jump") else { return };
    if !can_attach("fleet-jump", &world.near) {
        return;
    }
    let port = world.listener.local_addr().unwrap().port();
    let rules = "roles = ['gateway']\nnext_hops = []\ndestinations = ['10.1.0.0/24:*']\n";
    std::fs::write(world.directory.join("ceiling.toml"), rules).unwrap();
    prints(&world, "controller init net --agents 10.1.0.1:7440 --api 127.0.0.1:7441");
    let _controller = start(&world, "controller run net");
    let invite = prints(&world, "invite --role gateway --site office");
    let invite = invite.trim().rsplit(' ').next().unwrap();
    let join = format!("agent join {invite} --dir host --ceiling ceiling.toml --stop-processes");
    let mut agent = start(&world, &join);
    let to = format!("--from office --to 10.1.0.2:{port} --to-site plant --per-day 1GB");
    prints(&world, &format!("flow add bulk {to}"));
    let mut first = session(&world, 1);
    until_windows(&world, 1, 1);

    prints(&world, "jumpstart overlay on --control-share 0 --window-max 60");
    let host = || -> Value {
        let shown = prints(&world, "jumpstart overlay show -o json");
        serde_json::from_str::<Value>(&shown).unwrap()["hosts"][0].clone()
    };
    until("the learner acts", || host()["is_acting"] == true);
    goes_on(&mut first);
    let mut bulk = session(&world, 4 << 20);
    until("a window is in force", || {
        let known = &host()["destinations"][0];
        known["destination"] == "10.1.0.2/32"
            && known["window_segments"].as_u64().is_some_and(|window| (30..=60).contains(&window))
            && known["is_in_force"] == true
    });
    let jumped = session(&world, 1);
    until_windows(&world, 3, 1);
    drop(jumped);
    times_transfers(&world);

    prints(&world, "jumpstart overlay off");
    let socket = world.directory.join("host/data/learners/gateway.sock");
    until("the learner has ended", || host()["is_acting"] != true && !socket.exists());
    // The connections that taught it are still open.
    let after = session(&world, 1);
    until_windows(&world, 3, 2);
    goes_on(&mut first);
    goes_on(&mut bulk);
    drop(after);
    assert_eq!(agent.terminate(), Some(0));
}
