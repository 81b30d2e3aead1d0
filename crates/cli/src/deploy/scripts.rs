//! The scripts that run on hosts: POSIX `sh`, as root, with the tools of a minimal Debian.
//!
//! | file on a host | holds |
//! |---|---|
//! | `/var/cache/tradewind/package.deb`, `program` | what was deployed, for the way back |
//! | `/var/cache/tradewind/version` | the version of that package, and the program's SHA-256 |
//! | `/var/cache/tradewind/made-user` | nothing: says that the user was made here |
//! | `/var/cache/tradewind/new`, `new.deb`, ... | what is being deployed |
//! | `/var/cache/tradewind/before`, `ceiling.before` | the program and the ceiling from before |
//! | `/var/cache/tradewind/ceiling.none` | nothing: says that there was no ceiling before |
//! | `/run/tradewind-deploy` | the lock of a deployment, and the words of its dpkg |
//!
//! A copy that undoing needs is written beside its name and then moved there: it is whole, or there
//! is none, and then nothing has been replaced.

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
unit=tradewind-agent user=tradewind lock=/run/tradewind-deploy home=/var/lib/tradewind/agent
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
run_dpkg() {
  left=60
  until dpkg --force-confold --force-confdef "$@" </dev/null >/dev/null 2>$lock/dpkg; do
    left=$((left - 1))
    if [ $left = 0 ] || ! grep -q 'locked by another process' $lock/dpkg; then
      cat $lock/dpkg >&2
      return 1
    fi
    sleep 2
  done
}
keep_ceiling() {
  mkdir -p $cache
  rm -f $cache/ceiling.before $cache/ceiling.none
  if [ -e $home/ceiling.toml ]; then
    as_user "cat $home/ceiling.toml" </dev/null >$cache/ceiling.part
    mv $cache/ceiling.part $cache/ceiling.before
  else
    : >$cache/ceiling.none
  fi
}
# Takes a ceiling with this SHA-256 from standard input. The folder is the agent's own: root writes
# nothing there.
write_ceiling() {
  as_user "set -e; umask 077; mkdir -p $home; cat >$home/ceiling.new
    if [ \"\$(sha256sum <$home/ceiling.new | cut -d' ' -f1)\" != $1 ]; then
      rm -f $home/ceiling.new; echo 'the ceiling came damaged' >&2; exit 1
    fi
    mv $home/ceiling.new $home/ceiling.toml"
}
"#;

/// Takes the lock. One that is an hour old is of a run that was cut off.
const TAKE_LOCK: &str = r#"[ -z "$(find $lock -prune -mmin +60 2>/dev/null)" ] || rm -rf $lock
mkdir $lock 2>/dev/null || {
  echo "another deployment is at work there; if none is: rm -r $lock" >&2
  exit 1
}
trap 'rm -rf $lock' EXIT
"#;

/// Removes what a run left that was cut off: undoing must not take it for its own. The lock is held
/// from then on.
const CLEAR: &str = r#"rm -f $cache/before $cache/*.part $cache/ceiling.before $cache/ceiling.none
rm -f $cache/new $cache/new.deb $cache/new.program
trap - EXIT
"#;

/// Prints what [`parse`] reads. The ceiling of a run that was cut off is none: it may not be in
/// effect yet.
const OBSERVE: &str = r#"say() { printf '%s=%s\n' "$1" "$2"; }
if command -v dpkg-query >/dev/null; then
  say dpkg yes
  found=$(dpkg-query -W -f '${db:Status-Status} ${Version}' tradewind 2>/dev/null || true)
fi
[ ! -d /run/systemd/system ] || say systemd yes
case ${found:-} in '' | not-installed* | config-files*) ;; *) say package "${found#* }" ;; esac
[ ! -x $program ] || say program "$($program --version 2>/dev/null | cut -d' ' -f2)"
if [ -f $cache/package.deb ] && [ -f $program ] && [ -f $cache/version ] &&
  [ "installed $(cat $cache/version)" = "${found:-} $(digest $program)" ]; then
  say digest "$(digest $cache/package.deb)"
elif [ -f $cache/program ] && [ -f $program ] &&
  [ "$(digest $cache/program)" = "$(digest $program)" ]; then
  say digest "$(digest $program)"
fi
if [ -f $home/ceiling.toml ] && [ ! -e $cache/ceiling.before ] && [ ! -e $cache/ceiling.none ]; then
  say ceiling "$(digest $home/ceiling.toml)"
fi
if [ -f $home/controller.toml ]; then
  say joined "$(sed -n 's/^host = "\(.*\)"$/\1/p' $home/controller.toml)"
  say controller "$(sed -n 's/^identity = "\(.*\)"$/\1/p' $home/controller.toml)"
fi
[ ! -e $home ] || say home yes
if [ -e $data ] || [ -e /etc/tradewind ]; then say files yes; fi
[ ! -e $cache ] || say cache yes
for path in $data/* /etc/tradewind/*; do
  case $path in */\* | $home | /etc/tradewind/jumpstart.toml) ;; *) say other "$path" ;; esac
done
for each in /proc/[0-9]*; do
  case $(readlink $each/exe || true) in $program | "$program (deleted)") ;; *) continue ;; esac
  case $(tr '\0' ' ' <$each/cmdline || true) in
    '' | *' agent '* | *' deploy '* | *$home/*) ;;
    *) say other "process ${each#/proc/}" ;;
  esac
done 2>/dev/null
! runs || say running yes
if [ -d /run/systemd/system ]; then
  ! systemctl --quiet is-enabled $unit 2>/dev/null || say enabled yes
  for each in controller relay gateway jumpstart; do
    ! systemctl --quiet is-active tradewind-$each 2>/dev/null || say other "tradewind-$each"
  done
fi
say end yes
"#;

/// The unit of hosts without the Debian package, which has it.
const UNIT: &str = include_str!("../../../../systemd/tradewind-agent.service");

/// Returns the script that looks at a host and changes nothing.
pub(super) fn observe() -> String {
    format!("{COMMON}{OBSERVE}")
}

/// Returns the script that takes the lock of a host, and looks at it.
pub(super) fn take_lock() -> String {
    format!("{COMMON}{TAKE_LOCK}{OBSERVE}{CLEAR}")
}

/// Returns the script that gives the lock back.
pub(super) fn free_lock() -> String {
    format!("{COMMON}rm -rf $lock\n")
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
            "controller" => observed.controller = Some(value),
            "home" => observed.has_home = true,
            "files" => observed.has_files = true,
            "cache" => observed.has_cache = true,
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
             run_dpkg --install $cache/new.deb\n"
        ),
        Form::Program => format!(
            "{COMMON}mv $cache/new $cache/new.program\n\
             install -m 755 $cache/new.program $program.new\n\
             $program.new --version >/dev/null || {{ rm -f $program.new; exit 1; }}\n\
             if [ -e $program ]; then\n\
             cp -p $program $cache/before.part\nmv $cache/before.part $cache/before\nfi\n\
             if ! getent passwd $user >/dev/null; then\n: >$cache/made-user\n\
             useradd --system --user-group --home-dir $data --shell /usr/sbin/nologin $user\nfi\n\
             [ -d $data ] || install -d -o $user -g $user -m 700 $data\n\
             mv $program.new $program\n\
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

/// Returns the script that keeps the ceiling for the way back.
pub(super) fn keep_ceiling() -> String {
    format!("{COMMON}keep_ceiling\n")
}

/// Returns the script that takes a ceiling from standard input, after it has kept the one before.
pub(super) fn set_ceiling(digest: &str) -> String {
    format!("{COMMON}keep_ceiling\nwrite_ceiling {digest}\n")
}

/// Returns the script that joins by the invite on standard input.
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

/// Returns the script that ends the agent and starts it; if `is_enabled`, also at each boot.
pub(super) fn restart(service: Option<&OwnService>, is_enabled: bool) -> String {
    let enable = if is_enabled { "systemctl --quiet enable $unit\n" } else { "" };
    let restart = service.map_or_else(
        || format!("{enable}systemctl restart $unit"),
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

/// The command may leave a process behind, which must not hold the connection. Its exit code is
/// none of those that have a meaning here.
fn start_by(service: &OwnService) -> String {
    format!("sh -c {} </dev/null >/dev/null 2>&1 || exit 1", quoted(&service.start))
}

fn stop_by(service: &OwnService) -> String {
    let stop = quoted(&service.stop);
    format!(
        "runs_not || {{ sh -c {stop} </dev/null >/dev/null 2>&1 || exit 1\n}}\nwait_until runs_not"
    )
}

/// Returns the script that ends the agent's processes, and removes its folder.
pub(super) fn leave() -> String {
    format!(
        "{COMMON}[ -e $home ] || exit 0\nowner=$(stat -c %U $home)\n\
         as_user \"$program agent leave\" \"$owner\"\n"
    )
}

/// Returns the script that makes what was deployed the way back of the next time.
pub(super) fn keep() -> String {
    format!(
        "{COMMON}if [ -e $cache/new.deb ]; then\nmv $cache/new.deb $cache/package.deb\n\
         echo \"$(dpkg-query -W -f '${{Version}}' tradewind) $(digest $program)\" \
         >$cache/version\nfi\n\
         [ ! -e $cache/new.program ] || mv $cache/new.program $cache/program\n\
         rm -f $cache/before $cache/ceiling.before $cache/ceiling.none\n"
    )
}

/// Returns the script that removes the package: with all of its files, or without those that it
/// keeps for the next installation.
pub(super) fn remove(with_files: bool) -> String {
    let verb = if with_files { "purge" } else { "remove" };
    let mut script = format!(
        "{COMMON}if dpkg-query -W tradewind >/dev/null 2>&1; then\n\
         run_dpkg --force-remove-reinstreq --{verb} tradewind\nelse\n\
         rm -f $program /etc/systemd/system/$unit.service\n\
         [ ! -d /run/systemd/system ] || systemctl daemon-reload\n"
    );
    if with_files {
        script.push_str("rm -rf $data /etc/tradewind\nif [ -e $cache/made-user ]; then\n");
        for (table, command) in [("passwd", "userdel"), ("group", "groupdel")] {
            let _ = writeln!(script, "! getent {table} $user >/dev/null || {command} $user");
        }
        script.push_str("fi\n");
    }
    script.push_str("fi\nrm -rf $cache\n");
    script
}

/// Returns the script that installs the package from before again, if another has begun. Unless it
/// `is_kept`, the package there is of another version.
pub(super) fn put_back(is_kept: bool) -> String {
    let package = if is_kept {
        "run_dpkg --install $cache/package.deb"
    } else {
        "echo 'its package is not kept there' >&2\nexit 1"
    };
    format!(
        "{COMMON}rm -f $cache/new $cache/new.program\n\
         if [ -e $cache/new.deb ]; then\nrm $cache/new.deb\n{package}\n\
         elif [ -e $cache/before ]; then\ncp -p $cache/before $program.new\n\
         mv $program.new $program\nrm -f $cache/before\nfi\n"
    )
}

/// Returns the script that writes the ceiling from before; it does nothing if none was kept, as
/// then none was replaced.
pub(super) fn put_ceiling_back() -> String {
    format!(
        "{COMMON}if [ -e $cache/ceiling.before ]; then\n\
         write_ceiling \"$(digest $cache/ceiling.before)\" <$cache/ceiling.before\n\
         elif [ -e $cache/ceiling.none ]; then\nas_user \"rm -f $home/ceiling.toml\"\nfi\n\
         rm -f $cache/ceiling.before $cache/ceiling.none\n"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn scripts_are_shell() {
        let service = OwnService { start: "a 'b' &".to_owned(), stop: "c".to_owned() };
        let address = "192.0.2.1".parse().ok();
        let mut all = vec![observe(), copy("abc"), doctor(), set_ceiling("abc"), leave()];
        all.extend([keep(), keep_ceiling(), take_lock(), free_lock()]);
        all.extend([join(address), join(None), put_back(true), put_back(false)]);
        all.push(put_ceiling_back());
        all.extend([install(Form::Debian), install(Form::Program), remove(true), remove(false)]);
        for service in [None, Some(&service)] {
            all.extend([start(service), restart(service, true), restart(service, false)]);
            all.extend([stop(service, true), stop(service, false)]);
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

    /// A folder that scripts take for the host.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("tradewind-deploy-{name}-{}", std::process::id());
            let place = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(place.path("data/agent")).unwrap();
            fs::create_dir_all(place.path("cache")).unwrap();
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn text(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.path(name)).ok()
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).unwrap();
        }

        /// Runs a script with `input`, as one user for all, and returns whether it succeeds.
        fn run(&self, script: &str, input: &str) -> bool {
            let folder = self.0.display().to_string();
            let mut script = script.replace(r#"su -s /bin/sh "${2:-$user}" -c"#, "sh -c");
            for (theirs, ours) in [
                ("/var/lib/tradewind", "data"),
                ("/var/cache/tradewind", "cache"),
                ("/usr/bin/tradewind", "program"),
                ("/run/tradewind-deploy", "lock"),
                ("/run/systemd/system", "systemd"),
            ] {
                script = script.replace(theirs, &format!("{folder}/{ours}"));
            }
            // The user is there.
            let script = format!("getent() {{ :; }}\n{script}");
            let mut command = Command::new("sh");
            command.args(["-c", &script]).stdin(Stdio::piped());
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let _closed = child.stdin.take().unwrap().write_all(input.as_bytes());
            child.wait().unwrap().success()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn digest(text: &str) -> String {
        Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn ceiling_of_the_owner_survives() {
        let (place, file) = (Place::new("ceiling"), "data/agent/ceiling.toml");
        let ceiling = || place.text(file);
        let old = Some("old".to_owned());
        place.write(file, "old");
        // Nothing was kept, so nothing was replaced.
        assert!(place.run(&put_ceiling_back(), ""));
        assert_eq!(ceiling(), old);
        // It comes cut short.
        assert!(!place.run(&set_ceiling(&digest("new")), "ne"));
        assert_eq!(ceiling(), old);
        assert!(place.run(&put_ceiling_back(), ""));
        assert_eq!(ceiling(), old);
        assert!(place.run(&set_ceiling(&digest("new")), "new"));
        assert_eq!(ceiling().as_deref(), Some("new"));
        assert!(place.run(&put_ceiling_back(), ""));
        assert_eq!(ceiling(), old);
        // It cannot be kept.
        fs::create_dir(place.path("cache/ceiling.part")).unwrap();
        assert!(!place.run(&set_ceiling(&digest("new")), "new"));
        assert!(place.run(&put_ceiling_back(), ""));
        assert_eq!(ceiling(), old);
        fs::remove_dir(place.path("cache/ceiling.part")).unwrap();
        // There was none.
        fs::remove_file(place.path(file)).unwrap();
        assert!(place.run(&set_ceiling(&digest("new")), "new"));
        assert!(place.run(&put_ceiling_back(), ""));
        assert_eq!(ceiling(), None);
    }

    #[test]
    fn program_that_does_not_run_replaces_none() {
        let place = Place::new("program");
        let (good, newer) = ("#!/bin/sh\n:\n", "#!/bin/sh\n: newer\n");
        assert!(place.run(&copy(&digest(good)), good));
        assert!(place.run(&format!("{}{}", install(Form::Program), keep()), ""));
        assert!(!place.run(&copy(&digest(newer)), "#!/bin/sh\n"));
        for (next, runs) in [("#!/bin/sh\nexit 1\n", false), (newer, true)] {
            assert!(place.run(&copy(&digest(next)), next));
            assert_eq!(place.run(&install(Form::Program), ""), runs);
            assert_eq!(place.text("program").as_deref(), Some(if runs { next } else { good }));
            assert!(place.run(&put_back(true), ""));
            assert_eq!(place.text("program").as_deref(), Some(good));
        }
    }

    #[test]
    fn lock_has_one_holder() {
        let place = Place::new("lock");
        place.write("cache/ceiling.none", "");
        assert!(place.run(&take_lock(), ""));
        assert_eq!(place.text("cache/ceiling.none"), None);
        assert!(!place.run(&take_lock(), ""));
        assert!(place.run(&free_lock(), ""));
        assert!(place.run(&take_lock(), ""));
    }

    #[test]
    fn package_of_another_version_is_no_way_back() {
        let place = Place::new("package");
        place.write("cache/new.deb", "");
        place.write("cache/package.deb", "");
        assert!(!place.run(&put_back(false), ""));
    }
}
