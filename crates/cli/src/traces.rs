//! The collector of traces that a host's environment names: for processes whose configuration is
//! made elsewhere, as by an agent's controller.

use std::env;
use std::fmt::Display;
use std::str::FromStr;

use tradewind_config::TracesConfig;

use crate::output::BadFile;

/// The collector's URL.
const ENDPOINT: &str = "TRADEWIND_TRACES";
/// The share of sessions that are traced.
const SAMPLE: &str = "TRADEWIND_TRACES_SAMPLE";

/// Returns `configured`, or else what the environment names.
pub(crate) fn or_environment(
    configured: Option<TracesConfig>,
) -> Result<Option<TracesConfig>, BadFile> {
    let variable = |name: &str| env::var(name).ok().filter(|text| !text.is_empty());
    match (configured, variable(ENDPOINT)) {
        (None, Some(endpoint)) => named(&endpoint, variable(SAMPLE).as_deref()).map(Some),
        (configured, _) => Ok(configured),
    }
}

fn named(endpoint: &str, sample: Option<&str>) -> Result<TracesConfig, BadFile> {
    let traces = TracesConfig::to(parsed(ENDPOINT, endpoint)?);
    let Some(sample) = sample else { return Ok(traces) };
    Ok(TracesConfig { sample: parsed(SAMPLE, sample)?, ..traces })
}

fn parsed<T: FromStr<Err: Display>>(variable: &str, text: &str) -> Result<T, BadFile> {
    text.parse().map_err(|error| BadFile(format!("{variable}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_checked_as_files_are() {
        let traces = named("http://127.0.0.1:4318", Some("5 %")).unwrap();
        assert_eq!(traces.endpoint.to_string(), "http://127.0.0.1:4318/v1/traces");
        assert!((traces.sample.as_f64() - 0.05).abs() < 1e-12);
        let traces = named("http://127.0.0.1:4318", None).unwrap();
        assert_eq!(traces, TracesConfig::to(traces.endpoint.clone()));
        for (endpoint, sample, variable) in
            [("https://x", None, ENDPOINT), ("http://x", Some("2"), SAMPLE)]
        {
            let error = named(endpoint, sample).err().unwrap().to_string();
            assert!(error.starts_with(&format!("{variable}: ")), "{error}");
        }
    }
}
