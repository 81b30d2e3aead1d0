//! The keys and the grant that a configuration holds or points to.

pub mod own_identities;
pub mod revocations;

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tradewind_config::{GatewayConfig, KeySource, Keys, RelayConfig};
use tradewind_grant::{GrantError, IdentityKey, SignedGrant};
use tradewind_net::secret_file;

use crate::StreamError;
use crate::error::refused;
use crate::failure::plain;
use crate::keys::revocations::read_text;
use crate::process::upgrade::Handover;

/// Longest key file. Chosen: far longer than an identity.
const MAX_KEY_BYTES: usize = 4096;
/// Name by which the key's open file is handed on.
const KEY_FILE: &str = "key file ";

/// Loads a relay's secret identities: the present one, and during a rotation the previous one.
///
/// # Errors
/// When a file cannot be read or holds no identity, or there is none.
pub fn of_relay(config: &RelayConfig, held: &HeldKeys) -> Result<Vec<IdentityKey>, StreamError> {
    let identities = load(&config.keys(), held)?;
    if identities.is_empty() { Err(refused("identity_file", "missing")) } else { Ok(identities) }
}

/// Loads a gateway's secret identities, if it has any: the present one, and during a rotation the
/// previous one.
///
/// # Errors
/// When a file cannot be read or holds no identity.
pub fn of_gateway(
    config: &GatewayConfig,
    held: &HeldKeys,
) -> Result<Vec<IdentityKey>, StreamError> {
    load(&config.keys(), held)
}

/// Loads the identity that opens a gateway's sessions: the one that the grant names; without a
/// grant, the present one.
///
/// # Errors
/// As [`of_gateway`] and [`grant`], and when the grant names none of them.
pub fn opening(
    config: &GatewayConfig,
    held: &HeldKeys,
) -> Result<Option<IdentityKey>, StreamError> {
    let (identities, grant) = (of_gateway(config, held)?, grant(config)?);
    let Some(own) = identities.first().map(IdentityKey::public) else { return Ok(None) };
    let named = grant.map_or(own, |grant| grant.unverified().gateway);
    let found = identities.into_iter().find(|identity| identity.public() == named);
    found.map(Some).ok_or(GrantError::WrongGateway { granted: named, found: own }.into())
}

/// Loads a gateway's grant, if it has one.
///
/// # Errors
/// When its file cannot be read or holds no grant.
pub fn grant(config: &GatewayConfig) -> Result<Option<SignedGrant>, StreamError> {
    let Some(path) = &config.grant_file else { return Ok(config.grant.clone()) };
    let place = || format!("grant_file, {}", path.display());
    let text = read_text(path).map_err(|problem| refused(place(), problem))?;
    let grant = text.trim().parse::<SignedGrant>();
    grant.map(Some).map_err(|error| refused(place(), error.to_string()))
}

/// Loads identities, the present one first.
fn load(keys: &Keys<'_>, held: &HeldKeys) -> Result<Vec<IdentityKey>, StreamError> {
    let load = |(file, inline): KeySource<'_>| match file {
        Some(path) => held.read(path).map(Some),
        None => Ok(inline.cloned()),
    };
    let (present, previous) = (load(keys.present)?, load(keys.previous)?);
    if let (Some(present), Some(previous)) = (&present, &previous)
        && present.public() == previous.public()
    {
        let problem = "holds the same identity as `identity_file`; expected the one before";
        return Err(refused("previous_identity_file", problem));
    }
    Ok(present.into_iter().chain(previous).collect())
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
    fn read(&self, path: &Path) -> Result<IdentityKey, StreamError> {
        self.read_opened(path, File::open(path))
    }

    fn read_opened(&self, path: &Path, file: io::Result<File>) -> Result<IdentityKey, StreamError> {
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
                let text = file.and_then(|file| secret_file::read_open(&file, MAX_KEY_BYTES));
                let key = parse(path, text)?;
                // One copy of it is enough.
                let held = self.0.iter().find(|held| held.key.public() == key.public());
                Ok(held.map_or(key, |held| held.key.clone()))
            }
        }
    }

    /// Keeps the keys that were read, even if the process may not read their files later; those
    /// that it was denied are read from the open files of the process before. The next process gets
    /// these as well.
    ///
    /// # Errors
    /// When a file was denied and none was inherited, or that one holds no identity.
    pub fn hold(own: OwnKeys, handover: &mut Handover) -> Result<Self, StreamError> {
        let mut held = Self::default();
        for (path, own) in own.0 {
            let name = format!("{KEY_FILE}{}", path.display());
            let inherited = handover.sockets(&name).pop().map(|(_, file)| File::from(file));
            let (key, file) = own.map_or_else(|| read_inherited(&path, inherited), Ok)?;
            held.0.push(HeldKey { number: number_of(file.metadata()), path, key });
            handover.hand_on(name, OwnedFd::from(file));
        }
        Ok(held)
    }
}

/// The keys of a configuration as a process reads them itself, before it changes its user and
/// listens to the process before: with their open files, or nothing where it is denied.
#[derive(Debug)]
pub struct OwnKeys(Vec<(PathBuf, Option<(IdentityKey, File)>)>);

impl OwnKeys {
    /// Reads `keys`.
    ///
    /// # Errors
    /// When a file cannot be read for another reason than a lack of rights, or holds no identity.
    pub fn read(keys: &Keys<'_>) -> Result<Self, StreamError> {
        let files = [keys.present.0, keys.previous.0].into_iter().flatten();
        files.map(|path| Ok((path.to_owned(), read_own(path)?))).collect::<Result<_, _>>().map(Self)
    }
}

fn read_own(path: &Path) -> Result<Option<(IdentityKey, File)>, StreamError> {
    match File::open(path) {
        Ok(file) => read_key(path, file).map(Some),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(not_read(path, &error)),
    }
}

fn read_inherited(path: &Path, file: Option<File>) -> Result<(IdentityKey, File), StreamError> {
    let denied = ErrorKind::PermissionDenied;
    match file {
        Some(file) if is_replaced(path, &file) => {
            let problem = "is another file than the one that the process before this one was \
                           started with, and this process's user may not read it: restart instead";
            Err(not_read(path, &io::Error::new(denied, problem)))
        }
        Some(file) => read_key(path, file),
        None => Err(not_read(path, &denied.into())),
    }
}

fn read_key(path: &Path, file: File) -> Result<(IdentityKey, File), StreamError> {
    let text = secret_file::read_open(&file, MAX_KEY_BYTES);
    Ok((parse(path, text.map(SecretText))?, file))
}

fn parse(path: &Path, text: io::Result<impl AsRef<str>>) -> Result<IdentityKey, StreamError> {
    let refused = |problem| StreamError::IdentityFile { path: path.to_owned(), problem };
    let text = text.map_err(|error| refused(plain(&error)))?;
    text.as_ref().trim().parse().map_err(|error| refused(format!("{error}")))
}

fn not_read(path: &Path, error: &io::Error) -> StreamError {
    StreamError::IdentityFile { path: path.to_owned(), problem: plain(error) }
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
    fn loaded_key_stays_while_its_file_is_unreadable() {
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
    fn readable_key_is_refused_at_reload() {
        let key = IdentityKey::from_entropy([3; 32]);
        let file = KeyFile::new("open-key", &key);
        let held = HeldKeys::default();
        assert_eq!(held.read(&file.0).unwrap().public(), key.public());
        std::fs::set_permissions(&file.0, Permissions::from_mode(0o644)).unwrap();
        assert!(held.read(&file.0).is_err());
    }

    #[test]
    fn missing_identity_file_is_named() {
        let operator = tradewind_grant::OperatorKey::from_entropy([2; 32]).public();
        let text = format!(
            "listen = ['127.0.0.1:0']\nidentity_file = '/nonexistent/relay.key'\n\
             operators = ['{operator}']"
        );
        let config = RelayConfig::parse(&text).unwrap();
        let line = of_relay(&config, &HeldKeys::default()).err().unwrap().to_string();
        let expected = "identity file /nonexistent/relay.key: no such file or directory";
        assert_eq!(line, expected);
    }
}
