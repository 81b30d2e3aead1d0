//! Server-sent events: which kinds of what operators see have changed.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::State;
use hyper::StatusCode;
use hyper::body::{Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tradewind_units::Duration;

use super::Shared;
use crate::answer::{Answered, Problem};
use crate::changes::Versions;
use crate::listener::stopped;
use crate::view::{Change, SCHEMA_VERSION};

/// Most listeners at once. Chosen: several people with several pages each.
pub(super) const MAX_LISTENERS: usize = 64;
/// Time without a change after which a comment is sent. Chosen: below what proxies wait for, and a
/// page tells a controller that is silent from one that has no news in three of them.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Least time between two events for one listener. Chosen: people see no difference.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for a listener that takes nothing. Chosen: six keep-alive comments.
const SLOW_LISTENER: Duration = Duration::from_secs(30);

pub(super) async fn events(State(shared): State<Shared>) -> Answered {
    let place = Arc::clone(&shared.listeners).try_acquire_owned().map_err(|_| {
        let error = format!("{MAX_LISTENERS} listeners are there already");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, error)
    })?;
    let (sender, receiver) = mpsc::channel(1);
    let (changes, stop) = (shared.engine.changes(), shared.stop);
    tokio::spawn(async move {
        feed(&sender, changes, stop).await;
        drop(place);
    });
    let mut response = axum::response::Response::new(Body::new(Texts(receiver)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Creates the places of listeners.
pub(super) fn places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_LISTENERS))
}

/// Sends events until the listener is gone or too slow, or `stop` is true. The first one names all
/// kinds, so that nothing is missed between an answer and the start.
async fn feed(
    sender: &mpsc::Sender<Bytes>,
    mut changes: watch::Receiver<Versions>,
    mut stop: watch::Receiver<bool>,
) {
    let mut seen = None;
    loop {
        let versions = *changes.borrow_and_update();
        let kinds = versions.since(seen);
        let text = if kinds.is_empty() {
            ":\n\n".to_owned()
        } else {
            let version = versions.newest();
            seen = Some(version);
            let change = Change { schema_version: SCHEMA_VERSION, version, kinds };
            let data = serde_json::to_string(&change).expect("names and numbers have a JSON form");
            format!("event: change\ndata: {data}\n\n")
        };
        let Ok(Ok(())) = timeout(SLOW_LISTENER, sender.send(text.into())).await else { return };
        let next = async {
            sleep(MIN_PAUSE).await;
            // That nothing changes in time is a reason to send, too.
            let _silence = timeout(KEEP_ALIVE, changes.changed()).await;
        };
        tokio::select! {
            () = next => {}
            () = stopped(&mut stop) => return,
            () = sender.closed() => return,
        }
    }
}

/// A body of texts that come when they come.
struct Texts(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Texts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|text| text.map(|text| Ok(Frame::data(text))))
    }
}
