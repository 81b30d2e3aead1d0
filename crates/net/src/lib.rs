//! The kernel interface: everything that this workspace uses of Linux directly.
//!
//! No other crate makes a system call that the standard library lacks, writes a `/proc` path or
//! runs `ip`. The interface is safe Rust with clear errors ([`NetError`]); `unsafe` stays inside,
//! each block with its reason.
#![allow(unsafe_code, reason = "system calls; each block states why it is sound")]

pub mod affinity;
pub mod arena;
pub mod capability;
pub mod cgroup;
pub mod clock;
pub mod congestion;
pub mod counters;
pub mod descriptor;
pub mod descriptors;
pub mod discard;
pub mod entropy;
pub mod epoll;
pub mod error;
pub mod handover;
pub mod idle;
pub mod initial_window;
pub mod interception;
pub mod iproute;
pub mod jumpstart;
pub mod kernel_feature;
pub mod lifeline;
pub mod local_address;
pub mod log_file;
mod netlink;
pub mod netns;
pub mod nft;
pub mod pacing;
pub mod packet_socket;
pub mod periodic;
pub mod pidns;
pub mod pipe_pool;
pub mod precedence;
pub mod private_directory;
pub mod privileges;
pub mod processes;
pub mod registration;
pub mod route;
pub mod sandbox;
pub mod secret_file;
pub mod signals;
pub mod sock_diag;
mod sockops;
pub mod splice;
pub mod stand_in;
pub mod sysctl;
pub mod systemd;
pub mod tcp;
pub mod tcp_info;
pub mod text_file;
pub mod tun;
pub mod udp;
pub mod usage;
pub mod userns;
pub mod virtio;
pub mod window_route;

pub use error::NetError;

/// Reports that a test was skipped, past the capture of passing tests' output.
#[cfg(test)]
pub(crate) fn skipped(why: &str) {
    use std::io::Write as _;
    let _written = std::io::stderr().write_all(format!("SKIPPED {why}\n").as_bytes());
}
