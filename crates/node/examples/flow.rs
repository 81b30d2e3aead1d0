//! A program that links the crate: it sends 200 datagrams to an echo server through a flow with a
//! latency budget, and prints the statistics of its packets.
//!
//! ```text
//! $ cargo run -p tradewind-node --example flow
//! 200 sent, 200 came back
//! sent by direct: the cheapest within its budget; 0 came back over relays, 0 late, 0 lost
//! the Internet lost 0 of 186
//! ```
//!
//! All is on loopback: echo server, remote endpoint, two relays and the program's own node run in
//! this process. In production only `flow` stays: relays are `tradewind relay`, the remote endpoint
//! is `tradewind gateway`, and the keys and the grant come from `tradewind keygen` and `tradewind
//! grant`.

mod loopback;

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use loopback::{any_port, elsewhere, grant, hop, identity, others};
use tradewind_node::status::Direction;
use tradewind_node::{Flow, FlowOptions, Node, NodeConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let server = echo_server()?;
    let (remote, first, second) = (others(4, &[2, 3])?, others(2, &[])?, others(3, &[2])?);
    let relays = vec![hop(&first, 2), hop(&second, 3)];

    let config = NodeConfig::of_application(identity(1), grant()?);
    let node = Node::start(NodeConfig { listen: any_port(), ..config })?;
    let flow = node.register(
        server,
        Duration::from_millis(150),
        FlowOptions::new(hop(&remote, 4), relays),
    )?;
    if !flow.wait_open(Duration::from_secs(10))? {
        return Err("the remote endpoint does not answer".into());
    }
    let came = ask(&flow)?;
    println!("200 sent, {came} came back");
    print_status(&flow);
    Ok(())
}

/// Sends 200 datagrams in two seconds; returns how many replies came.
fn ask(flow: &Flow) -> Result<usize, Box<dyn Error>> {
    let mut came = 0;
    for number in 0..200u32 {
        flow.send(&number.to_be_bytes())?;
        sleep(Duration::from_millis(10));
        while flow.receive(Duration::ZERO)?.is_some() {
            came += 1;
        }
    }
    while came < 200 && flow.receive(Duration::from_secs(1))?.is_some() {
        came += 1;
    }
    Ok(came)
}

fn print_status(flow: &Flow) {
    if let Some(status) = flow.status(Direction::Sent)
        && let Some(statistics) = status.statistics
    {
        let recovered = statistics.recovered_cache
            + statistics.recovered_in_stream
            + statistics.recovered_cross_stream;
        println!(
            "sent by {}: {}; {recovered} came back over relays, {} late, {} lost",
            status.service, status.why, statistics.late, statistics.lost
        );
    }
    if let Some(congestion) = flow.congestion() {
        println!("the Internet lost {} of {}", congestion.lost_by_internet, congestion.expected);
    }
}

fn echo_server() -> std::io::Result<SocketAddr> {
    let socket = UdpSocket::bind(elsewhere())?;
    let address = socket.local_addr()?;
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _lost = socket.send_to(&buffer[..length], from);
        }
    });
    Ok(address)
}
