//! A relay that root has started, and that continues as another user, gets another identity by
//! files while sessions run.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::daemon::{Folder, Process, TEST_TIMEOUT, nobody};
use tradewind_grant::{Extensions, Grant, IdentityKey, OperatorKey, Relays};
use tradewind_units::Timestamp;

/// The relay's configuration beside its files and operators.
const REST: &str = "run_as = 'nobody'\nworkers = 1\nlisten = ['127.0.0.1:0']\n\
                    [policy]\ndestinations = ['127.0.0.0/8:*']\nallow_loopback = true\n";

/// Starts a destination that echoes.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut other = stream.try_clone().unwrap();
                let _ended = std::io::copy(&mut stream, &mut other);
            });
        }
    });
    address
}

fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping")?;
    stream.read_exact(&mut [0; 4])
}

fn session(listener: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(listener)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    exchange(&mut stream).map(|()| stream)
}

/// A relay, and gateways that know it under one identity or the other.
struct World {
    folder: Folder,
    user: u32,
    operator: OperatorKey,
}

impl World {
    /// Creates a key file of the user that the relay continues as; returns it and its public
    /// identity.
    fn key(&self, name: &str) -> (PathBuf, String) {
        let public = self.folder.keygen_as("identity", name);
        let file = self.folder.0.join(format!("{name}.key"));
        chown(&file, Some(self.user), None).unwrap();
        (file, public)
    }

    fn write(&self, files: &[(&str, &Path)]) {
        let mut text = format!("operators = ['{}']\n", self.operator.public());
        for (key, file) in files {
            text += &format!("{key} = '{}'\n", file.display());
        }
        fs::write(self.folder.config(), text + REST).unwrap();
    }

    /// Reloads the relay with `files`, and waits until it has logged `words` about it.
    fn reload(&self, relay: &Process, files: &[(&str, &Path)], words: &str) {
        self.write(files);
        let before = self.folder.log().matches(words).count();
        relay.signal("HUP", relay.number());
        common::daemon::until(words, || self.folder.log().matches(words).count() > before);
    }

    /// Starts a gateway whose route knows the relay at `address` as `identity`; returns it with its
    /// address.
    fn gateway(
        &self,
        name: &str,
        relay: (SocketAddr, &str),
        to: SocketAddr,
    ) -> (Process, SocketAddr) {
        let key = IdentityKey::from_entropy([3; 32]);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let grant = Grant {
            gateway: key.public(),
            not_before: Timestamp::ZERO + (now - Duration::from_secs(60)),
            expires: Timestamp::ZERO + now + Duration::from_secs(3600),
            sessions: None,
            extensions: Extensions::default(),
            relays: Relays::Any,
            destinations: vec!["127.0.0.0/8:*".parse().unwrap()],
        };
        let (address, identity) = relay;
        let text = format!(
            "identity = '{}'\ngrant = '{}'\nworkers = 1\n[[forward]]\nlisten = '127.0.0.1:0'\n\
             to = '{to}'\n[routes]\ndefault = ['relay']\n[[routes.relay]]\nname = 'relay'\n\
             address = '{address}'\nidentity = '{identity}'\n",
            *key.to_secret_text(),
            grant.sign(&self.operator).unwrap(),
        );
        let file = self.folder.0.join(format!("{name}.toml"));
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let mut command = self.folder.command();
        command.args(["gateway", "--config"]).arg(&file);
        let gateway = self.folder.begin_logging(command, name);
        let listener = gateway.ready["listen"][0].as_str().unwrap().parse().unwrap();
        (gateway, listener)
    }
}

#[test]
fn sessions_survive_identity_rotation() {
    let Some(user) = nobody("rotation") else { return };
    let folder = Folder::empty("rotation");
    let operator = OperatorKey::from_entropy([9; 32]);
    let world = World { folder, user, operator };
    // The first key is root's: the relay keeps it when it may no longer read it.
    let old_identity = world.folder.keygen_as("identity", "old");
    let old = world.folder.0.join("old.key");
    world.write(&[("identity_file", &old)]);
    let relay = world.folder.relay();
    let address = relay.ready["listen"][0].as_str().unwrap().parse().unwrap();
    let to = echo();
    let (_before, old_name) = world.gateway("before", (address, &old_identity), to);
    let mut lasting = session(old_name).unwrap();

    let (new, new_identity) = world.key("new");
    let both = [("identity_file", &*new), ("previous_identity_file", &*old)];
    // One that others may read is refused, and changes nothing.
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
    let refused =
        format!("{}: others may read or change it (mode 644); `chmod 600` it", new.display());
    world.reload(&relay, &both, &refused);
    let (_after, new_name) = world.gateway("after", (address, &new_identity), to);
    assert!(session(new_name).is_err(), "the new name is nobody's yet");
    session(old_name).unwrap();

    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    world.reload(&relay, &both, "relay.toml: taken over");
    session(old_name).unwrap();
    let mut by_new_name = session(new_name).unwrap();
    exchange(&mut lasting).unwrap();

    world.reload(&relay, &[("identity_file", &new)], "relay.toml: taken over");
    session(new_name).unwrap();
    assert!(session(old_name).is_err(), "nobody has the old name any more");
    for stream in [&mut lasting, &mut by_new_name] {
        exchange(stream).unwrap();
    }
}
