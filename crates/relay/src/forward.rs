//! Forwarding without splitting: a relay's kernel passes packets on, and no connection ends there.
//! The papers' baseline [CDD 3], and a cheap relay where splitting gains nothing.

use std::str::FromStr;

use tradewind_config::check_twice;
use tradewind_grant::forbidden::class_of;
use tradewind_net::NetError;
use tradewind_net::nft;
use tradewind_stream::error::refused;
use tradewind_stream::process::shutdown::Phase;
use tradewind_stream::{Shutdown, StreamError};
use tradewind_units::address;

/// A rule of forwarding: `LISTEN=TO`, two addresses with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardRule(nft::Rule);

impl FromStr for ForwardRule {
    type Err = StreamError;

    fn from_str(text: &str) -> Result<Self, StreamError> {
        let refused = |problem: String| refused(format!("forward `{text}`"), problem);
        let expected = "expected LISTEN=TO, such as `0.0.0.0:7000=192.0.2.9:443`".to_owned();
        let address = |text: &str| address::parse(text).ok().filter(|one| one.port() != 0);
        let rule = text.split_once('=').and_then(|(listen, to)| {
            Some(nft::Rule { listen: address(listen)?, to: address(to)? })
        });
        let rule = rule.ok_or_else(|| refused(expected))?;
        let class = class_of(rule.to.ip());
        if class.is_forbidden() {
            let problem = format!("{} is a {class} address, which is never dialled", rule.to.ip());
            return Err(refused(problem));
        }
        if rule.listen.is_ipv4() != rule.to.is_ipv4() {
            return Err(refused("expected two addresses of one family".to_owned()));
        }
        Ok(Self(rule))
    }
}

/// The rules in force; they are removed when this is dropped.
#[derive(Debug)]
pub struct Forwarder {
    rules: Vec<nft::Forwarding>,
}

impl Forwarder {
    /// Puts all of `rules` in force, or none. They are removed with this process, however it ends.
    ///
    /// # Errors
    /// When two of them listen on addresses that overlap, `nft` is missing or not permitted,
    /// another forwarder holds one of the addresses, or the kernel does not forward.
    pub fn set(rules: &[ForwardRule]) -> Result<Self, StreamError> {
        check_twice(rules.iter().map(|rule| ("forward", rule.0.listen)))?;
        let rules = rules.iter().map(|rule| nft::Forwarding::set(&rule.0));
        Ok(Self { rules: rules.collect::<Result<_, NetError>>()? })
    }

    /// Returns the names of its nftables tables.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(nft::Forwarding::table)
    }

    /// Waits for `shutdown`, and removes the rules. Blocks.
    ///
    /// # Errors
    /// When the wait cannot be set up.
    pub fn run(self, shutdown: &Shutdown) -> Result<(), StreamError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let mut phase = shutdown.watch();
        shutdown.begin();
        let stopping = async { phase.wait_for(|phase| *phase > Phase::Running).await.map(drop) };
        // A dropped sender counts as a shutdown.
        let _stopped = runtime.map_err(StreamError::Runtime)?.block_on(stopping);
        drop(self.rules);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_rules_cannot_listen_at_one_address() {
        let rules = ["0.0.0.0:7000=192.0.2.9:443", "198.51.100.1:7000=192.0.2.8:443"];
        let rules = rules.map(|rule| rule.parse().unwrap());
        let refused = Forwarder::set(&rules).unwrap_err().to_string();
        let expected = "configuration, `forward`: 198.51.100.1:7000 is listened on twice: \
                        `forward` has 0.0.0.0:7000";
        assert!(refused.starts_with(expected), "{refused}");
    }

    #[test]
    fn forward_rule_target_must_be_dialable() {
        assert!("0.0.0.0:7000=192.0.2.9:443".parse::<ForwardRule>().is_ok());
        assert!("[::]:7000=[2001:db8::9]:443".parse::<ForwardRule>().is_ok());
        for (text, expected) in [
            ("7000=192.0.2.9:443", "expected LISTEN=TO"),
            ("0.0.0.0:7000", "expected LISTEN=TO"),
            ("0.0.0.0:0=192.0.2.9:443", "expected LISTEN=TO"),
            ("0.0.0.0:7000=127.0.0.1:443", "127.0.0.1 is a loopback address"),
            ("0.0.0.0:7000=169.254.169.254:80", "169.254.169.254 is a metadata address"),
            ("[::]:7000=192.0.2.9:443", "expected two addresses of one family"),
        ] {
            let error = text.parse::<ForwardRule>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
