//! The configuration of traces of sessions.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_units::Ratio;

/// Traces of sessions: each hop sends its spans to a collector by OTLP over HTTP.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// The collector's URL for traces; `/v1/traces` when it has no path. Without TLS: the collector
    /// is on this host or in a network that is trusted.
    #[serde(deserialize_with = "endpoint")]
    pub endpoint: TracesEndpoint,
    /// Share of sessions that are traced, from 0 to 1. Hops with the same share trace the same
    /// sessions.
    #[serde(default = "default_sample")]
    pub sample: Ratio,
}

impl TracesConfig {
    /// Creates a configuration with the default share.
    #[must_use]
    pub fn to(endpoint: TracesEndpoint) -> Self {
        Self { endpoint, sample: default_sample() }
    }
}

/// Returns the default share. Chosen: of a hundred sessions a second, one.
fn default_sample() -> Ratio {
    Ratio::new(0.01).expect("a share")
}

fn endpoint<'de, D: serde::Deserializer<'de>>(text: D) -> Result<TracesEndpoint, D::Error> {
    String::deserialize(text)?.parse().map_err(serde::de::Error::custom)
}

/// The URL of a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracesEndpoint {
    /// Its host and port.
    pub authority: String,
    /// The path on it.
    pub path: String,
}

/// A text that is no [`TracesEndpoint`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected a URL such as `http://127.0.0.1:4318/v1/traces`, without TLS or password")]
pub struct BadEndpoint;

impl FromStr for TracesEndpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let rest = text.strip_prefix("http://").ok_or(BadEndpoint)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port),
            _ => (authority, "80"),
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_ipv6 = bracketed.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
        let is_host = !host.is_empty()
            && is_plain(host)
            && !host.contains(['@', '?', '#', '\\'])
            && (is_ipv6 || !host.contains([':', '[', ']']));
        if !is_host || !is_plain(path) || path.contains('#') {
            return Err(BadEndpoint);
        }
        let port: u16 = port.parse().ok().filter(|port| *port != 0).ok_or(BadEndpoint)?;
        let path = if matches!(path, "" | "/") { "/v1/traces" } else { path };
        Ok(Self { authority: format!("{host}:{port}"), path: path.to_owned() })
    }
}

impl fmt::Display for TracesEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

tradewind_units::text_schema!(
    TracesEndpoint,
    "URL",
    "^http://[!-~]+$",
    "http://127.0.0.1:4318/v1/traces"
);

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<TracesConfig, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn traces_have_defaults() {
        let config = parsed("endpoint = 'http://127.0.0.1:4318'").unwrap();
        assert_eq!(config.endpoint.to_string(), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(config, TracesConfig::to(config.endpoint.clone()));
        let config = parsed("endpoint = 'http://[::1]/a/b'\nsample = '5 %'").unwrap();
        assert_eq!(config.endpoint.authority, "[::1]:80");
        assert_eq!((config.endpoint.path.as_str(), config.sample.as_f64()), ("/a/b", 0.05));
    }

    #[test]
    fn other_endpoints_are_refused() {
        for text in [
            "",
            "127.0.0.1:4318",
            "https://collector.example.com/v1/traces",
            "http://",
            "http:///v1/traces",
            "http://:4318",
            "http://host:0",
            "http://host:http",
            "http://host:65536",
            "http://user:secret@host:4318",
            "http://::1:4318",
            "http://[]:4318",
            "http://[collector]:4318",
            "http://host:4318/v1 traces",
            "http://host:4318/v1/traces\r\nX: y",
            "http://host:4318/#traces",
        ] {
            assert_eq!(text.parse::<TracesEndpoint>(), Err(BadEndpoint), "{text}");
        }
        let error = parsed("endpoint = 'http://h:1'\nsample = 2").unwrap_err();
        assert!(error.to_string().contains("share"), "{error}");
    }
}
