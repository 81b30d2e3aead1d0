//! The files of the dashboard: no token, as they hold nothing of the overlay.

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use hyper::Method;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
};
use tradewind_dashboard::File;

/// The page runs only its own files, asks only this listener, and is shown in no other page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A file whose name holds its hash is kept for a year, the longest that browsers heed.
const FOR_GOOD: &str = "public, max-age=31536000, immutable";

/// Answers a request for a file of the dashboard; passes on all others.
pub(super) async fn serve(request: Request, next: Next) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match tradewind_dashboard::file(request.uri().path()).filter(|_| is_read) {
        Some(file) => answer(file),
        None => next.run(request).await,
    }
}

fn answer(file: File) -> Response {
    let kept = if file.is_hashed { FOR_GOOD } else { "no-store" };
    let mut response = Response::new(Body::from(file.bytes));
    let headers = [
        (CONTENT_TYPE, file.content_type),
        (CACHE_CONTROL, kept),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
