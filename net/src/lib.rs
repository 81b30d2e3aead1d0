//! The kernel: socket options, splice, namespaces, TUN and packet sockets.
#![allow(unsafe_code, reason = "the one crate that speaks to the kernel by raw calls")]

pub mod descriptors;
pub mod entropy;
pub mod pipe_pool;
pub mod splice;
pub mod tcp;
