//! Errors of the kernel and its tools, in one line each.

use std::io;

/// The reason why a request to the kernel or to one of its tools failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A system call failed; `action` names the attempt and its object.
    #[error("{action}: {source}")]
    System {
        /// The attempted action, e.g. `open /dev/net/tun`.
        action: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A required program is not installed.
    #[error("needs the program `{tool}`, which is not on the PATH (Debian package {package})")]
    MissingTool {
        /// The program's name.
        tool: &'static str,
        /// The Debian package that holds it.
        package: &'static str,
    },
    /// A program refused its input.
    #[error("`{tool}` refused `{input}`: {message}")]
    Tool {
        /// The program's name.
        tool: &'static str,
        /// The input.
        input: String,
        /// The program's error message.
        message: String,
    },
    /// The kernel lacks a feature that has no substitute.
    #[error("this kernel has no {kernel_feature}: {needs}")]
    Unsupported {
        /// The missing feature.
        kernel_feature: &'static str,
        /// The requirement for it.
        needs: &'static str,
    },
    /// The caller lacks a permission.
    #[error("not permitted to {action}: {needs}")]
    NotPermitted {
        /// The attempted action.
        action: &'static str,
        /// The requirement for it.
        needs: &'static str,
    },
}

impl NetError {
    /// Wraps the kernel's error with the attempted action.
    pub fn system(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { action: action.into(), source: source.into() }
    }

    /// Wraps `errno` with the attempted action.
    pub(crate) fn last_os(action: impl Into<String>) -> Self {
        Self::system(action, io::Error::last_os_error())
    }
}

/// A result whose error is [`NetError`].
pub type Result<T, E = NetError> = std::result::Result<T, E>;
