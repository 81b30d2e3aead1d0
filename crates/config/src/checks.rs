//! Checks that the configurations of relays and gateways share.

use std::net::SocketAddr;
use std::time::Duration;

use tradewind_grant::DestinationRule;
use tradewind_units::Bytes;

use crate::listeners::first_clash;
use crate::{ConfigError, Limits, Timeouts};

pub(crate) fn check_common(
    limits: &Limits,
    timeouts: &Timeouts,
    workers: Option<usize>,
) -> Result<(), ConfigError> {
    /// Least memory limit: with less, a handful of sessions would block each other.
    const MIN_MEMORY: Bytes = Bytes::new(1_000_000);
    /// Ranges that tcp(7) accepts for TCP_KEEPIDLE, and for TCP_USER_TIMEOUT (milliseconds in an
    /// integer of 32 bits).
    const MIN_KEEPALIVE: Duration = Duration::from_secs(1);
    const MAX_KEEPALIVE: Duration = Duration::from_secs(32_767);
    const MIN_USER_TIMEOUT: Duration = Duration::from_millis(1);
    const MAX_USER_TIMEOUT: Duration = Duration::from_secs(24 * 86_400);
    check_workers(workers)?;
    if limits.sessions == 0 {
        return Err(ConfigError::new("limits.sessions", "expected at least 1"));
    }
    for (key, memory) in [
        ("limits.memory", limits.memory),
        ("limits.each_gateway.memory", limits.each_gateway.memory),
        ("limits.each_grant.memory", limits.each_grant.memory),
        ("limits.each_source.memory", limits.each_source.memory),
    ] {
        if memory.is_some_and(|memory| memory < MIN_MEMORY) {
            return Err(ConfigError::new(key, format!("expected at least {MIN_MEMORY}")));
        }
    }
    check_ranges("limits.trusted_sources", &limits.trusted_sources)?;
    if limits.unauthenticated == 0 {
        return Err(ConfigError::new("limits.unauthenticated", "expected at least 1"));
    }
    for (key, span) in [
        ("timeouts.header", Some(timeouts.header)),
        ("timeouts.dial", Some(timeouts.dial)),
        ("timeouts.idle", timeouts.idle),
        ("timeouts.half_closed", timeouts.half_closed),
    ] {
        if span.is_some_and(|span| span.is_zero()) {
            return Err(ConfigError::new(key, "expected a span above zero"));
        }
    }
    let fits = |span: Option<Duration>, least, longest| {
        span.is_none_or(|span| (least..=longest).contains(&span))
    };
    if !fits(timeouts.keepalive, MIN_KEEPALIVE, MAX_KEEPALIVE) {
        return Err(ConfigError::new(
            "timeouts.keepalive",
            "expected 1 s to 32767 s, as the kernel takes it, or `off`",
        ));
    }
    if !fits(timeouts.user, MIN_USER_TIMEOUT, MAX_USER_TIMEOUT) {
        let problem = "expected 1 ms to 24 days, as the kernel takes it, or `off`";
        return Err(ConfigError::new("timeouts.user", problem));
    }
    Ok(())
}

/// Refuses a number of threads that makes no sense.
pub(crate) fn check_workers(workers: Option<usize>) -> Result<(), ConfigError> {
    /// Most workers: more than the cores of any intended machine.
    const MAX_WORKERS: usize = 1024;
    if workers.is_some_and(|count| !(1..=MAX_WORKERS).contains(&count)) {
        return Err(ConfigError::new("workers", format!("expected 1 to {MAX_WORKERS} threads")));
    }
    Ok(())
}

/// Refuses two listeners whose addresses conflict; each is given with its key.
///
/// # Errors
/// The later one, at its key.
pub fn check_twice<K: Clone + AsRef<str>>(
    listeners: impl IntoIterator<Item = (K, SocketAddr)>,
) -> Result<(), ConfigError> {
    let Some([(other, used), (key, address)]) = first_clash(listeners) else { return Ok(()) };
    let problem = format!(
        "{address} is listened on twice: `{}` has {used} already; expected another address or \
         port for one of them",
        other.as_ref()
    );
    Err(ConfigError::new(key.as_ref(), problem))
}

/// Refuses metrics at another than a loopback address, unless `expose` allows it.
///
/// # Errors
/// The address, and what to set.
pub fn check_exposed(metrics: Option<SocketAddr>, expose: bool) -> Result<(), ConfigError> {
    let Some(address) = metrics.filter(|address| !expose && !address.ip().is_loopback()) else {
        return Ok(());
    };
    let problem = format!(
        "{address} is no loopback address: whoever reaches it reads what runs here; set \
         `metrics_expose = true` if that is wanted"
    );
    Err(ConfigError::new("metrics", problem))
}

/// Refuses rules by name where connections are matched by address alone: such a rule would never
/// match.
pub(crate) fn check_ranges(key: &str, rules: &[DestinationRule]) -> Result<(), ConfigError> {
    range_problem(rules).map_or(Ok(()), |problem| Err(ConfigError::new(key, problem)))
}

/// Returns the error for rules by name where connections are matched by address alone.
pub(crate) fn range_problem(rules: &[DestinationRule]) -> Option<String> {
    let rule = rules.iter().find(|rule| rule.range().is_none())?;
    Some(format!(
        "`{rule}`: expected ranges of addresses such as `10.0.0.0/8:*`: names are not looked up \
         here"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_beyond_loopback_must_be_asked_for() {
        for (address, expose, is_right) in [
            ("127.0.0.1:9464", false, true),
            ("[::1]:9464", false, true),
            ("0.0.0.0:9464", false, false),
            ("192.0.2.1:9464", false, false),
            ("[::]:9464", false, false),
            ("0.0.0.0:9464", true, true),
        ] {
            let checked = check_exposed(Some(address.parse().unwrap()), expose);
            assert_eq!(checked.is_ok(), is_right, "{address}");
        }
    }
}
