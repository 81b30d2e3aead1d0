//! Kernel settings of the calling thread's network namespace.
//!
//! `/proc/sys/net` shows each thread its own namespace, so writes must be made on a thread inside
//! (see [`crate::netns::Namespace::run`]).

use std::fs;

use crate::error::{NetError, Result};

/// Writes `value` to the setting `name`, e.g. `net.ipv4.tcp_rmem`.
///
/// # Errors
/// When this kernel or namespace has no such setting, or refuses the value.
pub fn set(name: &str, value: &str) -> Result<()> {
    fs::write(path(name), value)
        .map_err(|source| NetError::system(format!("set sysctl {name}={value}"), source))
}

/// Reads the setting `name`, without the final newline.
///
/// # Errors
/// When this kernel or namespace has no such setting.
pub fn get(name: &str) -> Result<String> {
    let text = fs::read_to_string(path(name))
        .map_err(|source| NetError::system(format!("read sysctl {name}"), source))?;
    Ok(text.trim_end().to_owned())
}

/// Returns the path of a setting. A device's name may hold dots, so a name with slashes is split at
/// these.
fn path(name: &str) -> String {
    if name.contains('/') {
        format!("/proc/sys/{name}")
    } else {
        format!("/proc/sys/{}", name.replace('.', "/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_setting_is_named() {
        let error = set("net.ipv4.no_such_setting", "1").unwrap_err().to_string();
        assert!(error.contains("net.ipv4.no_such_setting=1"), "{error}");
    }
}
