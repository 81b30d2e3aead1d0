//! Files beside a configuration on a host: names, and the unit that starts it.

use std::path::Path;

/// Returns the base name of a process's files: `relay-gcp-europe-north1.1` for a relay
/// `gcp:europe-north1.1`. Colons have another meaning for file systems and rsync.
pub(super) fn file_name(role: &str, id: &str) -> String {
    format!("{role}-{}", id.replace([':', '/'], "-"))
}

/// The units that ship with the program.
const RELAY_UNIT: &str = include_str!("../../../../../systemd/tradewind-relay.service");
const GATEWAY_UNIT: &str = include_str!("../../../../../systemd/tradewind-gateway.service");

/// Capabilities that a plan's legs need: for initial windows, buffers and warm connections, and for
/// ports below 1024. The process gives up those that its configuration does not take.
const RIGHTS: &str = "CAP_NET_ADMIN CAP_BPF CAP_NET_BIND_SERVICE";

/// Returns a systemd unit that runs `tradewind ROLE` with the configuration `name` of `directory`:
/// the shipped unit, with the capabilities that a plan's legs need.
pub(super) fn unit(role: &str, name: &str, directory: &Path) -> String {
    let shipped = if role == "relay" { RELAY_UNIT } else { GATEWAY_UNIT };
    let directory = directory.display();
    let lines = shipped.lines().map(|line| match line.split_once('=') {
        Some(("Description", _)) => format!("Description=Tradewind {role} {name}"),
        Some(("ExecStart", _)) => {
            format!("ExecStart=/usr/bin/tradewind {role} --config {directory}/{name}.toml")
        }
        Some((key @ ("AmbientCapabilities" | "CapabilityBoundingSet"), _)) => {
            format!("{key}={RIGHTS}")
        }
        Some((key @ "ProtectKernelTunables", _)) => format!("{key}=no"),
        Some((key @ "RuntimeDirectory", _)) => format!("{key}=tradewind-{name}"),
        Some((key @ "Environment", _)) => {
            format!("{key}=TRADEWIND_RUNTIME_DIR=/run/tradewind-{name}")
        }
        _ => line.to_owned(),
    });
    let lines: Vec<String> = lines.collect();
    format!(
        "# Copy to /etc/systemd/system; the configuration and its key, which belongs to the user \
         below, to\n# {directory}.\n{}\n",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_hold_no_colons() {
        assert_eq!(file_name("relay", "gcp:europe-north1.1"), "relay-gcp-europe-north1.1");
        let unit = unit("relay", "relay-a.1", Path::new("/etc/tradewind"));
        assert!(unit.contains("relay --config /etc/tradewind/relay-a.1.toml\n"), "{unit}");
        // As in the shipped unit: upgrades and reloads work, and the process does not run as root.
        for line in ["Type=notify", "NotifyAccess=all", "User=tradewind"] {
            assert!(unit.lines().any(|found| found == line), "{line}: {unit}");
        }
        assert!(
            unit.contains("AmbientCapabilities=CAP_NET_ADMIN CAP_BPF CAP_NET_BIND_SERVICE\n"),
            "{unit}"
        );
    }
}
