//! The number of sessions that the memory and the descriptors of a process allow.

use tradewind_net::descriptors;

use crate::StreamError;
use crate::failure::plain;
use crate::limits::memory::Memory;
use tradewind_config::Limits;

/// Descriptors that come and go beside sessions: metrics, logs, names that are looked up.
const OWN_DESCRIPTORS: usize = 24;
/// Descriptors of a worker's runtime.
const EACH_WORKER: usize = 4;
/// Descriptors of one listener of one worker: itself, a hold on it for the next process, and one in
/// reserve.
const EACH_LISTENER: usize = 3;
/// The descriptors among these that are not open yet when the listeners are.
const EACH_LISTENER_LATER: usize = 1;

/// The number of listeners of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listening {
    pub(crate) addresses: usize,
    pub(crate) workers: usize,
}

impl Listening {
    const fn listeners(self) -> usize {
        self.addresses * self.workers
    }
}

/// The resources of a process for sessions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    listening: Listening,
    /// The limit of its descriptors; absent if unknown.
    descriptors: Option<usize>,
    /// The descriptors that are open before there are sessions.
    open: usize,
}

impl Capacity {
    /// Determines the resources of this process. Call it when the listeners are open.
    pub(crate) fn find(listening: Listening) -> Self {
        let descriptors = match descriptors::raise_limit() {
            Ok(limit) => Some(usize::try_from(limit).unwrap_or(usize::MAX)),
            Err(error) => {
                tracing::warn!("descriptor limit: {}", plain(&error));
                None
            }
        };
        let open = descriptors::count(std::process::id())
            .map_or(0, |open| usize::try_from(open).unwrap_or(usize::MAX));
        Self { listening, descriptors, open }
    }

    /// Returns the number of sessions allowed, at most those of `limits`: more would be admitted
    /// and could then not be carried on.
    ///
    /// # Errors
    /// When there is no descriptor left for any.
    pub(crate) fn sessions(&self, limits: &Limits) -> Result<usize, StreamError> {
        let mut wanted = limits.sessions;
        if let Some(memory) = limits.memory {
            let affordable = Memory::sessions(memory);
            if affordable < wanted {
                tracing::warn!("{memory} of memory allow {affordable} sessions, not {wanted}");
                wanted = affordable.max(1);
            }
        }
        let Some(limit) = self.descriptors else { return Ok(wanted) };
        let affordable = sessions_of(limit, self.open, self.listening, limits.unauthenticated);
        let Listening { addresses, workers } = self.listening;
        let used = EACH_LISTENER * self.listening.listeners();
        if affordable == 0 {
            return Err(StreamError::Descriptors { limit, used, addresses, workers });
        }
        if affordable < wanted {
            tracing::warn!(
                "{limit} descriptors, {used} of them for {addresses} listeners of {workers} \
                 workers each, allow {affordable} sessions, not {wanted}; raise the limit \
                 (ulimit -n) or lower `workers`"
            );
        }
        Ok(wanted.min(affordable))
    }
}

/// Returns the sessions that `limit` descriptors allow of which `open` are open already, listeners
/// included: two for each, with an eighth of all reserved for pipes, and one for each
/// unauthenticated connection.
fn sessions_of(limit: usize, open: usize, listening: Listening, unauthenticated: usize) -> usize {
    let later = EACH_LISTENER_LATER * listening.listeners() + EACH_WORKER * listening.workers;
    // Where there are more of these than pipes they find no descriptor, and are shed.
    let unauthenticated = unauthenticated.min(limit / 8);
    (limit - limit / 8).saturating_sub(open + later + OWN_DESCRIPTORS + unauthenticated) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_descriptors_are_reserved() {
        let of = |addresses, workers| {
            let listening = Listening { addresses, workers };
            sessions_of(20_000, 10 + 2 * listening.listeners(), listening, 1000)
        };
        assert!(of(1, 2) >= 8000, "{}", of(1, 2));
        let many = of(80, 64);
        assert!((1..600).contains(&many), "{many}");
        assert!(2 * many + 3 * 80 * 64 <= 20_000);
        assert_eq!(of(100, 64), 0, "a process that can listen and carry nothing");
    }

    #[test]
    fn few_descriptors_leave_some_for_sessions() {
        let listening = Listening { addresses: 1, workers: 4 };
        assert_eq!(sessions_of(1024, 20, listening, 1_000_000), (896 - 20 - 20 - 24 - 128) / 2);
        assert_eq!(sessions_of(0, 20, listening, 1000), 0);
    }
}
