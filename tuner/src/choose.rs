//! Which actuator works here: the one that is asked for, or the first that does.

use tradewind_jumpstart::{Config, Mode};
use tradewind_net::capability::may_change_routes;
use tradewind_net::route::Routes;
use tradewind_net::sysctl;

use crate::TunerError;
use crate::actuate::{Actuator, ByRoute, BySockops, Nothing};
use crate::config::{Through, TunerConfig};

/// An actuator, and why not the one before it, in one line.
pub(crate) struct Chosen {
    pub(crate) actuator: Box<dyn Actuator>,
    pub(crate) why: Option<String>,
}

/// Takes what the configuration names, or tries one after the other; and removes the routes that an earlier
/// daemon left, whatever acts now.
pub(crate) fn choose(config: &TunerConfig, learn: &Config) -> Result<Chosen, TunerError> {
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
        Through::Routes => plain(by_routes(config, learn)?),
        Through::Auto => first_that_works(config, learn),
    }
}

fn first_that_works(config: &TunerConfig, learn: &Config) -> Result<Chosen, TunerError> {
    let no_sockops = match by_sockops(config, learn) {
        Ok(actuator) => return Ok(Chosen { actuator, why: None }),
        Err(error) => error,
    };
    let no_routes = match learn.mode {
        Mode::Strict => TunerError::NeedsPacing,
        Mode::Riptide | Mode::Paced => match by_routes(config, learn) {
            Ok(actuator) => {
                let without = match learn.mode {
                    Mode::Paced => ", which set windows without a rate",
                    Mode::Riptide | Mode::Strict => "",
                };
                let why =
                    format!("acts through routes{without}, as sockops does not work: {no_sockops}");
                return Ok(Chosen { actuator, why: Some(why) });
            }
            Err(error) => error,
        },
    };
    let why =
        format!("acts through nothing, only shows: sockops: {no_sockops}; routes: {no_routes}");
    Ok(Chosen { actuator: Box::new(Nothing), why: Some(why) })
}

fn by_sockops(config: &TunerConfig, learn: &Config) -> Result<Box<dyn Actuator>, TunerError> {
    let actuator = BySockops::attach(&config.act.options(learn))?;
    if let Some(wanted) = config.act.receive_buffer {
        let most = sysctl::get("net.core.rmem_max").ok().and_then(|text| text.parse().ok());
        if most.is_some_and(|most: u64| most < wanted.as_u64()) {
            tracing::warn!(?most, %wanted, "receive buffers end at net.core.rmem_max");
        }
    }
    Ok(Box::new(actuator))
}

fn by_routes(config: &TunerConfig, learn: &Config) -> Result<Box<dyn Actuator>, TunerError> {
    if !may_change_routes() {
        return Err(TunerError::NoRight);
    }
    let receive = config.act.receive.then_some(learn.window_max);
    Ok(Box::new(ByRoute::open(receive)?))
}
