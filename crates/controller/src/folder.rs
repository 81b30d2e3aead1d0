//! The folder of a controller: its keys, settings and store.
//!
//! | file | holds |
//! |---|---|
//! | `controller.toml` | addresses that it listens on, and the one that invites name |
//! | `controller.key` | its identity, secret |
//! | `operator.key` | the key that signs grants, secret |
//! | `admin.toml` | address and token of the operators' API, secret |
//! | `reader.toml` | the same with a token that only reads, secret |
//! | `store.db` | all the rest ([`crate::store`]) |

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;
use tradewind_control::Keys;
use tradewind_grant::{IdentityKey, OperatorKey};
use tradewind_net::{entropy, secret_file, text_file};
use zeroize::{Zeroize as _, Zeroizing};

use crate::error::ControllerError;

/// Default address of the listener for agents.
pub const AGENTS: &str = "0.0.0.0:7440";
/// Default address of the operators' API.
pub const API: &str = "127.0.0.1:7441";

const SETTINGS: &str = "controller.toml";
const CONTROLLER_KEY: &str = "controller.key";
const OPERATOR_KEY: &str = "operator.key";
const ADMIN: &str = "admin.toml";
const READER: &str = "reader.toml";
const STORE: &str = "store.db";

/// Most bytes of a file with a secret.
const MAX_SECRET_BYTES: usize = 4096;

/// The settings of a controller: the file `controller.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The listener for agents.
    pub agents: SocketAddr,
    /// The listener of the operators' API: on loopback.
    pub api: SocketAddr,
    /// The address by which agents reach `agents`, which invites name.
    pub advertise: SocketAddr,
    /// The address that serves metrics and health; none when absent.
    pub metrics: Option<SocketAddr>,
    /// True if metrics may be served beyond loopback.
    #[serde(default)]
    pub metrics_expose: bool,
    /// Host names accepted in requests for metrics and health, beside addresses and `localhost`.
    #[serde(default)]
    pub metrics_hosts: Vec<String>,
}

impl Settings {
    /// Returns settings without metrics.
    #[must_use]
    pub const fn new(agents: SocketAddr, api: SocketAddr, advertise: SocketAddr) -> Self {
        Self {
            agents,
            api,
            advertise,
            metrics: None,
            metrics_expose: false,
            metrics_hosts: Vec::new(),
        }
    }
}

/// Address and token of the operators' API: the files `admin.toml` and `reader.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// The address of the API, such as `http://127.0.0.1:7441`.
    pub api: String,
    /// The token to show there.
    pub token: Token,
}

/// A secret that opens the API; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Token(String);

impl Token {
    /// Returns the text of the token.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token([secret])")
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// A controller's folder.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

/// The lock of a folder, held as long as this lives.
#[derive(Debug)]
pub struct Lock {
    _folder: File,
}

impl Folder {
    /// Names a folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns whether [`Folder::init`] has made it.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.0.join(SETTINGS).exists()
    }

    /// Creates the folder with new keys and tokens.
    ///
    /// # Errors
    /// When a controller's folder is there already, or it cannot be written.
    pub fn init(&self, settings: &Settings) -> Result<(), ControllerError> {
        if !settings.api.ip().is_loopback() {
            let problem = format!("--api: {}: expected an address on loopback", settings.api);
            return Err(ControllerError::Invalid(problem));
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(|error| self.failed("", &error))?;
        let files = [SETTINGS, CONTROLLER_KEY, OPERATOR_KEY, ADMIN, READER, STORE];
        if let Some(found) = files.iter().find(|name| self.0.join(name).exists()) {
            let found = self.0.join(found).display().to_string();
            let problem = format!("{found}: is there already; name a new folder");
            return Err(ControllerError::Invalid(problem));
        }
        let identity = IdentityKey::from_entropy(self.entropy()?);
        let operator = OperatorKey::from_entropy(self.entropy()?);
        self.write(CONTROLLER_KEY, &format!("{}\n", *identity.to_secret_text()))?;
        self.write(OPERATOR_KEY, &format!("{}\n", *operator.to_secret_text()))?;
        for name in [ADMIN, READER] {
            let token = format!("twtoken_{}", hex(&self.entropy()?));
            let text = format!("api = \"http://{}\"\ntoken = \"{token}\"\n", settings.api);
            self.write(name, &Zeroizing::new(text))?;
        }
        let Settings { agents, api, advertise, .. } = settings;
        // Last: with it the folder is complete.
        let text = format!("agents = \"{agents}\"\napi = \"{api}\"\nadvertise = \"{advertise}\"\n");
        self.write(SETTINGS, &text)
    }

    /// Locks the folder: one controller at a time works in it.
    ///
    /// # Errors
    /// When another process holds it.
    pub fn lock(&self) -> Result<Lock, ControllerError> {
        let folder = File::open(&self.0).map_err(|error| self.failed("", &error))?;
        match folder.try_lock() {
            Ok(()) => Ok(Lock { _folder: folder }),
            Err(TryLockError::WouldBlock) => Err(ControllerError::InUse(self.0.clone())),
            Err(TryLockError::Error(error)) => Err(self.failed("", &error)),
        }
    }

    /// Reads the addresses.
    ///
    /// # Errors
    /// When they cannot be read, or the API is not on loopback.
    pub fn settings(&self) -> Result<Settings, ControllerError> {
        let text = text_file::read(&self.0.join(SETTINGS), 1);
        let text = text.map_err(|error| self.unread(SETTINGS, &error))?;
        let settings: Settings =
            toml::from_str(&text).map_err(|error| self.invalid(SETTINGS, error.message()))?;
        if !settings.api.ip().is_loopback() {
            let problem = "`api`: expected an address on loopback, as 127.0.0.1:7441";
            return Err(self.invalid(SETTINGS, problem));
        }
        let Settings { metrics, metrics_expose, .. } = settings;
        let checked = tradewind_config::check_exposed(metrics, metrics_expose);
        checked.map_err(|error| self.invalid(SETTINGS, error))?;
        Ok(settings)
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// When they cannot be read, or others can read them.
    pub fn keys(&self) -> Result<Keys, ControllerError> {
        Ok(Keys { identity: self.key(CONTROLLER_KEY)?, operator: self.key(OPERATOR_KEY)? })
    }

    /// Reads how an operator reaches the API.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn admin(&self) -> Result<Access, ControllerError> {
        self.access(ADMIN)
    }

    /// Reads how one who only reads reaches the API.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn reader(&self) -> Result<Access, ControllerError> {
        self.access(READER)
    }

    /// Returns the file of the store.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.0.join(STORE)
    }

    fn access(&self, name: &str) -> Result<Access, ControllerError> {
        toml::from_str(&self.secret(name)?).map_err(|error| self.invalid(name, error.message()))
    }

    fn key<K: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<K, ControllerError> {
        let parsed = self.secret(name)?.trim().parse();
        parsed.map_err(|error: K::Err| self.invalid(name, error))
    }

    fn secret(&self, name: &str) -> Result<Zeroizing<String>, ControllerError> {
        let read = secret_file::read(&self.0.join(name), MAX_SECRET_BYTES);
        read.map_err(|error| self.unread(name, &error))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), ControllerError> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let path = self.0.join(name);
        let written = options.open(&path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&path);
            self.failed(name, &error)
        })
    }

    fn entropy(&self) -> Result<[u8; 32], ControllerError> {
        entropy::bytes().map_err(|error| self.failed("", &error))
    }

    fn place(&self, name: &str) -> String {
        let place = if name.is_empty() { self.0.clone() } else { self.0.join(name) };
        place.display().to_string()
    }

    fn failed(&self, name: &str, error: &io::Error) -> ControllerError {
        ControllerError::Failed(format!("{}: {error}", self.place(name)))
    }

    fn unread(&self, name: &str, error: &io::Error) -> ControllerError {
        if error.kind() == io::ErrorKind::NotFound {
            let hint = "no controller's folder; `tradewind controller init` makes one";
            return self.invalid(name, format_args!("is not there: {hint}"));
        }
        self.invalid(name, error)
    }

    fn invalid(&self, name: &str, problem: impl std::fmt::Display) -> ControllerError {
        ControllerError::Invalid(format!("{}: {problem}", self.place(name)))
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::testing::TestFolder;

    fn settings() -> Settings {
        let address = |text: &str| text.parse().unwrap();
        Settings::new(address(AGENTS), address(API), address("192.0.2.1:7440"))
    }

    #[test]
    fn folder_is_made_once_and_read_back() {
        let place = TestFolder::new("init");
        let folder = Folder::new(place.path().join("net"));
        assert!(!folder.is_made());
        folder.init(&settings()).unwrap();
        assert!(folder.is_made());
        assert_eq!(folder.settings().unwrap(), settings());
        let (admin, reader) = (folder.admin().unwrap(), folder.reader().unwrap());
        assert_eq!(admin.api, "http://127.0.0.1:7441");
        assert!(admin.token != reader.token);
        let identity = folder.keys().unwrap().identity.public();
        let again = folder.init(&settings()).unwrap_err().to_string();
        assert!(again.ends_with("controller.toml: is there already; name a new folder"), "{again}");
        assert_eq!(folder.keys().unwrap().identity.public(), identity);
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{:?}", entry.path());
        }
    }

    #[test]
    fn second_controller_is_refused() {
        let place = TestFolder::new("lock");
        let folder = Folder::new(place.path());
        let lock = folder.lock().unwrap();
        let refused = folder.lock().unwrap_err().to_string();
        assert!(refused.contains("another controller"), "{refused}");
        drop(lock);
        folder.lock().unwrap();
    }

    #[test]
    fn api_is_on_loopback_only() {
        let place = TestFolder::new("loopback");
        let folder = Folder::new(place.path());
        let open = Settings { api: "0.0.0.0:7441".parse().unwrap(), ..settings() };
        assert!(folder.init(&open).is_err());
        folder.init(&settings()).unwrap();
        let file = place.path().join(SETTINGS);
        let text = fs::read_to_string(&file).unwrap().replace("127.0.0.1", "0.0.0.0");
        fs::write(&file, text).unwrap();
        let refused = folder.settings().unwrap_err().to_string();
        assert!(refused.contains("expected an address on loopback"), "{refused}");
    }

    #[test]
    fn metrics_are_on_loopback_unless_wanted_otherwise() {
        let place = TestFolder::new("metrics");
        let folder = Folder::new(place.path());
        folder.init(&settings()).unwrap();
        let file = place.path().join(SETTINGS);
        let text = fs::read_to_string(&file).unwrap();
        let with = |more: &str| {
            fs::write(&file, format!("{text}{more}")).unwrap();
            folder.settings()
        };
        let own = with("metrics = \"127.0.0.1:9464\"\n").unwrap();
        assert_eq!(own.metrics, Some("127.0.0.1:9464".parse().unwrap()));
        let refused = with("metrics = \"0.0.0.0:9464\"\n").unwrap_err().to_string();
        assert!(refused.contains("metrics_expose = true"), "{refused}");
        with("metrics = \"0.0.0.0:9464\"\nmetrics_expose = true\n").unwrap();
    }

    #[test]
    fn readable_key_is_refused() {
        let place = TestFolder::new("mode");
        let folder = Folder::new(place.path());
        folder.init(&settings()).unwrap();
        let file = place.path().join(OPERATOR_KEY);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let refused = folder.keys().unwrap_err();
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
        assert!(refused.is_of_configuration());
    }
}
