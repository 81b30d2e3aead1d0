//! What can go wrong between us and the kernel, said in one line.

use std::io;

/// Why a request to the kernel or to one of its tools failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A system call failed; `action` says what was tried, and on what.
    #[error("{action}: {source}")]
    System {
        /// What was tried, e.g. `open /dev/net/tun`.
        action: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A program that is needed is not installed.
    #[error("needs the program `{tool}`, which is not on the PATH (Debian package {package})")]
    MissingTool {
        /// The program's name.
        tool: &'static str,
        /// The Debian package that holds it.
        package: &'static str,
    },
    /// A program ran and refused.
    #[error("`{tool}` refused `{input}`: {message}")]
    Tool {
        /// The program's name.
        tool: &'static str,
        /// What it was asked to do.
        input: String,
        /// What it said.
        message: String,
    },
    /// The kernel lacks an ability that has no substitute.
    #[error("this kernel has no {ability}: {needs}")]
    Unsupported {
        /// What is lacking.
        ability: &'static str,
        /// What would provide it.
        needs: &'static str,
    },
    /// The caller may not do this.
    #[error("not permitted to {action}: {needs}")]
    NotPermitted {
        /// What was tried.
        action: &'static str,
        /// What would permit it.
        needs: &'static str,
    },
}

impl NetError {
    /// Wraps the kernel's answer with what was tried.
    pub fn system(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { action: action.into(), source: source.into() }
    }

    /// Wraps `errno` with what was tried.
    pub(crate) fn last_os(action: impl Into<String>) -> Self {
        Self::system(action, io::Error::last_os_error())
    }
}

/// Short for a result whose error is [`NetError`].
pub type Result<T, E = NetError> = std::result::Result<T, E>;
