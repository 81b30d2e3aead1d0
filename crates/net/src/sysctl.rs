//! Kernel settings of the network namespace that the calling thread is in.
//!
//! `/proc/sys/net` shows each thread its own namespace, so writes belong on a thread inside (see
//! [`crate::netns::Namespace::run`]).

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

/// Reads the setting `name`, without its line end.
///
/// # Errors
/// When this kernel or namespace has no such setting.
pub fn get(name: &str) -> Result<String> {
    let text = fs::read_to_string(path(name))
        .map_err(|source| NetError::system(format!("read sysctl {name}"), source))?;
    Ok(text.trim_end().to_owned())
}

/// A device's name may hold dots, so slashes separate where a name holds one.
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
    fn a_missing_setting_is_named_in_the_error() {
        let error = set("net.ipv4.no_such_setting", "1").unwrap_err().to_string();
        assert!(error.contains("net.ipv4.no_such_setting=1"), "{error}");
    }
}
