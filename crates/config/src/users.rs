//! Users of the proxies: names, and password hashes.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use argon2::password_hash::{PasswordHash, PasswordHasher as _, PasswordVerifier as _, SaltString};
use argon2::{Argon2, Params};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::ConfigError;

/// Most bytes of a name or a password, the maximum of RFC 1929.
const MAX_BYTES: usize = 255;
/// Limits on the cost of a hash. Chosen: a few checks at a time are affordable.
const MAX_MEMORY_KIB: u32 = 256 * 1024;
const MAX_PASSES: u32 = 16;
const MAX_LANES: u32 = 16;

const EXPECTED: &str = "a hash as `tradewind password` makes it: `$argon2id$v=19$m=...`";

/// A user of the proxies.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The name: 1 to 255 bytes without colon.
    pub name: String,
    /// The hash of the password, as `tradewind password` makes it.
    pub password: Hashed,
}

/// The hash of a password: Argon2 (RFC 9106), in the form of a PHC string.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Hashed(String);

tradewind_units::text_schema!(Hashed, "hash", r"^\$argon2(id|i|d)\$", "$argon2id$v=19$...");

impl Hashed {
    /// Hashes `password` with a salt of `entropy`. Takes tens of milliseconds and 19 MiB.
    ///
    /// # Errors
    /// When the password is empty or too long for SOCKS5.
    pub fn of(password: &[u8], entropy: &[u8; 16]) -> Result<Self, String> {
        Self::with(Params::default(), password, entropy)
    }

    fn with(params: Params, password: &[u8], entropy: &[u8; 16]) -> Result<Self, String> {
        if !(1..=MAX_BYTES).contains(&password.len()) {
            let length = password.len();
            return Err(format!("a password of {length} bytes: expected 1 to {MAX_BYTES}"));
        }
        let argon = Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let salt = SaltString::encode_b64(entropy).map_err(|error| error.to_string())?;
        let hash = argon.hash_password(password, &salt).map_err(|error| error.to_string())?;
        Ok(Self(hash.to_string()))
    }

    /// Hashes `password` at the least cost: for tests.
    ///
    /// # Errors
    /// As [`Hashed::of`].
    #[doc(hidden)]
    pub fn cheap(password: &[u8]) -> Result<Self, String> {
        let params = Params::new(Params::MIN_M_COST, 1, 1, None);
        Self::with(params.map_err(|error| error.to_string())?, password, &[7; 16])
    }

    /// Returns whether it is the hash of `password`. Takes as long as the hash's cost parameters
    /// imply.
    #[must_use]
    pub fn is_of(&self, password: &[u8]) -> bool {
        let parsed = PasswordHash::new(&self.0);
        parsed.is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
    }
}

impl FromStr for Hashed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("expected {EXPECTED}");
        let hash = PasswordHash::new(text).map_err(|_| refused())?;
        let is_argon = argon2::Algorithm::try_from(hash.algorithm).is_ok();
        if !is_argon || hash.salt.is_none() || hash.hash.is_none() {
            return Err(refused());
        }
        let params = Params::try_from(&hash).map_err(|_| refused())?;
        if params.m_cost() > MAX_MEMORY_KIB
            || params.t_cost() > MAX_PASSES
            || params.p_cost() > MAX_LANES
        {
            return Err(format!(
                "the hash costs more than m={MAX_MEMORY_KIB}, t={MAX_PASSES}, p={MAX_LANES}; {}",
                refused()
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Hashed {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Hashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Hashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashed")
    }
}

/// Refuses names that no client can send, and duplicates.
pub(crate) fn check(users: &[User]) -> Result<(), ConfigError> {
    let mut seen = BTreeSet::new();
    for (index, user) in users.iter().enumerate() {
        let key = format!("user[{index}].name");
        let is_sent = |c: char| c != ':' && !c.is_control();
        if !(1..=MAX_BYTES).contains(&user.name.len()) || !user.name.chars().all(is_sent) {
            let problem = format!("expected 1 to {MAX_BYTES} bytes without colon");
            return Err(ConfigError::new(key, problem));
        }
        if !seen.insert(user.name.as_str()) {
            return Err(ConfigError::new(key, format!("`{}` is there twice", user.name)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GatewayConfig;

    #[test]
    fn hash_matches_only_its_password() {
        let hash = Hashed::of(b"correct horse", &[1; 16]).unwrap();
        let read: Hashed = hash.to_string().parse().unwrap();
        assert!(read.is_of(b"correct horse") && !read.is_of(b"correct horsf") && !read.is_of(b""));
        let other = Hashed::of(b"correct horse", &[2; 16]).unwrap();
        assert_ne!(hash, other, "salted");
        assert!(Hashed::of(b"", &[1; 16]).is_err() && Hashed::of(&[b'x'; 256], &[1; 16]).is_err());
    }

    #[test]
    fn invalid_users_are_refused_without_the_password() {
        let hash = Hashed::cheap(b"x").unwrap().to_string();
        let dear = hash.replace("t=1", "t=1000");
        let user =
            |name: &str, hash: &str| format!("[[user]]\nname = '{name}'\npassword = '{hash}'\n");
        for (users, expected) in [
            (user("a", "secret"), "configuration, `user[0].password` (line 4): expected a hash as"),
            (
                user("a", "$argon2id$v=19$m=8"),
                "configuration, `user[0].password` (line 4): expected",
            ),
            (user("a", "$2b$12$abcdefghijklmnopqrstuv"), "configuration, `user[0].password`"),
            (user("a", &dear), "configuration, `user[0].password` (line 4): the hash costs more"),
            (user("", &hash), "configuration, `user[0].name` (line 3): expected 1 to 255 bytes"),
            (user("a:b", &hash), "configuration, `user[0].name` (line 3): expected"),
            (
                user("a", &hash) + &user("a", &hash),
                "configuration, `user[1].name` (line 6): `a` is there twice",
            ),
        ] {
            let text = format!("socks5 = ['127.0.0.1:0']\n{users}");
            let line = GatewayConfig::parse(&text).unwrap_err().to_string();
            assert!(line.starts_with(expected), "{line}");
            assert!(!line.contains("secret") && !line.contains(&hash[30..]), "{line}");
        }
    }

    #[test]
    fn open_proxy_needs_users_or_an_explicit_key() {
        let hash = Hashed::cheap(b"x").unwrap();
        let open = "connect = ['0.0.0.0:8080']\nexpose = true\n";
        let line = GatewayConfig::parse(open).unwrap_err().to_string();
        assert!(
            line.starts_with("configuration, `connect` (line 1): 0.0.0.0:8080 is no loopback"),
            "{line}"
        );
        assert!(line.contains("[[user]]") && line.contains("expose_without_password"), "{line}");
        let twice = format!("{open}expose_without_password = true");
        assert!(GatewayConfig::parse(&twice).is_ok());
        let users = format!("{open}[[user]]\nname = 'a'\npassword = '{hash}'");
        assert!(GatewayConfig::parse(&users).is_ok());
        let once = "connect = ['0.0.0.0:8080']\nexpose_without_password = true";
        assert!(GatewayConfig::parse(once).is_err());
    }
}
