//! The next connection of a session: to the destination, at the last relay, or to the next relay.

use std::io;
use std::sync::Arc;

use tradewind_grant::{Check, Destination, GrantError, OpenHeader, Reply, SealedHeader, Status};
use tradewind_stream::access_log::{AuditLog, note};
use tradewind_stream::connection::Connection;
use tradewind_stream::connection::head::ReadAhead;
use tradewind_stream::counts::Outcome;
use tradewind_stream::dial::pool::Pools;
use tradewind_stream::dial::{Dialler, Dialling};
use tradewind_stream::failure::Failure;
use tradewind_stream::process::worker::Worker;
use tradewind_stream::resolver::Lookups;
use tradewind_stream::session::authorization::Dialled;
use tradewind_stream::session::pump::{Broken, Direction};
use tradewind_stream::session::{Session, broken};
use tradewind_stream::stripe::{Offer, Offers, Sessions};

use super::admission::Admission;
use super::joins::offer;
use super::judgement::HeaderVerifier;
use super::next::{Closed, NextLeg, Opened};
use super::refusals::{Dial, end_with, fail};

/// The way of sessions from here on.
pub(super) struct Onward {
    pub(super) dialler: Arc<Dialler>,
    pub(super) pools: Arc<Pools>,
    pub(super) admission: Admission,
    /// Sessions of striped legs, which further connections may join.
    pub(super) joinable: Arc<Sessions>,
    /// The log of sessions that grant and rules have admitted.
    pub(super) audit_log: Option<Arc<AuditLog>>,
}

impl Onward {
    /// Returns the header for the next hop, if this relay may dial that; `None` when this is the
    /// last. A key is derived only for relays that may be dialled.
    pub(super) fn next_header(
        &self,
        verifier: &HeaderVerifier,
        header: &OpenHeader,
    ) -> Result<Option<SealedHeader>, Failure> {
        let Some(next) = header.next_hop() else { return Ok(None) };
        let refused = |cause: GrantError| Failure::new(Status::NextHopRefused, cause.to_string());
        self.admission.allows_next_hop(next.address).map_err(refused)?;
        // A probe has nothing to carry.
        let may_stripe =
            !header.is_probe && !self.dialler.legs.to(next.address).connections.is_one();
        Ok(verifier.lock().forward_striped(header, may_stripe)?)
    }

    /// Dials the destination, at the last relay.
    pub(super) async fn reach_destination(
        &self,
        upstream: Connection,
        worker: &Worker,
        header: &OpenHeader,
        read_ahead: ReadAhead,
        lookups: &Lookups,
    ) -> Result<Session, Outcome> {
        let early = !read_ahead.is_empty();
        let mut up = Direction::new(read_ahead.into_bytes());
        let admitted = || self.audit_log.iter().for_each(|log| log.tell(header));
        let dialling = Dialling::new(&admitted);
        let admission = &self.admission;
        let (rules, is_local) = (admission.rules.current(), |ip| admission.is_local(ip));
        let (grant, route) = (Some(&*header.grant), header.route.hops());
        let check = Check { grant, route, ..admission.check(&rules, &is_local) };
        let (to, speaker) = (&header.destination, up.speaker());
        note(|facts| facts.trace.begin_dial(|| Some((to.clone(), None))));
        let dial = self.dialler.dial_destination(to, speaker, lookups, &check, &dialling);
        let dialled = upstream.unless_reset(dial).await;
        let dialled = dialled.map_err(|error| gone(header, error))?;
        let downstream = match dialled {
            Ok(downstream) => {
                let address = downstream.peer_addr().ok();
                note(|facts| {
                    facts.path = address.map(|address| address.to_string());
                    facts.trace.end_dial(None);
                });
                if let Some(address) = address {
                    admission.check_dialled(worker, header, Dialled::Destination(address))?;
                }
                Connection::plain(downstream)
            }
            Err(failure) => {
                let dial = if dialling.has_begun() { Dial::PerhapsBegun } else { Dial::NotBegun };
                return Err(fail(upstream, worker, header, failure, dial).await);
            }
        };
        // If this fails, so does the session's first write: data that the destination has sent is
        // delivered before.
        let _started = up.start(&downstream, worker.up_context());
        let offers = Offers::new(offer(&self.joinable, header), None);
        let reply = header.upstream.seal(&Reply::ok(header.hop));
        let down = match send_reply(&upstream, reply, early, Vec::new()).await {
            Ok(down) => down,
            Err(error) => return Err(gone(header, error)),
        };
        Ok(Session { offers, ..session(header, upstream, downstream, up, down) })
    }

    /// Dials the next relay and passes the header on.
    pub(super) async fn pass_on(
        &self,
        upstream: Connection,
        worker: &Worker,
        header: &OpenHeader,
        next: &SealedHeader,
        read_ahead: ReadAhead,
    ) -> Result<Session, Outcome> {
        self.audit_log.iter().for_each(|log| log.tell(header));
        let hop = &header.route.hops()[header.hop + 1];
        let early = !read_ahead.is_empty();
        let leading = read_ahead.into_bytes();
        let dialled = || Some((Destination::Address(hop.address), None));
        note(|facts| facts.trace.begin_dial(dialled));
        let pooled = self.pools.take(&next.from, hop);
        let (dialler, admission) = (&*self.dialler, &self.admission);
        let leg = NextLeg { dialler, admission, upstream: &upstream, worker, header, next };
        // On the heap: the last relay, where most sessions are, needs a tenth of its memory.
        let opened = Box::pin(leg.open(leading, pooled)).await;
        let Opened { downstream, up, reply, read_ahead } = match opened {
            Ok(opened) => opened,
            Err(Closed::Failed(failure, dial)) => {
                return Err(fail(upstream, worker, header, failure, dial).await);
            }
            Err(Closed::UpstreamGone(error)) => return Err(gone(header, error)),
            Err(Closed::Refused(outcome)) => return Err(outcome),
        };
        self.pools.keep_ready(&next.from, hop);
        if reply.status != Status::Ok {
            return Err(end_with(upstream, worker, header, &reply, &reply.message).await);
        }
        note(|facts| facts.trace.end_dial(None));
        let sealed = header.upstream.seal(&reply);
        let down = Offer::of_dialled(&self.dialler, hop, next);
        let offers = Offers::new(offer(&self.joinable, header), down);
        match send_reply(&upstream, sealed, early, read_ahead.into_bytes()).await {
            Ok(down) => Ok(Session { offers, ..session(header, upstream, downstream, up, down) }),
            Err(error) => Err(gone(header, error)),
        }
    }
}

/// Logs a session whose upstream failed before its path was open, and returns its outcome.
fn gone(header: &OpenHeader, error: io::Error) -> Outcome {
    broken(&header.flow, &header.destination, &Broken::Upstream(error))
}

fn session(
    header: &OpenHeader,
    upstream: Connection,
    downstream: Connection,
    up: Direction,
    down: Direction,
) -> Session {
    let what = (header.flow.clone(), header.destination.clone());
    Session::between(what, (upstream, up), (downstream, down))
}

/// Reports to the neighbour that the path is open, and returns the direction towards it, which
/// first writes `leading`. A neighbour that sent data right behind its header does not wait for the
/// reply, so the reply travels with the first data of the destination: a packet less for each short
/// session.
async fn send_reply(
    upstream: &Connection,
    reply: Vec<u8>,
    early: bool,
    leading: Vec<u8>,
) -> io::Result<Direction> {
    if early {
        return Ok(Direction::answering(reply, leading));
    }
    upstream.write_all(&reply).await?;
    Ok(Direction::new(leading))
}
