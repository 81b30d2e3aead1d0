//! The socket-buffer limits that leg profiles need from a host's kernel, as no socket can exceed
//! them by itself.
//!
//! A connection has at most as many bytes in flight as both ends' buffers allow. The kernel tunes
//! these up to the last values of `net.ipv4.tcp_rmem` and `tcp_wmem`; buffers that a profile sets
//! are capped by `net.core.rmem_max` and `wmem_max` without CAP_NET_ADMIN.

use tradewind_units::Bytes;

use crate::LegProfile;

/// The first two values of `net.ipv4.tcp_rmem`, as Linux has them: least and initial.
const RECEIVE_FIRST: &str = "4096 131072";
/// The first two values of `net.ipv4.tcp_wmem`.
const SEND_FIRST: &str = "4096 16384";

/// The largest buffers that a host's kernel allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostBuffers {
    /// The last value of `net.ipv4.tcp_rmem`.
    pub tuned_receive: Bytes,
    /// The last value of `net.ipv4.tcp_wmem`.
    pub tuned_send: Bytes,
    /// `net.core.rmem_max`; `None` where the process may exceed it.
    pub set_receive: Option<Bytes>,
    /// `net.core.wmem_max`; `None` where the process may exceed it.
    pub set_send: Option<Bytes>,
}

impl HostBuffers {
    /// Returns the window that a connection can grow to.
    #[must_use]
    pub fn window(&self) -> Bytes {
        let receive = self.tuned_receive.as_u64() / RECEIVE_OF_WINDOW;
        let send = self.tuned_send.as_u64() / SEND_OF_WINDOW.1 * SEND_OF_WINDOW.0;
        Bytes::new(receive.min(send))
    }
}

/// Bytes of receive buffer for each byte of window. Source: half of a buffer is window
/// (`tcp_adv_win_scale = 1`, and the initial value of newer kernels).
const RECEIVE_OF_WINDOW: u64 = 2;
/// Bytes in flight for bytes of send buffer, which counts the kernel's own overhead. Chosen: a
/// fifth is overhead; with segmentation offload some hundredths are.
const SEND_OF_WINDOW: (u64, u64) = (4, 5);

/// The largest buffers that some leg profiles need; zero where none is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BufferNeeds {
    /// The largest window that a profile counts on.
    window: Bytes,
    /// The largest receive buffer that a profile sets.
    receive: Bytes,
    /// The largest send buffer that a profile sets.
    send: Bytes,
}

impl BufferNeeds {
    /// Returns the buffers that these profiles need.
    #[must_use]
    pub fn of<'a>(profiles: impl IntoIterator<Item = &'a LegProfile>) -> Self {
        let mut needs = Self::default();
        for profile in profiles {
            needs.window = needs.window.max(profile.window.unwrap_or_default());
            needs.receive = needs.receive.max(profile.receive_buffer.unwrap_or_default());
            needs.send = needs.send.max(profile.send_buffer.unwrap_or_default());
        }
        needs
    }

    fn tuned(&self) -> [u64; 2] {
        let window = self.window.as_u64();
        // Capped at the largest value that the kernel's settings can hold.
        let settable = |bytes: u64| bytes.min(i32::MAX as u64);
        let receive = window.saturating_mul(RECEIVE_OF_WINDOW);
        let send = window.div_ceil(SEND_OF_WINDOW.0).saturating_mul(SEND_OF_WINDOW.1);
        [settable(receive), settable(send)]
    }

    /// Returns the kernel settings that provide these buffers, for a file of `/etc/sysctl.d`; empty
    /// if none is needed.
    #[must_use]
    pub fn sysctls(&self) -> String {
        let mut lines = String::new();
        let [receive, send] = self.tuned();
        if receive > 0 {
            lines += &format!("net.ipv4.tcp_rmem = {RECEIVE_FIRST} {receive}\n");
            lines += &format!("net.ipv4.tcp_wmem = {SEND_FIRST} {send}\n");
        }
        let set = [("rmem_max", self.receive), ("wmem_max", self.send)];
        for (name, most) in set.into_iter().filter(|(_, most)| *most > Bytes::ZERO) {
            lines += &format!("net.core.{name} = {}\n", most.as_u64());
        }
        lines
    }

    /// Returns a line for each setting of `host` that is too low: its value, and the required one.
    #[must_use]
    pub fn shortfalls(&self, host: &HostBuffers) -> Vec<String> {
        let [receive, send] = self.tuned();
        let tuned = [
            ("net.ipv4.tcp_rmem", host.tuned_receive, receive),
            ("net.ipv4.tcp_wmem", host.tuned_send, send),
        ];
        let tuned = tuned.into_iter().filter(|(_, has, needed)| has.as_u64() < *needed);
        let tuned = tuned.map(|(name, has, needed)| {
            format!(
                "{name} ends at {} B, too little for the `window` of {} of a leg: its last value \
                 would have to be {needed}",
                has.as_u64(),
                self.window
            )
        });
        let set = [
            ("net.core.rmem_max", host.set_receive, self.receive, "receive_buffer"),
            ("net.core.wmem_max", host.set_send, self.send, "send_buffer"),
        ];
        let set = set.into_iter().filter_map(|(name, has, needed, key)| {
            let has = has.filter(|has| *has < needed)?.as_u64();
            let needed = needed.as_u64();
            Some(format!(
                "{name} is {has}, below the `{key}` of a leg: it would have to be {needed}, or \
                 the process needs CAP_NET_ADMIN"
            ))
        });
        tuned.chain(set).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::NamedProfile;

    /// Returns a host with Linux's defaults up to 6.15; later kernels have 32 MiB to receive.
    fn default_host() -> HostBuffers {
        HostBuffers {
            tuned_receive: Bytes::new(6 << 20),
            tuned_send: Bytes::new(4 << 20),
            set_receive: Some(Bytes::new(212_992)),
            set_send: Some(Bytes::new(212_992)),
        }
    }

    #[test]
    fn stock_host_matches_the_planned_window() {
        let window = tradewind_model::leg::DEFAULT_WINDOW;
        assert!(default_host().window() >= window);
        let asked = LegProfile { window: Some(window), ..LegProfile::default() };
        assert_eq!(BufferNeeds::of([&asked]).shortfalls(&default_host()), Vec::<String>::new());
    }

    #[test]
    fn required_buffers_are_set_and_shortfalls_reported() {
        let wide = LegProfile { window: Some(Bytes::new(500_000_000)), ..LegProfile::default() };
        let needs = BufferNeeds::of([&LegProfile::default(), &wide]);
        assert_eq!(
            needs.sysctls(),
            "net.ipv4.tcp_rmem = 4096 131072 1000000000\nnet.ipv4.tcp_wmem = 4096 16384 625000000\n"
        );
        let shortfalls = needs.shortfalls(&default_host());
        assert_eq!(shortfalls.len(), 2, "{shortfalls:?}");
        assert!(
            shortfalls[0].contains("tcp_rmem ends at 6291456 B")
                && shortfalls[0].contains("1000000000")
        );
        let enough = HostBuffers {
            tuned_receive: Bytes::new(1_000_000_000),
            tuned_send: Bytes::new(625_000_000),
            ..default_host()
        };
        assert!(needs.shortfalls(&enough).is_empty());
        assert!(enough.window() >= Bytes::new(500_000_000));
    }

    #[test]
    fn explicit_buffers_use_other_maxima_unless_privileged() {
        let jump = NamedProfile::QuickStart.profile();
        let needs = BufferNeeds::of([&jump]);
        assert_eq!(needs.sysctls(), "net.core.rmem_max = 16000000\nnet.core.wmem_max = 16000000\n");
        let shortfalls = needs.shortfalls(&default_host());
        assert!(
            shortfalls[0].contains("`receive_buffer`") && shortfalls[1].contains("`send_buffer`")
        );
        let privileged = HostBuffers { set_receive: None, set_send: None, ..default_host() };
        assert!(needs.shortfalls(&privileged).is_empty());
        assert!(BufferNeeds::default().sysctls().is_empty());
    }
}
