//! kcptun, for comparison with packet services: TCP connections over KCP, a protocol on UDP that
//! retransmits early, has no congestion window, and adds Reed-Solomon repair packets (its manual,
//! Debian package kcptun).
//!
//! Its client listens on the requesting host and its server, on the other, dials the application.
//! All connections are streams of one established session between the two: opening one costs no
//! round trip on the path, and there is no slow start.

use std::net::{Ipv4Addr, SocketAddr};

use serde::Deserialize;
use tradewind_units::HostId;

use crate::harness::listeners::{Port, listens};
use crate::harness::packets::Party;
use crate::harness::process::{Task, is_installed};
use crate::harness::{LabContext, ProcessError, ScenarioError, within};

const CLIENT: &str = "kcptun-client";
const SERVER: &str = "kcptun-server";
/// The ports of a client and of a server: the defaults.
const CLIENT_PORT: u16 = 12_948;
const SERVER_PORT: u16 = 29_900;

/// Settings that a scenario chooses. The others are defaults, except that compression is off: files
/// here repeat a single byte.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    mode: Mode,
    /// The number of repair packets per number of packets.
    repair: [u8; 2],
}

/// The retransmission mode, by its own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Normal,
    Fast,
    Fast2,
    Fast3,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Fast => "fast",
            Self::Fast2 => "fast2",
            Self::Fast3 => "fast3",
        }
    }
}

impl Settings {
    /// Checks the settings.
    ///
    /// # Errors
    /// When a number is out of range.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        within([
            ("kcptun repair packets", self.repair[0].into(), 1.0, 32.0),
            ("kcptun packets", self.repair[1].into(), 1.0, 32.0),
        ])
    }

    /// Returns the arguments that must be equal at both ends.
    fn arguments(&self) -> [String; 6] {
        let [parity, data] = self.repair.map(|count| count.to_string());
        let mode = self.mode.name().to_owned();
        [
            "--mode".to_owned(),
            mode,
            "--datashard".to_owned(),
            data,
            "--parityshard".to_owned(),
            parity,
        ]
    }
}

/// Returns whether both programs are installed.
pub(super) fn is_there() -> bool {
    [CLIENT, SERVER].into_iter().all(is_installed)
}

/// A client and its server; they end when dropped.
pub(super) struct Tunnel {
    client: Task,
    server: Task,
}

impl Tunnel {
    /// Returns the address at which the client accepts connections of its host.
    pub(super) fn listener() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, CLIENT_PORT).into()
    }

    /// Starts both, with the server's application as destination, and waits until they listen.
    ///
    /// # Errors
    /// When one cannot be started, or ends at once.
    pub(super) fn start(
        context: &LabContext,
        (client, server): (&Party, &Party),
        settings: &Settings,
    ) -> Result<Self, ProcessError> {
        let application = server.application();
        let between = SocketAddr::new(application.ip(), SERVER_PORT);
        let start = |program, host: &HostId, port, addresses: [(&str, SocketAddr); 2]| {
            let mut command = context.lab.command(host, program)?;
            for (option, address) in addresses {
                command.arg(option).arg(address.to_string());
            }
            command.args(settings.arguments()).args(["--nocomp", "--quiet"]);
            let is_ready = || listens(context, host, port);
            let name = format!("{program}-{host}");
            Task::start_listening(command, &name, &context.scratch, is_ready)
        };
        let addresses = [("--listen", between), ("--target", application)];
        let server = start(SERVER, &server.host, Port::Udp(SERVER_PORT), addresses)?;
        let addresses = [("--localaddr", Self::listener()), ("--remoteaddr", between)];
        let client = start(CLIENT, &client.host, Port::Tcp(CLIENT_PORT), addresses)?;
        Ok(Self { client, server })
    }

    /// Checks that both are running.
    ///
    /// # Errors
    /// When one of them has ended; with the last line of its log.
    pub(super) fn check(&mut self) -> Result<(), ProcessError> {
        self.server.check()?;
        self.client.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kcptun_arguments_are_equal_and_checked() {
        let settings: Settings = toml::from_str("mode = \"fast3\"\nrepair = [3, 10]").unwrap();
        let arguments = settings.arguments().join(" ");
        assert_eq!(arguments, "--mode fast3 --datashard 10 --parityshard 3");
        // kcptun itself silently ignores an unknown mode.
        let error = toml::from_str::<Settings>("mode = \"fast4\"\nrepair = [3, 10]").unwrap_err();
        assert!(error.to_string().contains("unknown variant `fast4`"), "{error}");
        let none: Settings = toml::from_str("mode = \"fast\"\nrepair = [0, 10]").unwrap();
        let error = none.check().unwrap_err().to_string();
        assert!(error.ends_with("kcptun repair packets: 0 given, expected 1 to 32"), "{error}");
    }
}
