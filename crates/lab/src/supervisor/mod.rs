//! A lab that outlives the command that started it.
//!
//! `up` starts a process that holds the lab and answers on a local socket; `down`, `exec`,
//! `listen`, `set` and `status` send it requests. A lab from `hold` ends with the process that
//! started it. There is one lab per user. The socket and a state file are in one directory (see
//! [`RuntimeDirectory`]); if the process is killed, its programs and namespaces are gone with it,
//! and the next `up` removes the two files.

mod client;
mod message;
mod runtime_directory;
mod server;

pub use client::{HeldLab, down, exec, hold, listen, set, status, up};
pub use message::{HostStatus, LinkStatus, Status};
pub use runtime_directory::RuntimeDirectory;
pub use server::{Source, serve};
