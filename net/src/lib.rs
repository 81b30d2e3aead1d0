//! The kernel: everything that this workspace asks of Linux by name.
#![allow(unsafe_code, reason = "system calls; each block states why it is sound")]

pub mod congestion;
pub mod tcp_info;
