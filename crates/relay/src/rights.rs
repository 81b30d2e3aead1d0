//! The rights that a relay or gateway needs of the host beyond those of every user: the
//! capabilities that its configuration needs for the process's life, and the reading of its key,
//! which other users may not read.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tradewind_desired::LegProfile;
use tradewind_grant::{DestinationRule, IdentityKey};
use tradewind_net::privileges::Capability;
use tradewind_net::{congestion, secret_file, sysctl};
use tradewind_units::Bytes;

use crate::config::{LegProfiles, Tproxy};
use crate::failure::plain;
use crate::upgrade::Handover;
use crate::{GatewayConfig, RelayConfig, RelayError};

/// Longest key file. Chosen: far longer than an identity.
const MOST_KEY_BYTES: usize = 4096;
/// Name by which the key's open file is handed on.
const KEY_FILE: &str = "key file ";

/// Ports below this take a capability, where the host does not say otherwise.
const FIRST_FREE_PORT: u16 = 1024;

/// Refuses a configuration, the `text` of `file`, that contains an identity and that others may
/// read.
///
/// # Errors
/// When others may read an identity in it.
pub fn check_readers(file: &Path, text: &str) -> Result<(), RelayError> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let given = ["identity", "previous_identity"].into_iter().find(|key| table.contains_key(*key));
    let Some(key) = given else { return Ok(()) };
    let checked = file.metadata().and_then(|found| secret_file::check(&found));
    checked.map_err(|error| RelayError::Config {
        place: key.to_owned(),
        problem: format!("{}, or give `{key}_file` in its place", plain(&error)),
    })
}

impl RelayConfig {
    /// Returns the capabilities that a relay needs after its start.
    #[must_use]
    pub fn capabilities(&self) -> Vec<Capability> {
        self.takes().of_process()
    }

    /// Returns those that its workers need.
    #[must_use]
    pub fn worker_capabilities(&self) -> Vec<Capability> {
        self.takes().of_workers()
    }

    fn takes(&self) -> Takes<'_> {
        Takes {
            listens: self.listen.iter().copied().chain(self.metrics).collect(),
            packets: self.packet.iter().collect(),
            legs: &self.leg,
            learns: self.jumpstart.is_some(),
            tproxy: &[],
        }
    }

    /// Reads the key, and keeps it even if the process may not read its file later; the next
    /// process gets the open file.
    ///
    /// # Errors
    /// When the file cannot be read and none was inherited.
    pub fn hold_identity(&mut self, handover: &mut Handover) -> Result<(), RelayError> {
        let files = [&self.identity_file, &self.previous_identity_file];
        files.into_iter().flatten().try_for_each(|file| self.held.hold(file, handover))
    }
}

impl GatewayConfig {
    /// Returns the capabilities that a gateway needs after its start.
    #[must_use]
    pub fn capabilities(&self) -> Vec<Capability> {
        self.takes().of_process()
    }

    /// Returns those that its workers need.
    #[must_use]
    pub fn worker_capabilities(&self) -> Vec<Capability> {
        self.takes().of_workers()
    }

    fn takes(&self) -> Takes<'_> {
        let forwards = self.forward.iter().map(|forward| forward.listen);
        let proxies = self.socks5.iter().chain(&self.connect).copied();
        let tproxies = self.tproxy.iter().flat_map(Tproxy::listeners);
        Takes {
            listens: forwards.chain(proxies).chain(self.metrics).chain(tproxies).collect(),
            packets: self.packet.iter().chain(&self.packet_endpoint).collect(),
            legs: &self.leg,
            learns: self.jumpstart.is_some(),
            tproxy: &self.tproxy,
        }
    }

    /// As [`RelayConfig::hold_identity`].
    ///
    /// # Errors
    /// As there.
    pub fn hold_identity(&mut self, handover: &mut Handover) -> Result<(), RelayError> {
        let files = [&self.identity_file, &self.previous_identity_file];
        files.into_iter().flatten().try_for_each(|file| self.held.hold(file, handover))
    }
}

/// The parts of a configuration that take rights.
struct Takes<'a> {
    listens: Vec<SocketAddr>,
    packets: Vec<&'a toml::Value>,
    legs: &'a LegProfiles,
    learns: bool,
    tproxy: &'a [Tproxy],
}

impl Takes<'_> {
    fn of_process(&self) -> Vec<Capability> {
        let mut needed = self.of_workers();
        let packets_listen = self.packets.iter().any(|packet| listens_low(packet));
        if self.listens.iter().any(|address| is_low(address.port())) || packets_listen {
            needed.push(Capability::NetBindService);
        }
        // Buffers beyond the host's limit, and the setting by which warm connections keep their
        // window.
        let tunes = self.profiles().any(|profile| {
            profile.send_buffer.is_some()
                || profile.receive_buffer.is_some()
                || profile.warm.is_some()
        });
        let restricted = self.profiles().any(is_restricted);
        let takes_packets = ["tun", "tproxy", "preserve_source"].iter().any(|key| self.has(key));
        let intercepts = !self.tproxy.is_empty() || takes_packets;
        if self.starts() || tunes || restricted || intercepts {
            needed.push(Capability::NetAdmin);
        }
        needed.sort_unstable();
        needed.dedup();
        needed
    }

    /// Capabilities of the sockets that workers make while they serve.
    fn of_workers(&self) -> Vec<Capability> {
        let mut needed = Vec::new();
        let spoofed = || self.packets.iter().flat_map(|packet| spoofed(packet));
        if spoofed().any(|rule| is_low(*rule.ports().start())) {
            needed.push(Capability::NetBindService);
        }
        let dials = || [&self.legs.dial].into_iter().chain(self.legs.to.iter().map(|to| &to.dial));
        if dials().any(|profile| is_restricted(profile) || exceeds_buffers(profile)) {
            needed.push(Capability::NetAdmin);
        }
        if spoofed().next().is_some() || self.tproxy.iter().any(|tproxy| tproxy.local_output) {
            needed.push(Capability::NetRaw);
        }
        if self.starts() {
            needed.push(Capability::Bpf);
        }
        needed
    }

    fn profiles(&self) -> impl Iterator<Item = &LegProfile> {
        let to = self.legs.to.iter().map(|to| &to.dial);
        [&self.legs.accept, &self.legs.dial].into_iter().chain(to)
    }

    /// Returns true if the kernel starts connections with other windows than its own.
    fn starts(&self) -> bool {
        self.learns || self.profiles().any(|profile| profile.initial_window.is_some())
    }

    fn has(&self, key: &str) -> bool {
        self.packets.iter().any(|packet| packet.get(key).is_some())
    }
}

fn is_low(port: u16) -> bool {
    (1..FIRST_FREE_PORT).contains(&port)
}

fn listens_low(packet: &toml::Value) -> bool {
    let listens = packet.get("listen").and_then(toml::Value::as_str);
    let listens = listens.and_then(|text| text.parse().ok());
    let led_to = packet.get("tproxy").and_then(|taken| taken.get("port"));
    let led_to = led_to.and_then(toml::Value::as_integer).and_then(|port| port.try_into().ok());
    listens.is_some_and(|listens: SocketAddr| is_low(listens.port())) || led_to.is_some_and(is_low)
}

/// Returns the foreign addresses that packets are delivered or answered from.
fn spoofed(packet: &toml::Value) -> impl Iterator<Item = DestinationRule> {
    let answers = packet.get("tproxy").and_then(|taken| taken.get("destinations"));
    let rules = answers.into_iter().chain(packet.get("preserve_source"));
    let rules = rules.filter_map(toml::Value::as_array).flatten();
    rules.filter_map(|rule| rule.as_str()?.parse().ok())
}

fn is_restricted(profile: &LegProfile) -> bool {
    profile.congestion_control.as_deref().is_some_and(congestion::is_restricted)
}

/// Returns true if its buffers exceed this host's limit for unprivileged users.
fn exceeds_buffers(profile: &LegProfile) -> bool {
    let exceeds = |wanted: Option<Bytes>, name: &str| {
        let most = || sysctl::get(name).ok()?.parse().ok();
        wanted.is_some_and(|wanted| most().is_none_or(|most: u64| wanted.as_u64() > most))
    };
    exceeds(profile.receive_buffer, "net.core.rmem_max")
        || exceeds(profile.send_buffer, "net.core.wmem_max")
}

/// The keys that a process has read at its start, by file: its user may not be allowed to read
/// these again.
#[derive(Debug, Clone, Default)]
pub struct HeldKeys(Vec<HeldKey>);

#[derive(Debug, Clone)]
struct HeldKey {
    path: PathBuf,
    /// Identity of that file.
    number: Option<(u64, u64)>,
    key: IdentityKey,
}

impl HeldKeys {
    /// Reads the secret identity in `path`; if it may not be read, returns the held one.
    pub(crate) fn read(&self, path: &Path) -> Result<IdentityKey, RelayError> {
        self.read_opened(path, File::open(path))
    }

    fn read_opened(&self, path: &Path, file: io::Result<File>) -> Result<IdentityKey, RelayError> {
        let is_denied =
            file.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
        match self.0.iter().find(|held| held.path == path).filter(|_| is_denied) {
            Some(held) => {
                let there = number_of(path.metadata());
                // A file that cannot be examined counts as unchanged.
                if there.is_some() && held.number.is_some() && there != held.number {
                    let problem = "is another file than at the start of this process, whose user \
                                   may not read it: `chown` it to that user, or restart";
                    return parse(path, Err::<String, _>(io::Error::other(problem)));
                }
                Ok(held.key.clone())
            }
            None => {
                let text = file.and_then(|file| secret_file::read_open(&file, MOST_KEY_BYTES));
                let key = parse(path, text)?;
                // One copy of it is enough.
                let held = self.0.iter().find(|held| held.key.public() == key.public());
                Ok(held.map_or(key, |held| held.key.clone()))
            }
        }
    }

    fn hold(&mut self, path: &Path, handover: &mut Handover) -> Result<(), RelayError> {
        let (key, file) = open_key(path, handover)?;
        let number = number_of(file.metadata());
        self.0.push(HeldKey { path: path.to_owned(), number, key });
        handover.hand_on(format!("{KEY_FILE}{}", path.display()), OwnedFd::from(file));
        Ok(())
    }
}

fn parse(path: &Path, text: io::Result<impl AsRef<str>>) -> Result<IdentityKey, RelayError> {
    let refused = |problem| RelayError::IdentityFile { path: path.to_owned(), problem };
    let text = text.map_err(|error| refused(plain(&error)))?;
    text.as_ref().trim().parse().map_err(|error| refused(format!("{error}")))
}

/// Opens the file of a key, or takes the inherited open one.
fn open_key(path: &Path, handover: &mut Handover) -> Result<(IdentityKey, File), RelayError> {
    let name = format!("{KEY_FILE}{}", path.display());
    let handed_on = handover.sockets(&name).pop().map(|(_, file)| File::from(file));
    let file = match (File::open(path), handed_on) {
        (Ok(file), _) => file,
        (Err(error), Some(file)) if error.kind() == ErrorKind::PermissionDenied => {
            if is_replaced(path, &file) {
                let problem = "is another file than the one that the process before this one \
                    was started with, and this process's user may not read it: restart instead";
                let error = io::Error::new(ErrorKind::PermissionDenied, problem);
                return Err(not_read(path, &error));
            }
            file
        }
        (Err(error), _) => return Err(not_read(path, &error)),
    };
    let text = secret_file::read_open(&file, MOST_KEY_BYTES);
    Ok((parse(path, text.map(SecretText))?, file))
}

fn not_read(path: &Path, error: &io::Error) -> RelayError {
    RelayError::IdentityFile { path: path.to_owned(), problem: plain(error) }
}

fn number_of(found: io::Result<Metadata>) -> Option<(u64, u64)> {
    found.ok().map(|found| (found.dev(), found.ino()))
}

/// Returns true if another file is at `path` by now, as far as that can be seen.
fn is_replaced(path: &Path, file: &File) -> bool {
    match (number_of(path.metadata()), number_of(file.metadata())) {
        (Some(there), Some(held)) => there != held,
        _ => false,
    }
}

/// Text that is wiped when dropped.
struct SecretText<T>(T);

impl<T: std::ops::Deref<Target = String>> AsRef<str> for SecretText<T> {
    fn as_ref(&self) -> &str {
        self.0.as_str()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{OpenOptions, Permissions};
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

    use super::*;

    fn relay(more: &str) -> Vec<Capability> {
        let key = IdentityKey::from_entropy([1; 32]).to_secret_text().to_string();
        let operator = tradewind_grant::OperatorKey::from_entropy([2; 32]).public();
        let text = format!("identity = '{key}'\noperators = ['{operator}']\n{more}");
        RelayConfig::parse(&text).unwrap().capabilities()
    }

    #[test]
    fn a_relay_keeps_what_its_configuration_takes_and_no_more() {
        use Capability::{Bpf, NetAdmin, NetBindService};
        let plain = "listen = ['0.0.0.0:7000']\n";
        assert_eq!(relay(plain), []);
        assert_eq!(relay("listen = ['0.0.0.0:443']\n"), [NetBindService]);
        assert_eq!(relay(&format!("{plain}[jumpstart]\n")), [NetAdmin, Bpf]);
        assert_eq!(relay(&format!("{plain}[leg.dial]\nwarm = 4\n")), [NetAdmin]);
        assert_eq!(
            relay(&format!("{plain}[leg.dial]\nprofile = 'quick-start'\n")),
            [NetAdmin, Bpf]
        );
        assert_eq!(relay(&format!("{plain}[packet]\nlisten = '0.0.0.0:53'\n")), [NetBindService]);
        let controlled =
            |name: &str| relay(&format!("{plain}[leg.dial]\ncongestion_control = '{name}'\n"));
        assert_eq!(controlled("reno"), []);
        assert_eq!(controlled("no_such"), [NetAdmin], "the kernel may load it for that");
    }

    #[test]
    fn a_gateway_that_takes_connections_off_their_way_may_configure_the_network() {
        let of = |text: &str| GatewayConfig::parse(text).unwrap().capabilities();
        let forward = "direct = true
            [[forward]]
            listen = '127.0.0.1:8000'
            to = '192.0.2.1:80'
            ";
        assert_eq!(of(forward), []);
        let tproxy = "direct = true\n[[tproxy]]\ndestinations = ['192.0.2.0/24:80']\n";
        assert_eq!(of(tproxy), [Capability::NetAdmin]);
        let both = [Capability::NetBindService, Capability::NetAdmin];
        assert_eq!(of(&format!("{tproxy}port = 1023\n")), both);
        assert_eq!(of(&format!("{tproxy}port = 1024\n")), [Capability::NetAdmin]);
        let packets = |port: u16| format!("{forward}[[packet]]\ntproxy = {{ port = {port} }}\n");
        assert_eq!(of(&packets(1023)), both);
        assert_eq!(of(&packets(1024)), [Capability::NetAdmin]);
        let tun = format!("{forward}[[packet]]\ntun = {{}}\n");
        assert_eq!(of(&tun), [Capability::NetAdmin]);
    }

    #[test]
    fn workers_keep_what_their_sockets_take_alone() {
        use Capability::{Bpf, NetAdmin, NetBindService, NetRaw};
        let of = |more: &str| {
            let text = format!("direct = true\nsocks5 = ['127.0.0.1:0']\n{more}");
            let config = GatewayConfig::parse(&text).unwrap();
            (config.capabilities(), config.worker_capabilities())
        };
        let tproxy = "[[tproxy]]\ndestinations = ['192.0.2.0/24:80']\n";
        assert_eq!(of(tproxy), (vec![NetAdmin], vec![]));
        let local_output = format!("{tproxy}local_output = true\n");
        assert_eq!(of(&local_output), (vec![NetAdmin, NetRaw], vec![NetRaw]));
        // Packets delivered from foreign addresses may bear low ports.
        let far = |ports: &str| {
            of(&format!("[packet_endpoint]\npreserve_source = ['10.1.0.0/16:{ports}']\n"))
        };
        assert_eq!(far("1024-65535"), (vec![NetAdmin, NetRaw], vec![NetRaw]));
        let low = [NetBindService, NetRaw].to_vec();
        assert_eq!(far("*"), (vec![NetBindService, NetAdmin, NetRaw], low.clone()));
        let taken = "[[packet]]\ntproxy = { destinations = ['192.0.2.0/24:53'] }\n";
        assert_eq!(of(taken), (vec![NetBindService, NetAdmin, NetRaw], low));
        assert_eq!(of("[leg.dial]\nwarm = 4\n"), (vec![NetAdmin], vec![]));
        assert_eq!(of("[jumpstart]\n"), (vec![NetAdmin, Bpf], vec![Bpf]));
        let buffers = |bytes: u64| of(&format!("[leg.dial]\nsend_buffer = '{bytes} B'\n"));
        assert_eq!(buffers(4096), (vec![NetAdmin], vec![]));
        let most: u64 = sysctl::get("net.core.wmem_max").unwrap().parse().unwrap();
        assert_eq!(buffers(most + 1), (vec![NetAdmin], vec![NetAdmin]));
    }

    /// A file of this process's own that holds `key`, gone with it.
    struct KeyFile(PathBuf);

    impl KeyFile {
        fn new(name: &str, key: &IdentityKey) -> Self {
            let name = format!("tradewind-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
            io::Write::write_all(&mut file, key.to_secret_text().as_bytes()).unwrap();
            Self(path)
        }
    }

    impl Drop for KeyFile {
        fn drop(&mut self) {
            let _gone = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn held_key_counts_while_its_own_file_may_not_be_read() {
        let [own, other] = [1, 2].map(|seed| IdentityKey::from_entropy([seed; 32]));
        let file = KeyFile::new("held-key", &own);
        let number = number_of(file.0.metadata());
        let held = HeldKeys(vec![HeldKey { path: file.0.clone(), number, key: own.clone() }]);
        let denied = || Err(ErrorKind::PermissionDenied.into());
        let read = |path: &Path| held.read_opened(path, denied()).map(|key| key.public());
        assert_eq!(read(&file.0).unwrap(), own.public());
        // Another file was never held.
        let beside = KeyFile::new("held-key-beside", &other);
        assert!(read(&beside.0).unwrap_err().to_string().ends_with("permission denied"));
        assert_eq!(held.read(&beside.0).unwrap().public(), other.public());
        // Nor is the key valid for a file that has replaced its own.
        std::fs::rename(&beside.0, &file.0).unwrap();
        let line = read(&file.0).unwrap_err().to_string();
        assert!(line.contains("is another file than at the start of this process"), "{line}");
        assert_eq!(held.read(&file.0).unwrap().public(), other.public(), "which may be read");
        // A file that cannot be examined counts as unchanged.
        std::fs::remove_file(&file.0).unwrap();
        assert_eq!(read(&file.0).unwrap(), own.public());
        assert!(held.read(&file.0).is_err(), "it is not there, and that is no denial");
    }

    #[test]
    fn key_that_others_may_read_is_refused_at_a_reload() {
        let key = IdentityKey::from_entropy([3; 32]);
        let file = KeyFile::new("open-key", &key);
        let held = HeldKeys::default();
        assert_eq!(held.read(&file.0).unwrap().public(), key.public());
        std::fs::set_permissions(&file.0, Permissions::from_mode(0o644)).unwrap();
        assert!(held.read(&file.0).is_err());
    }
}
