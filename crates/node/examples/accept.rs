//! Two programs that link the crate: one listens at a destination that no host has and echoes
//! datagrams, the other sends it 200 through a flow.
//!
//! ```text
//! $ cargo run -p tradewind-node --example accept
//! accepted from twid_...
//! 200 sent, 200 answered
//! ```
//!
//! All is on loopback: both programs' nodes and two relays run in this process. In production the
//! keys and the grant come from `tradewind keygen` and `tradewind grant`, and relays are `tradewind
//! relay`.

mod loopback;

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use loopback::{any_port, grant, hop, identity, operator, others};
use tradewind_node::{FlowOptions, Listener, Node, NodeConfig};

/// An address of no host: flows to it end in the program that listens.
const DESTINATION: &str = "127.9.9.9:5004";

fn main() -> Result<(), Box<dyn Error>> {
    let relays = [others(2, &[])?, others(3, &[2])?];
    let server = server()?;
    let listener = server.listen(DESTINATION.parse()?)?;
    let answering = std::thread::spawn(move || answer(&listener));

    let config = NodeConfig::of_application(identity(1), grant()?);
    let node = Node::start(NodeConfig { listen: any_port(), ..config })?;
    let relays = vec![hop(&relays[0], 2), hop(&relays[1], 3)];
    let options = FlowOptions::new(hop(&server, 4), relays);
    let flow = node.register(DESTINATION.parse()?, Duration::from_millis(150), options)?;
    if !flow.wait_open(Duration::from_secs(10))? {
        return Err("the server does not answer".into());
    }
    let mut answered = 0;
    for number in 0..200u32 {
        flow.send(&number.to_be_bytes())?;
        sleep(Duration::from_millis(10));
        while flow.receive(Duration::ZERO)?.is_some() {
            answered += 1;
        }
    }
    while answered < 200 && flow.receive(Duration::from_secs(1))?.is_some() {
        answered += 1;
    }
    println!("200 sent, {answered} answered");
    drop(server);
    answering.join().map_err(|_| "the server has panicked")?;
    Ok(())
}

/// Returns the node of the program that listens.
fn server() -> Result<Node, Box<dyn Error>> {
    let relays = [2, 3].map(|number| identity(number).public());
    let operators = vec![operator().public()];
    let mut config = NodeConfig::of_listener(any_port(), identity(4), operators, relays);
    config.policy.destinations = vec!["127.9.9.9/32:5004".parse()?];
    // Everything here is on loopback.
    config.policy.allow_loopback = true;
    Ok(Node::start(config)?)
}

/// Accepts one flow, and echoes its datagrams until the node ends.
fn answer(listener: &Listener) {
    let Ok(Some(accepted)) = listener.accept(Duration::from_secs(30)) else { return };
    println!("accepted from {}", accepted.from);
    while let Ok(datagram) = accepted.flow.receive(Duration::from_secs(1)) {
        if let Some(datagram) = datagram {
            // Full queues drop datagrams, as a network does.
            let _lost = accepted.flow.send(&datagram);
        }
    }
}
