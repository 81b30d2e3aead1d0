//! Limits of this host on the receiving side that was configured.

use tradewind_jumpstart::Config;
use tradewind_net::sysctl;
use tradewind_units::{Bytes, Segments};

use tradewind_config::JumpstartConfig;

/// Payload of a segment on most paths.
const SEGMENT: u64 = 1448;

/// Returns the limit in one line; `None` when there is none, or when the actuator `through`
/// prepares nothing.
pub(crate) fn limit(config: &JumpstartConfig, learn: &Config, through: &str) -> Option<String> {
    if through == "none" {
        return None;
    }
    match config.act.receive_buffer.filter(|_| through == "sockops") {
        Some(wanted) => of_set_buffers(number("net.core.rmem_max", 0)?, wanted),
        None if config.act.receive => {
            of_usual_buffers(number("net.ipv4.tcp_rmem", 1)?, learn.window_max)
        }
        None => None,
    }
}

/// Reads a number of a kernel setting, by its position.
fn number(setting: &str, place: usize) -> Option<u64> {
    sysctl::get(setting).ok()?.split_whitespace().nth(place)?.parse().ok()
}

fn of_set_buffers(most: u64, wanted: Bytes) -> Option<String> {
    let is_short = most < wanted.as_u64();
    is_short.then(|| {
        format!(
            "receive buffers end at {most} bytes, net.core.rmem_max, below `receive_buffer`, \
             {wanted}"
        )
    })
}

/// Checks the kernel's usual buffers, of which it opens half for payload.
fn of_usual_buffers(middle: u64, c_max: Segments) -> Option<String> {
    let (space, segments) = (middle / 2, c_max.as_u32());
    (space < u64::from(segments) * SEGMENT).then(|| {
        format!(
            "what others send at first ends at {space} bytes, half of the middle value of \
             net.ipv4.tcp_rmem, below c_max, {segments} segments; \
             raise it, or set `receive_buffer` (through sockops)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_shortfall_is_one_line() {
        let wanted = Bytes::new(8_000_000);
        let shortfall = of_set_buffers(212_992, wanted).unwrap();
        assert!(
            shortfall.contains("212992")
                && shortfall.contains("rmem_max")
                && !shortfall.contains('\n')
        );
        assert_eq!(of_set_buffers(8_000_000, wanted), None);
        let c_max = Segments::new(100).unwrap();
        let shortfall = of_usual_buffers(131_072, c_max).unwrap();
        assert!(
            shortfall.contains("65536")
                && shortfall.contains("tcp_rmem")
                && !shortfall.contains('\n')
        );
        assert_eq!(of_usual_buffers(289_600, c_max), None);
        assert!(of_usual_buffers(289_599, c_max).is_some());
    }

    #[test]
    fn actuator_without_buffers_has_no_limit() {
        let limit = |text: &str, through| {
            let config = JumpstartConfig::parse(text).unwrap();
            super::limit(&config, &Config::resolve(&config.learn).unwrap(), through)
        };
        let most = "[act]\nreceive_buffer = \"1 GiB\"";
        assert!(limit(most, "sockops").unwrap().contains("rmem_max"));
        assert_eq!(limit(most, "none"), None);
        // Through routes no buffer is set, so the usual ones apply.
        let routes = limit("[learn]\nc_max = 65535\n[act]\nreceive_buffer = \"1 GiB\"", "routes");
        assert!(routes.is_none_or(|shortfall| shortfall.contains("tcp_rmem")));
        assert_eq!(limit("[learn]\nc_max = 65535\n[act]\nreceive = false", "routes"), None);
    }
}
