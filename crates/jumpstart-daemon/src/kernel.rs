//! The configuration as the kernel takes it.

use tradewind_config::ConfigError;
use tradewind_config::jumpstart::{Act, JumpstartConfig, Scope, Through};
use tradewind_jumpstart::{Config, Mode};
use tradewind_net::NetError;
use tradewind_net::cgroup;
use tradewind_net::jumpstart::Options;
use tradewind_net::sock_diag::Filter;

use crate::DaemonError;

/// Refuses control groups that are not there.
pub(crate) fn check_groups(config: &JumpstartConfig) -> Result<(), DaemonError> {
    let acts = config.act.through != Through::None;
    for (key, group) in [
        ("observe.cgroup", config.observe.cgroup.as_ref()),
        ("act.cgroup", config.act.cgroup.as_ref().filter(|_| acts)),
    ] {
        let refused = |error: NetError| ConfigError::new(key, error.to_string());
        group.map(|group| cgroup::numbers_below(group)).transpose().map_err(refused)?;
    }
    Ok(())
}

/// Returns the options for the program in the kernel, with `learn`.
#[must_use]
pub fn options(config: &JumpstartConfig, learn: &Config) -> Options {
    let Act { cgroup, all_namespaces, receive_buffer, .. } = config.act.clone();
    Options {
        own_alone: config.scope == Scope::Process,
        cgroup,
        all_namespaces,
        control: learn.control.share(),
        least: learn.window_min,
        at_once: (learn.mode == Mode::Strict).then_some(1),
        receive_buffer,
        most: u32::try_from(learn.max_destinations).unwrap_or(u32::MAX),
    }
}

/// Returns the kernel's filter for the connections to observe.
#[must_use]
pub fn filter(config: &JumpstartConfig) -> Filter {
    Filter {
        ports: config.observe.ports.clone(),
        within: config.observe.within.clone(),
        except: config.observe.except.clone(),
        cgroup: config.observe.cgroup.clone(),
        own: config.scope == Scope::Process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learner_of_a_process_looks_at_its_own_sockets() {
        for (scope, is_own) in [(Scope::Process, true), (Scope::Host, false)] {
            let config = JumpstartConfig { scope, ..JumpstartConfig::default() };
            assert_eq!(filter(&config).own, is_own);
            assert_eq!(options(&config, &Config::default()).own_alone, is_own);
        }
    }
}
