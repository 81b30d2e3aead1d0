//! Probes of a gateway's paths by its configuration alone, without running it.

use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tradewind_config::{GatewayConfig, LegProfiles};
use tradewind_desired::{LegProfile, LegTo};
use tradewind_grant::Destination;
use tradewind_stream::StreamError;
use tradewind_stream::dial::local_ports::LocalPorts;
use tradewind_stream::dial::profile::Legs;
use tradewind_stream::dial::try_options;
use tradewind_stream::keys::HeldKeys;
use tradewind_stream::limits::timeouts::LiveTimeouts;
use tradewind_stream::session::buffer_pool::BufferPool;
use tradewind_units::Duration;

use super::Routes;
use super::names;
use super::paths::{PathOption, RelayPath};
use super::report::{PathsReport, Source, report};
use super::service::{GatewayService, Host};

/// Longest wait for one probe. Chosen: a lost handshake packet is sent again after a second.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// Pause between two probes of a path. Chosen: short for a person who waits.
const PAUSE: Duration = Duration::from_millis(50);

/// Probes every relayed path of `config` `count` times and reports the results; with `to`, only
/// those of the rule that covers it. Leaves this host's settings as they are. Blocks.
///
/// # Errors
/// When the identity cannot be read, the grant is another gateway's, or a thread cannot be started.
pub fn survey(
    config: &GatewayConfig,
    to: Option<&Destination>,
    count: u32,
) -> Result<PathsReport, StreamError> {
    let legs = Arc::new(Legs::new(&without_traces(&config.leg), &config.timeouts, None));
    try_options(&legs)?;
    let routes = Arc::new(Routes::new(config.routes.clone(), true)?);
    let timeouts = LiveTimeouts::new(&config.timeouts);
    let local_ports = LocalPorts::default();
    let host = Host {
        own_listeners: Vec::new(),
        timeouts,
        local_ports,
        limits: None,
        held: HeldKeys::default(),
    };
    let service = GatewayService::new(config, Vec::new(), Arc::clone(&routes), legs, host)?;
    let service = Arc::new(service);
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(StreamError::Runtime)?;
    runtime.block_on(async {
        names::look_up(&service).await;
        let mut tasks = JoinSet::new();
        for path in asked_for(&routes, to) {
            tasks.spawn(probe(Arc::clone(&service), path, count));
        }
        while tasks.join_next().await.is_some() {}
    });
    runtime.shutdown_background();
    Ok(report(&routes.current(), Source::Probes, to, routes.now()))
}

/// Returns the paths to `to`, or all paths.
fn asked_for(routes: &Routes, to: Option<&Destination>) -> Vec<Arc<RelayPath>> {
    let routing = routes.current();
    let relayed = |option: &PathOption| match option {
        PathOption::Relays(path) => Some(Arc::clone(path)),
        PathOption::Direct | PathOption::Refuse => None,
    };
    match to {
        Some(to) => routing.options(to).iter().filter_map(relayed).collect(),
        None => routing.paths().map(Arc::clone).collect(),
    }
}

/// Returns the leg profiles for probes, without any option that would change this host's routes or
/// settings.
fn without_traces(legs: &LegProfiles) -> LegProfiles {
    let plain = |leg: &LegProfile| LegProfile { initial_window: None, warm: None, ..leg.clone() };
    let to = legs.to.iter().map(|to| LegTo { dial: plain(&to.dial), ..to.clone() }).collect();
    LegProfiles { dial: plain(&legs.dial), to, ..LegProfiles::default() }
}

async fn probe(service: Arc<GatewayService>, path: Arc<RelayPath>, count: u32) {
    let (buffer_pool, mut leg) = (BufferPool::default(), None);
    for _ in 0..count {
        let sent = service.opener.routes.now();
        let outcome = timeout(MAX_WAIT, service.opener.probe(&path, &mut leg, &buffer_pool)).await;
        let now = service.opener.routes.now();
        match outcome {
            Ok(Ok(legs)) => path.health().answered(0, sent, now, legs),
            Ok(Err(failure)) => return path.health().failed(now, &failure.message),
            Err(_) => {
                let cause = format!("no answer within {} s", MAX_WAIT.as_secs());
                return path.health().failed(now, &cause);
            }
        }
        sleep(PAUSE).await;
    }
}
