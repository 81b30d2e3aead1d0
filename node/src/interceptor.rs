//! Rules of the kernel that take applications' datagrams off their way while there is a far endpoint to carry them to.
//!
//! Whatever goes wrong, datagrams go their old way: the rules are in force only while the far endpoint answers, and the kernel removes
//! them when this process ends, however it ends (`net::interception`). Setting and removing them starts programs, so that a thread of
//! its own does it.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tradewind_grant::DestinationRule;
use tradewind_net::NetError;
use tradewind_net::interception::{Capture, Interception};
use tradewind_units::Duration;

use crate::NodeError;

/// Time between two looks at whether the far endpoints answer.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Looks before rules that the kernel refused are tried again: 5 s.
const LOOKS_BEFORE_AGAIN: u32 = 100;

/// What is to be taken, and whether now.
#[derive(Debug)]
pub(crate) struct Gate {
    capture: Capture,
    is_open: AtomicBool,
}

impl Gate {
    pub(crate) fn new(capture: Capture) -> Self {
        Self { capture, is_open: AtomicBool::new(false) }
    }

    /// Whether the rules could be set.
    pub(crate) fn check(&self) -> Result<(), NetError> {
        Interception::check_for_datagrams(&self.capture)
    }

    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Relaxed);
    }
}

/// A gate's rules.
struct Rules {
    gate: Arc<Gate>,
    in_force: Option<Interception>,
    /// Looks until the kernel is asked again.
    wait: u32,
}

impl Rules {
    fn follow(&mut self) {
        let is_open = self.gate.is_open.load(Ordering::Relaxed);
        self.wait = self.wait.saturating_sub(1);
        match (&self.in_force, is_open) {
            (None, true) if self.wait == 0 => {
                match Interception::set_for_datagrams(&self.gate.capture) {
                    Ok(set) => {
                        tracing::info!("taking datagrams by nftables table {}", set.table());
                        self.in_force = Some(set);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "datagrams go their old way");
                        self.wait = LOOKS_BEFORE_AGAIN;
                    }
                }
            }
            (Some(_), false) => {
                tracing::warn!("the far gateway is silent: datagrams go their old way");
                self.in_force = None;
            }
            _ => {}
        }
    }
}

/// The thread that follows all gates; what is in force ends with it.
#[derive(Debug)]
pub(crate) struct Interceptor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Interceptor {
    pub(crate) fn start(gates: Vec<Arc<Gate>>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let follow = move || {
            let rules = gates.into_iter().map(|gate| Rules { gate, in_force: None, wait: 0 });
            let mut rules: Vec<Rules> = rules.collect();
            while !is_stopped.load(Ordering::Relaxed) {
                rules.iter_mut().for_each(Rules::follow);
                std::thread::park_timeout(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("interceptor".to_owned()).spawn(follow)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Interceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// Brings answers back to where datagrams are delivered under the addresses `sources`, if there are any.
pub(crate) fn answers(sources: &[DestinationRule]) -> Result<Option<Interception>, NodeError> {
    if sources.is_empty() {
        return Ok(None);
    }
    Ok(Some(Interception::set_for_answers(&ranges(sources))?))
}

/// The rules that are ranges, as the kernel's interface has them.
pub(crate) fn ranges(rules: &[DestinationRule]) -> Vec<(IpAddr, u8, RangeInclusive<u16>)> {
    let range = |rule: &DestinationRule| {
        let (base, bits) = rule.range()?;
        Some((base, bits, rule.ports()))
    };
    rules.iter().filter_map(range).collect()
}
