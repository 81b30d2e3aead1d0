//! The scripts that run on hosts: POSIX `sh`, as root, with the tools of a minimal Debian.
//!
//! | file on a host | holds |
//! |---|---|
//! | `/var/cache/tradewind/package.deb`, `program` | what was deployed, for the way back |
//! | `/var/cache/tradewind/version` | the version of that package |
//! | `/var/cache/tradewind/new`, `new.deb`, ... | what is being deployed |
//! | `/var/cache/tradewind/before`, `ceiling.before` | the program and the ceiling from before |

use std::fmt::Write as _;

use tradewind_config::OwnService;

use super::ssh::{REFUSED, quoted};
use super::steps::{Form, Observed};

/// The beginning of each script. Words of tools are read, so they must be English.
const COMMON: &str = r#"set -e
umask 022
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
cd /
cache=/var/cache/tradewind data=/var/lib/tradewind program=/usr/bin/tradewind
unit=tradewind-agent user=tradewind
digest() { sha256sum <"$1" | cut -d' ' -f1; }
as_user() { su -s /bin/sh "${2:-$user}" -c "$1"; }
runs() { "$program" agent status -o json 2>/dev/null | grep -q '"is_running": true'; }
wait_until() {
  left=100
  until "$@"; do
    left=$((left - 1))
    [ $left -gt 0 ] || { echo "the agent does not start or end in time" >&2; return 1; }
    sleep 0.2
  done
}
runs_not() { ! runs; }
"#;

/// Prints what [`parse`] reads.
const OBSERVE: &str = r#"say() { printf '%s=%s\n' "$1" "$2"; }
if command -v dpkg-query >/dev/null; then
  say dpkg yes
  found=$(dpkg-query -W -f '${db:Status-Status} ${Version}' tradewind 2>/dev/null || true)
fi
[ ! -d /run/systemd/system ] || say systemd yes
case ${found:-} in '' | not-installed* | config-files*) ;; *) say package "${found#* }" ;; esac
[ ! -x $program ] || say program "$($program --version 2>/dev/null | cut -d' ' -f2)"
if [ -f $cache/package.deb ] &&
  [ "installed $(cat $cache/version)" = "${found:-}" ]; then
  say digest "$(digest $cache/package.deb)"
elif [ -f $cache/program ] && [ -f $program ] &&
  [ "$(digest $cache/program)" = "$(digest $program)" ]; then
  say digest "$(digest $program)"
fi
[ ! -f $data/agent/ceiling.toml ] || say ceiling "$(digest $data/agent/ceiling.toml)"
if [ -f $data/agent/controller.toml ]; then
  say joined "$(sed -n 's/^host = "\(.*\)"$/\1/p' $data/agent/controller.toml)"
fi
[ ! -e $data/agent ] || say home yes
if [ -e $data ] || [ -e /etc/tradewind ] || [ -e $cache ]; then say files yes; fi
for path in $data/* /etc/tradewind/*; do
  case $path in */\* | $data/agent | /etc/tradewind/jumpstart.toml) ;; *) say other "$path" ;; esac
done
! runs || say running yes
if [ -d /run/systemd/system ] && systemctl --quiet is-enabled $unit 2>/dev/null; then
  say enabled yes
fi
say end yes
"#;

/// The unit of hosts without the Debian package, which has it.
const UNIT: &str = include_str!("../../../../systemd/tradewind-agent.service");

/// Returns the script that looks at a host and changes nothing.
pub(super) fn observe() -> String {
    format!("{COMMON}{OBSERVE}")
}

/// Returns what the script of [`observe`] printed; `None` if that is not whole.
pub(super) fn parse(printed: &str, has_own_service: bool) -> Option<Observed> {
    let mut observed = Observed::default();
    let mut is_whole = false;
    for (key, value) in printed.lines().filter_map(|line| line.split_once('=')) {
        let value = value.to_owned();
        match key {
            "dpkg" => observed.has_dpkg = true,
            "systemd" => observed.has_systemd = true,
            "package" => observed.package = Some(value),
            "program" => observed.program = Some(value),
            "digest" => observed.digest = Some(value),
            "ceiling" => observed.ceiling = Some(value),
            "joined" => observed.joined = Some(value.parse().ok()?),
            "home" => observed.has_home = true,
            "files" => observed.has_files = true,
            "other" => observed.others.push(value),
            "running" => observed.is_running = true,
            "enabled" => observed.is_enabled = true,
            "end" => is_whole = true,
            // A greeting of the host.
            _ => {}
        }
    }
    // Its own commands say nothing of the next boot.
    observed.is_enabled |= has_own_service && observed.is_running;
    is_whole.then_some(observed)
}

/// Returns the script that takes a package from standard input.
pub(super) fn copy(digest: &str) -> String {
    format!(
        "{COMMON}mkdir -p $cache\ncat >$cache/new || {{ rm -f $cache/new; exit 1; }}\n\
         [ \"$(digest $cache/new)\" = {digest} ] || {{ echo 'it came damaged' >&2; exit 1; }}\n"
    )
}

/// Returns the script that installs what was copied.
pub(super) fn install(form: Form) -> String {
    match form {
        Form::Debian => format!(
            "{COMMON}mv $cache/new $cache/new.deb\nexport DEBIAN_FRONTEND=noninteractive\n\
             dpkg --force-confold --force-confdef --install $cache/new.deb </dev/null >/dev/null\n"
        ),
        Form::Program => format!(
            "{COMMON}mv $cache/new $cache/new.program\n\
             [ ! -e $program ] || cp -p $program $cache/before\n\
             if ! getent passwd $user >/dev/null; then\n\
             useradd --system --user-group --home-dir $data --shell /usr/sbin/nologin $user\nfi\n\
             [ -d $data ] || install -d -o $user -g $user -m 700 $data\n\
             install -m 755 $cache/new.program $program.new\nmv $program.new $program\n\
             $program --version >/dev/null\n\
             if [ -d /run/systemd/system ]; then\n\
             printf %s {} >/etc/systemd/system/$unit.service\nsystemctl daemon-reload\nfi\n",
            quoted(UNIT)
        ),
    }
}

/// Returns the script that prints what doctor finds for the agent's user.
pub(super) fn doctor() -> String {
    format!("{COMMON}as_user \"$program doctor -o json\" </dev/null\n")
}

/// Returns the script that takes a ceiling from standard input. The folder is the agent's own, so
/// root writes nothing there.
pub(super) fn set_ceiling() -> String {
    format!(
        "{COMMON}mkdir -p $cache\nhome=$data/agent\nrm -f $cache/ceiling.before\n\
         [ ! -e $home/ceiling.toml ] || as_user \"cat $home/ceiling.toml\" </dev/null \
         >$cache/ceiling.before\n\
         as_user \"umask 077; mkdir -p $home; cat >$home/ceiling.new; \
         mv $home/ceiling.new $home/ceiling.toml\"\n"
    )
}

/// Returns the script that joins by the invite on standard input, and prints the host's name.
pub(super) fn join(address: Option<std::net::IpAddr>) -> String {
    let address = address.map(|address| format!(" --address {address}")).unwrap_or_default();
    // Exit code 2 is the program's word for a refusal.
    format!(
        "{COMMON}as_user \"umask 077; $program agent join --enrol-only{address} -\" || \
         {{ code=$?; [ $code != 2 ] || code={REFUSED}; exit $code; }}\n"
    )
}

/// Returns the script that starts the agent, also at each boot.
pub(super) fn start(service: Option<&OwnService>) -> String {
    let start = service.map_or_else(
        || "systemctl --quiet enable --now $unit".to_owned(),
        |service| format!("runs || {{ {}\n}}", start_by(service)),
    );
    format!("{COMMON}{start}\nwait_until runs\n")
}

/// Returns the script that ends the agent and starts it.
pub(super) fn restart(service: Option<&OwnService>) -> String {
    let restart = service.map_or_else(
        || "systemctl restart $unit".to_owned(),
        |service| format!("{}\n{}", stop_by(service), start_by(service)),
    );
    format!("{COMMON}{restart}\nwait_until runs\n")
}

/// Returns the script that ends the agent; unless `is_kept`, also for the next boot.
pub(super) fn stop(service: Option<&OwnService>, is_kept: bool) -> String {
    let verb = if is_kept { "stop" } else { "disable --now" };
    let stop = service.map_or_else(|| format!("systemctl --quiet {verb} $unit"), stop_by);
    format!("{COMMON}{stop}\n")
}

/// The command may leave a process behind, which must not hold the connection.
fn start_by(service: &OwnService) -> String {
    format!("sh -c {} </dev/null >/dev/null 2>&1", quoted(&service.start))
}

fn stop_by(service: &OwnService) -> String {
    let stop = quoted(&service.stop);
    format!("runs_not || {{ sh -c {stop} </dev/null >/dev/null\n}}\nwait_until runs_not")
}

/// Returns the script that ends the agent's processes, and removes its folder.
pub(super) fn leave() -> String {
    format!(
        "{COMMON}[ -e $data/agent ] || exit 0\nowner=$(stat -c %U $data/agent)\n\
         as_user \"$program agent leave\" \"$owner\"\n"
    )
}

/// Returns the script that makes what was deployed the way back of the next time.
pub(super) fn keep() -> String {
    format!(
        "{COMMON}if [ -e $cache/new.deb ]; then\nmv $cache/new.deb $cache/package.deb\n\
         dpkg-query -W -f '${{Version}}' tradewind >$cache/version\nfi\n\
         [ ! -e $cache/new.program ] || mv $cache/new.program $cache/program\n\
         rm -f $cache/before $cache/ceiling.before\n"
    )
}

/// Returns the script that removes the package: with all of its files, or without those that it
/// keeps for the next installation.
pub(super) fn remove(with_files: bool) -> String {
    let verb = if with_files { "purge" } else { "remove" };
    let mut script = format!(
        "{COMMON}if dpkg-query -W tradewind >/dev/null 2>&1; then\n\
         dpkg --force-remove-reinstreq --{verb} tradewind </dev/null >/dev/null\nelse\n\
         rm -f $program /etc/systemd/system/$unit.service\n\
         [ ! -d /run/systemd/system ] || systemctl daemon-reload\n"
    );
    if with_files {
        script.push_str("rm -rf $data /etc/tradewind\n");
        for (table, command) in [("passwd", "userdel"), ("group", "groupdel")] {
            let _ = writeln!(script, "! getent {table} $user >/dev/null || {command} $user");
        }
    }
    script.push_str("fi\nrm -rf $cache\n");
    script
}

/// Returns the script that installs the package from before again, if another has begun.
pub(super) fn put_back() -> String {
    format!(
        "{COMMON}rm -f $cache/new\n\
         if [ -e $cache/new.deb ]; then\nrm $cache/new.deb\n\
         [ -e $cache/package.deb ] || {{ echo 'its package is not kept there' >&2; exit 1; }}\n\
         dpkg --force-confold --install $cache/package.deb </dev/null >/dev/null\n\
         elif [ -e $cache/new.program ]; then\nrm $cache/new.program\n\
         [ ! -e $cache/before ] || mv $cache/before $program\nfi\n"
    )
}

/// Returns the script that writes the ceiling from before.
pub(super) fn put_ceiling_back() -> String {
    format!(
        "{COMMON}home=$data/agent\nif [ -e $cache/ceiling.before ]; then\n\
         as_user \"cat >$home/ceiling.new; mv $home/ceiling.new $home/ceiling.toml\" \
         <$cache/ceiling.before\nrm $cache/ceiling.before\nelse\n\
         as_user \"rm -f $home/ceiling.toml\"\nfi\n"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn scripts_are_shell() {
        let service = OwnService { start: "a 'b' &".to_owned(), stop: "c".to_owned() };
        let address = "192.0.2.1".parse().ok();
        let mut all = vec![observe(), copy("abc"), doctor(), set_ceiling(), leave(), keep()];
        all.extend([join(address), join(None), put_back(), put_ceiling_back()]);
        all.extend([install(Form::Debian), install(Form::Program), remove(true), remove(false)]);
        for service in [None, Some(&service)] {
            all.extend([start(service), restart(service), stop(service, true)]);
            all.push(stop(service, false));
        }
        for script in all {
            let checked = Command::new("sh").args(["-n", "-c", &script]).output().unwrap();
            assert!(checked.status.success(), "{checked:?}: {script}");
        }
    }

    #[test]
    fn observation_is_read_and_must_be_whole() {
        let printed = "Welcome=home\ndpkg=yes\npackage=0.1.0-1\nprogram=0.1.0\njoined=r-1\n\
                       home=yes\nfiles=yes\nother=/var/lib/tradewind/net\nrunning=yes\n";
        assert_eq!(parse(printed, true), None);
        let whole = format!("{printed}end=yes\n");
        let observed = parse(&whole, true).unwrap();
        let expected = Observed {
            has_dpkg: true,
            package: Some("0.1.0-1".to_owned()),
            program: Some("0.1.0".to_owned()),
            joined: Some("r-1".parse().unwrap()),
            has_home: true,
            has_files: true,
            others: vec!["/var/lib/tradewind/net".to_owned()],
            is_running: true,
            is_enabled: true,
            ..Observed::default()
        };
        assert_eq!(observed, expected);
        assert!(!parse(&whole, false).unwrap().is_enabled);
    }
}
