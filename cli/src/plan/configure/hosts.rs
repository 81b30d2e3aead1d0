//! What stands beside a configuration on a host: its name as a file, and a unit that starts it.

use std::path::Path;

/// Returns the name of a place's files, without its ending: `relay-gcp-europe-north1.1` for a relay
/// `gcp:europe-north1.1`. File systems and rsync take a colon for something else.
pub(super) fn file_name(role: &str, id: &str) -> String {
    format!("{role}-{}", id.replace([':', '/'], "-"))
}

/// Returns a systemd unit that runs `tradewind ROLE` with the configuration `name` of `directory`.
pub(super) fn unit(role: &str, name: &str, directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "# Copy to /etc/systemd/system, the configuration and its key to {directory}.

[Unit]
Description=Tradewind {role} {name}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=/usr/local/bin/tradewind {role} --config {directory}/{name}.toml
Restart=on-failure
# Open sessions end by themselves within `timeouts.drain`.
TimeoutStopSec=60
LimitNOFILE=65536
# For first windows and what is intercepted; nothing else takes rights.
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE CAP_BPF
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
PrivateTmp=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
RuntimeDirectory=tradewind
RuntimeDirectoryPreserve=yes
Environment=TRADEWIND_RUNTIME_DIR=/run/tradewind

[Install]
WantedBy=multi-user.target
"
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
    }
}
