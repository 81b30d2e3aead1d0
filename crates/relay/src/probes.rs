//! Probes at a relay: the last relay of a path answers them, the others pass them on.
//!
//! A probe is a header like every other, checked and stored against replay likewise, only that
//! nothing is dialled for it. Several may follow each other on one connection, and a relay that
//! passes them on keeps its own connection as well: a probe then takes one round trip, and a lost
//! packet of it is detected by the packets after it.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tradewind_grant::header::HEADER_LIMIT;
use tradewind_grant::{Echo, OpenHeader, Reply, Status};
use tradewind_stream::connection::Connection;
use tradewind_stream::connection::head::ReadAhead;
use tradewind_stream::counts::Outcome;
use tradewind_stream::dial::probe_leg::{Ask, ProbeLeg};
use tradewind_stream::failure::Failure;
use tradewind_stream::process::worker::Worker;
use tradewind_stream::session::opening::close_with;

use super::{RelayService, header_bytes};

/// Most probes on one connection; a gateway dials again for more. Chosen: above what a gateway
/// sends on one, and few, so that a draining relay is soon rid of them.
const MAX_PROBES: usize = 32;
/// Longest pause between two of them. Chosen: several times the probes' interval.
const MAX_REST: Duration = Duration::from_secs(3);
/// Longest wait for the next relay's answer; the gateway gives up before. Chosen.
const MAX_WAIT: Duration = Duration::from_secs(3);

impl RelayService {
    /// Answers the probe of `header` and those that follow it on its connection.
    pub(super) async fn answer_probes(
        &self,
        upstream: Connection,
        worker: &Worker,
        mut header: OpenHeader,
        mut read_ahead: ReadAhead,
    ) -> Outcome {
        let mut leg = None;
        for _ in 0..MAX_PROBES {
            let reply = self.probe_reply(&mut leg, worker, &header).await;
            let sealed = header.upstream.seal(&reply);
            if reply.status != Status::Ok {
                close_with(upstream, worker, &sealed).await;
                return Outcome::Failed(reply.status);
            }
            if upstream.write_all(&sealed).await.is_err() {
                return Outcome::Broken;
            }
            let reading =
                read_ahead.read_head(&upstream, &worker.buffer_pool, HEADER_LIMIT, header_bytes);
            let Ok(Ok(bytes)) = timeout(MAX_REST, reading).await else {
                return Outcome::Probe;
            };
            let deadline = Instant::now() + self.session_settings.timeouts.header();
            header = match self.verifier.verify(&bytes, upstream.peer(), deadline).await {
                Ok(header) if header.is_probe => header,
                // Sessions have connections of their own.
                Ok(_) => return Outcome::Malformed,
                Err(refusal) => {
                    let (Some(key), Some(hop)) = (&refusal.upstream, refusal.hop) else {
                        return Outcome::Forged;
                    };
                    let failure = Failure::from(refusal.cause.clone());
                    let reply =
                        Reply::failed(failure.status, hop, failure.peer_message()).before_dial();
                    close_with(upstream, worker, &key.seal(&reply)).await;
                    return Outcome::Failed(failure.status);
                }
            };
        }
        Outcome::Probe
    }

    /// Returns the reply to one probe.
    async fn probe_reply(
        &self,
        leg: &mut Option<ProbeLeg>,
        worker: &Worker,
        header: &OpenHeader,
    ) -> Reply {
        let arrived = Instant::now();
        let failed = |failure: &Failure| {
            Reply::failed(failure.status, header.hop, failure.peer_message()).before_dial()
        };
        let next = match self.onward.next_header(&self.verifier, header) {
            Ok(Some(next)) => next,
            Ok(None) => return Reply::alive(header.hop, &Echo::last(arrived.elapsed())),
            Err(failure) => return failed(&failure),
        };
        let hop = header.route.hops()[header.hop + 1];
        let address = hop.address;
        let ask = Ask { hop, header: &next };
        let asking = ProbeLeg::ask(leg, &self.onward.dialler, &worker.buffer_pool, &ask);
        let late = || {
            let message = format!("next relay {address}: no answer to a probe in time");
            Err(Failure::new(Status::TimedOut, message))
        };
        match timeout(MAX_WAIT, asking).await.unwrap_or_else(|_| late()) {
            Err(failure) => failed(&failure),
            Ok(answer) if answer.reply.status != Status::Ok => answer.reply,
            Ok(answer) => match Echo::parse(&answer.reply.message) {
                Ok(echo) => {
                    let legs = echo.legs_after(answer.waited);
                    let echo = Echo { spent: arrived.elapsed(), legs };
                    Reply::alive(answer.reply.hop, &echo)
                }
                Err(error) => failed(&Failure::new(Status::NextHopFailed, error.to_string())),
            },
        }
    }
}
