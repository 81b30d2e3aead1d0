//! Choice of the actuator: the configured one, or the first that works here.

use tradewind_jumpstart::{Config, Mode};
use tradewind_net::capability::may_change_routes;
use tradewind_net::route::Routes;

use crate::DaemonError;
use crate::actuate::{Actuator, ByRoute, BySockops, Nothing};
use tradewind_config::jumpstart::{JumpstartConfig, Scope, Through};

/// The chosen actuator, and in one line why a better one was not chosen.
pub(crate) struct Chosen {
    pub(crate) actuator: Box<dyn Actuator>,
    pub(crate) why: Option<String>,
}

/// Returns the configured actuator, or the first that works.
pub(crate) fn choose(config: &JumpstartConfig, learn: &Config) -> Result<Chosen, DaemonError> {
    match config.scope {
        Scope::Host => for_the_host(config, learn),
        Scope::Process => for_this_process(config, learn),
    }
}

/// Chooses for one process: leaves routes alone, also those of a daemon.
fn for_this_process(config: &JumpstartConfig, learn: &Config) -> Result<Chosen, DaemonError> {
    if config.act.through == Through::None {
        return Ok(Chosen { actuator: Box::new(Nothing), why: None });
    }
    match by_sockops(config, learn) {
        Ok(actuator) => Ok(Chosen { actuator, why: None }),
        Err(error) if config.act.through == Through::Sockops => Err(error),
        Err(error) => {
            let why = format!("jump-start acts through nothing, only shows: sockops: {error}");
            Ok(Chosen { actuator: Box::new(Nothing), why: Some(why) })
        }
    }
}

/// Chooses for the host; also removes the routes that an earlier daemon left, whichever actuator is
/// chosen.
fn for_the_host(config: &JumpstartConfig, learn: &Config) -> Result<Chosen, DaemonError> {
    if config.act.through != Through::None && may_change_routes() {
        let swept = Routes::open()?.sweep()?;
        if swept > 0 {
            tracing::warn!(swept, "removed the routes that an earlier daemon had left");
        }
    }
    let plain = |actuator| Ok(Chosen { actuator, why: None });
    match config.act.through {
        Through::None => plain(Box::new(Nothing)),
        Through::Sockops => plain(by_sockops(config, learn)?),
        Through::Routes => {
            let why = left_out(config, learn).map(|left_out| format!("routes {left_out}"));
            Ok(Chosen { actuator: by_routes(config, learn)?, why })
        }
        Through::Auto => first_that_works(config, learn),
    }
}

fn first_that_works(config: &JumpstartConfig, learn: &Config) -> Result<Chosen, DaemonError> {
    let no_sockops = match by_sockops(config, learn) {
        Ok(actuator) => return Ok(Chosen { actuator, why: None }),
        Err(error) => error,
    };
    let why = match by_routes(config, learn) {
        Ok(actuator) => {
            let without =
                left_out(config, learn).map_or_else(String::new, |it| format!(", which {it}"));
            let why =
                format!("acts through routes{without}, as sockops does not work: {no_sockops}");
            return Ok(Chosen { actuator, why: Some(why) });
        }
        Err(no_routes) => {
            format!("acts through nothing, only shows: sockops: {no_sockops}; routes: {no_routes}")
        }
    };
    Ok(Chosen { actuator: Box::new(Nothing), why: Some(why) })
}

/// Returns the parts of the configuration that routes ignore, if any.
fn left_out(config: &JumpstartConfig, learn: &Config) -> Option<String> {
    let all = [
        (learn.mode == Mode::Paced, "set windows without a rate"),
        (config.act.receive_buffer.is_some(), "leave `receive_buffer` out"),
        (config.act.all_namespaces, "hold for this network namespace alone"),
    ];
    let left_out: Vec<&str> = all.iter().filter(|(asked, _)| *asked).map(|(_, it)| *it).collect();
    (!left_out.is_empty()).then(|| left_out.join(", "))
}

/// Checks that routes can keep to the configuration: what they would apply more widely is refused.
fn suits_routes(config: &JumpstartConfig, learn: &Config) -> Result<(), DaemonError> {
    if learn.mode == Mode::Strict {
        return Err(DaemonError::NeedsPacing);
    }
    match &config.act.cgroup {
        Some(group) => Err(DaemonError::NeedsSockops(group.clone())),
        None => Ok(()),
    }
}

fn by_sockops(config: &JumpstartConfig, learn: &Config) -> Result<Box<dyn Actuator>, DaemonError> {
    Ok(Box::new(BySockops::attach(&crate::kernel::options(config, learn))?))
}

fn by_routes(config: &JumpstartConfig, learn: &Config) -> Result<Box<dyn Actuator>, DaemonError> {
    suits_routes(config, learn)?;
    if !may_change_routes() {
        return Err(DaemonError::NoRight);
    }
    let receive = config.act.receive.then_some(learn.window_max);
    Ok(Box::new(ByRoute::open(receive)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(text: &str) -> (Result<(), String>, Option<String>) {
        let config = JumpstartConfig::parse(text).unwrap();
        let learn = Config::resolve(&config.learn).unwrap();
        let suits = suits_routes(&config, &learn).map_err(|error| error.to_string());
        (suits, left_out(&config, &learn))
    }

    #[test]
    fn routes_refuse_narrower_scopes() {
        assert_eq!(routes(""), (Ok(()), None));
        for (text, expected) in [
            ("[learn]\nmode = \"strict\"", "mode `strict` paces every jump"),
            ("[act]\ncgroup = \"/sys/fs/cgroup/web.slice\"", "`act.cgroup`: routes hold for"),
        ] {
            let refused = routes(text).0.unwrap_err();
            assert!(refused.contains(expected) && !refused.contains('\n'), "{text}: {refused}");
        }
    }

    #[test]
    fn routes_report_ignored_settings() {
        let text = "[learn]\nmode = \"paced\"\n[act]\nreceive_buffer = \"8 MB\"";
        let (suits, left_out) = routes(text);
        let expected = "set windows without a rate, leave `receive_buffer` out";
        assert_eq!((suits, left_out.as_deref()), (Ok(()), Some(expected)));
    }
}
