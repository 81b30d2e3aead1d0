//! The script that a machine runs once, at its first boot.

use tradewind_config::MachinesConfig;

/// Returns the script for `machine`, as a template of Terraform that takes the machine's invite
/// from the variable `invites`.
///
/// It installs the package and joins. The network and the package's server may not answer at once:
/// both are tried for ten minutes. A second run, as at the next boot, ends at once.
pub(crate) fn script(config: &MachinesConfig, machine: &str) -> String {
    let MachinesConfig { package, sha256, .. } = config;
    let invite = invite(machine);
    // The invite is in standard input: no list of processes shows it.
    format!(
        r#"#!/bin/sh
# Made by `tradewind machines`.
set -eu
[ ! -e /var/lib/tradewind-machine ] || exit 0
exec 2>&1
umask 077
cd "$(mktemp -d)"
tried=0
again() {{
  tried=$((tried + 1))
  [ $tried -lt 120 ] || {{ echo "tradewind: gives up"; exit 1; }}
  sleep 5
}}
export DEBIAN_FRONTEND=noninteractive
until command -v curl >/dev/null; do
  {{ apt-get -qq update && apt-get -qq install -y curl ca-certificates; }} || again
done
until curl -fsSL --connect-timeout 10 --max-time 120 -o tradewind.deb '{package}' &&
  echo '{sha256}  tradewind.deb' | sha256sum -c; do
  again
done
chmod 755 .
chmod 644 tradewind.deb
until apt-get -qq install -y ./tradewind.deb; do again; done
until runuser -u tradewind -- tradewind agent join --enrol-only - <<'INVITE'
${{{invite}}}
INVITE
do again; done
systemctl enable --now tradewind-agent
touch /var/lib/tradewind-machine
"#
    )
}

/// Returns Terraform's expression for the invite of `machine`: empty where there is none.
pub(crate) fn invite(machine: &str) -> String {
    format!("lookup(var.invites, \"{machine}\", \"\")")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn script_names_package_digest_and_invite() {
        let text = crate::document::tests::FILE;
        let config = MachinesConfig::parse(text, Path::new("")).unwrap();
        let script = script(&config, "virginia");
        for part in [&config.package, &config.sha256, r#"${lookup(var.invites, "virginia", "")}"#] {
            assert!(script.contains(part), "{script}");
        }
        // Nothing else is a template to Terraform.
        assert_eq!(script.matches("${").count() + script.matches("%{").count(), 1);
    }
}
