//! What the processes of a soak hold when all is at rest, and what they say of themselves.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tradewind_lab::LabError;
use tradewind_net::{descriptors, usage};
use tradewind_units::HostId;

use super::scenario::Scenario;
use crate::demo::DemoError;
use crate::lab_run::Ground;
use crate::lab_run::carry::CarryError;
use crate::lab_run::chain::SplitChain;

/// Longest until sessions that have ended are so everywhere. Chosen: above all time-outs of relays.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(200);

/// What a process holds at rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    /// What it is.
    pub(super) name: String,
    /// Which process: one that was started again is another one.
    pub(super) process: u32,
    /// Descriptors.
    pub(super) descriptors: u64,
    /// Memory, in bytes.
    pub(super) memory: u64,
    /// What it says.
    pub(super) told: Told,
}

/// What a process says of its connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Accepted since it was started.
    pub(super) accepted: u64,
    /// Those of them that have an outcome.
    pub(super) ended: u64,
    /// Being served.
    pub(super) open: u64,
}

impl Told {
    /// Reads a metrics page.
    fn read(page: &str) -> Self {
        let mut told = Self::default();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let value = value.parse::<f64>().unwrap_or(0.0) as u64;
            let name = name.split('{').next().unwrap_or(name);
            if name.ends_with("_accepted_total") {
                told.accepted += value;
            } else if name.ends_with("_sessions_total") {
                told.ended += value;
            } else if name.ends_with("_open_sessions") {
                told.open += value;
            }
        }
        told
    }
}

/// Waits until no session is open at any gateway, and tells what each process then holds: by chain the gateway, then its relays.
pub(super) fn at_rest(
    ground: &Ground,
    scenario: &Scenario,
    chains: &[SplitChain],
) -> Result<Vec<Sample>, DemoError> {
    let mut samples = Vec::new();
    for (slot, chain) in chains.iter().enumerate() {
        let name = |what: &str| format!("{what}, {}", CHAINS[slot]);
        let gateway = (name("gateway"), chain.gateway.process(), chain.metrics);
        samples.push(settled(ground, &scenario.client, gateway)?);
        for (place, relay) in chain.relays.iter().enumerate() {
            let Some(service) = &relay.service else { continue };
            let what = name(["first relay", "second relay"][place]);
            let relay = (what, service.process(), relay.relay.metrics());
            samples.push(settled(ground, &scenario.relays[place], relay)?);
        }
    }
    Ok(samples)
}

/// The chains' names, by slot.
pub(super) const CHAINS: [&str; 2] = ["plain", "encrypted"];

/// A sample that no longer changes, or that was taken when patience was at its end.
fn settled(
    ground: &Ground,
    host: &HostId,
    (name, process, metrics): (String, u32, SocketAddr),
) -> Result<Sample, DemoError> {
    let began = Instant::now();
    let mut before: Option<Sample> = None;
    loop {
        ground.stop.check()?;
        let now = Sample {
            name: name.clone(),
            process,
            descriptors: descriptors::count(process).map_err(LabError::from)?,
            memory: usage::memory(process).map_err(LabError::from)?.resident.as_u64(),
            told: Told::read(&page(ground, host, metrics)?),
        };
        let quiet = before
            .as_ref()
            .is_some_and(|before| (before.told, before.descriptors) == (now.told, now.descriptors));
        if (quiet && now.told.open == 0) || began.elapsed() > LONGEST_REST {
            return Ok(now);
        }
        before = Some(now);
        std::thread::sleep(LOOK);
    }
}

/// Reads the metrics of a process on `host`.
fn page(ground: &Ground, host: &HostId, address: SocketAddr) -> Result<String, DemoError> {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, LONGEST_REST)?;
        stream.set_read_timeout(Some(LONGEST_REST))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    };
    ground.lab.enter(host, get)?.map_err(|source| DemoError::Carry {
        flow: format!("metrics of {host}"),
        source: CarryError::Io { what: "ask", address, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_metrics_is_added_up() {
        let page = "HTTP/1.1 200 OK\r\n\r\n# HELP x_accepted Connections\nx_accepted_total 7\n\
                    x_sessions_total{outcome=\"ended\"} 4\nx_sessions_total{outcome=\"broken\"} 2\n\
                    x_open_sessions 1.0\nx_moved_bytes_total{direction=\"up\"} 99\n";
        assert_eq!(Told::read(page), Told { accepted: 7, ended: 6, open: 1 });
    }
}
