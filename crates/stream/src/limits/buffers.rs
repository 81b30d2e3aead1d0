//! Check that this host's kernel allows the socket buffers that legs need.

use tradewind_desired::{BufferNeeds, HostBuffers};
use tradewind_net::{capability, sysctl};
use tradewind_units::Bytes;

/// Returns the largest socket buffers that this process can set here; `None` where the kernel does
/// not tell.
#[must_use]
pub fn host_buffers() -> Option<HostBuffers> {
    let last = |name: &str| {
        let text = sysctl::get(name).ok()?;
        text.split_whitespace().next_back()?.parse().ok().map(Bytes::new)
    };
    let set = |name: &str| {
        let most = last(name).filter(|_| !capability::may_change_routes())?;
        Some(most)
    };
    Some(HostBuffers {
        tuned_receive: last("net.ipv4.tcp_rmem")?,
        tuned_send: last("net.ipv4.tcp_wmem")?,
        set_receive: set("net.core.rmem_max"),
        set_send: set("net.core.wmem_max"),
    })
}

/// Logs the buffers in `needs` that this host does not allow.
pub(crate) fn tell_shortfalls(needs: &BufferNeeds) {
    let host = host_buffers();
    for shortfall in host.iter().flat_map(|host| needs.shortfalls(host)) {
        tracing::warn!("{shortfall}; sessions are slower than was counted on");
    }
}
