//! Answers over HTTP: JSON, and errors as [`ErrorAnswer`]s.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;
use tradewind_control::message::ErrorAnswer;
use tradewind_control::{Answer, Refusal};
use tradewind_units::Duration;

use crate::engine::Failure;

/// Longest time in which the body of a request arrives. Chosen: the largest document at 4 Mbit/s.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// An error of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) error: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, error: error.into() }
    }

    pub(crate) fn invalid(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let status = match &failure {
            Failure::Refused(Refusal::Forbidden(_)) => StatusCode::FORBIDDEN,
            Failure::Refused(Refusal::NotFound(_)) => StatusCode::NOT_FOUND,
            Failure::Refused(Refusal::Invalid(_)) => StatusCode::BAD_REQUEST,
            Failure::Refused(Refusal::Conflict(_)) => StatusCode::CONFLICT,
            Failure::Store(_) | Failure::Entropy(_) => {
                tracing::error!("{failure}");
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self::new(status, failure.to_string())
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Failure::from(refusal).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        json(self.status, &ErrorAnswer { error: self.error })
    }
}

/// The answer to a request.
pub(crate) type Answered = Result<Response, Problem>;

/// Answers with `value`.
pub(crate) fn ok(value: &impl Serialize) -> Answered {
    Ok(json(StatusCode::OK, value))
}

/// Answers without a body.
pub(crate) fn nothing() -> Answered {
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let (status, text) = match serde_json::to_string(value) {
        Ok(text) => (status, text),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written");
            let text = "{\"error\":\"the answer cannot be written, which is a bug of ours\"}";
            (StatusCode::INTERNAL_SERVER_ERROR, text.to_owned())
        }
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Reads the body of an operator's request, a JSON object of at most `most` bytes.
pub(crate) async fn body<T: DeserializeOwned + Serialize>(
    request: Request,
    most: usize,
) -> Result<T, Problem> {
    let refused = |error: serde_json::Error| Problem::invalid(format!("the body: {error}"));
    let given: Value = message(request, most).await?;
    let read = T::deserialize(&given).map_err(refused)?;
    match list_for_object(&given, &serde_json::to_value(&read).map_err(refused)?) {
        Some(key) => Err(Problem::invalid(format!("the body: {key}: expected a JSON object"))),
        None => Ok(read),
    }
}

/// Returns the key of a list that was read as an object's fields in their order, which nobody
/// means, if there is one.
fn list_for_object(given: &Value, read: &Value) -> Option<String> {
    let joined = |key: &str, inner: String| {
        if inner.is_empty() { key.to_owned() } else { format!("{key}.{inner}") }
    };
    match (given, read) {
        (Value::Array(_), Value::Object(_)) => Some(String::new()),
        (Value::Object(given), Value::Object(read)) => given.iter().find_map(|(key, value)| {
            list_for_object(value, read.get(key)?).map(|inner| joined(key, inner))
        }),
        (Value::Array(given), Value::Array(read)) => {
            given.iter().zip(read).enumerate().find_map(|(index, (given, read))| {
                list_for_object(given, read).map(|inner| joined(&index.to_string(), inner))
            })
        }
        _ => None,
    }
}

/// Reads the body of a request, a JSON object of at most `most` bytes.
pub(crate) async fn message<T: DeserializeOwned>(
    request: Request,
    most: usize,
) -> Result<T, Problem> {
    let read = timeout(BODY_TIMEOUT, to_bytes(request.into_body(), most)).await;
    let late = || Problem::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
    let bytes = read.map_err(|_| late())?.map_err(|_| {
        let error = format!("the body did not arrive, or has more than {most} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error)
    })?;
    // An object's fields may be read from a list as well, which nobody means.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::invalid("the body: expected a JSON object"));
    }
    serde_json::from_slice(&bytes).map_err(|error| Problem::invalid(format!("the body: {error}")))
}

/// Answers a request to a path that there is not.
pub(crate) async fn not_found(request: Request) -> Problem {
    let path = tradewind_units::shown(request.uri().path());
    Problem::new(StatusCode::NOT_FOUND, format!("no such path: {path}"))
}

/// Answers a request by a method that a path does not have.
pub(crate) async fn not_allowed(request: Request) -> Problem {
    let (method, path) = (request.method(), tradewind_units::shown(request.uri().path()));
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} has no method {method}"))
}

/// Returns the error for an event's answer that it does not have: a bug.
pub(crate) fn unexpected(answer: &Answer) -> Problem {
    tracing::error!(?answer, "an event had another answer than it has");
    let error = "the controller answered something else, which is a bug of ours";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_in_place_of_objects_are_found_at_any_depth() {
        let found = |given: Value, read: Value| list_for_object(&given, &read);
        let read = json!({ "a": { "b": null }, "all": [{ "c": 1 }], "names": ["x", "y"] });
        assert_eq!(found(read.clone(), read.clone()), None);
        assert_eq!(found(json!({ "names": ["y", "x"] }), read.clone()), None);
        let lists = [
            (json!({ "a": [null] }), "a"),
            (json!({ "all": [{ "c": 1 }] , "a": { "b": null } }), ""),
            (json!({ "all": [[1]] }), "all.0"),
        ];
        for (given, key) in lists {
            let expected = (!key.is_empty()).then(|| key.to_owned());
            assert_eq!(found(given, read.clone()), expected);
        }
    }
}
