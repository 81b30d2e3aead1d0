//! Opens a flow's path: tries the options for its destination one after the other until one is
//! open.
//!
//! A session tries the next option only if no relay has begun to dial the destination: the dial of
//! the first relay failed, or an authenticated reply says so. If that cannot be known (a relay that
//! has the header does not reply), the session fails, since the destination might otherwise see it
//! twice. Data that the application sends meanwhile is retained and sent again; beyond a bound no
//! more is read from it until the outcome is known. A session that was drawn to go direct takes the
//! next option whatever its dial has met, as none of its data was sent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tradewind_grant::{
    Check, Destination, DialLimit, GrantError, Nonce, PublicIdentity, Reply, Request, SealedHeader,
    Sealer, Status, Terms, TraceSeed,
};
use tradewind_stream::access_log::{Arm, note};
use tradewind_stream::clock::unix_now;
use tradewind_stream::connection::Connection;
use tradewind_stream::connection::head::ReadAhead;
use tradewind_stream::dial::local_host::LocalHost;
use tradewind_stream::dial::pool::{Pools, Warm};
use tradewind_stream::dial::{Dialler, Dialling, Speaker};
use tradewind_stream::failure::{Failure, plain};
use tradewind_stream::limits::quota::Members;
use tradewind_stream::process::live::Live;
use tradewind_stream::process::worker::{Cause, Worker};
use tradewind_stream::session::opening::{NextRelay, Waited};
use tradewind_stream::session::pump::Direction;
use tradewind_stream::stripe::Offer;
use tradewind_telemetry::limited;
use tradewind_units::{FlowId, Ratio, Source};

use super::paths::{PathOption, RelayPath, Routes, Routing, draw_control, order};
use super::service::{Asker, Listener};

/// Longest dial of a session that was drawn to go direct. Chosen: two lost packets; the session
/// then takes the path that it would have taken, since a comparison must not cost it more.
const CONTROL_DIAL_LIMIT: Duration = Duration::from_secs(3);

/// An open path: the connection to its first hop, and the state of both directions.
pub(super) struct OpenPath {
    pub(super) downstream: Connection,
    pub(super) up: Direction,
    pub(super) down: Direction,
    /// The first leg, if it may be striped.
    pub(super) offer: Option<Offer>,
}

/// The reason why a path is not open.
pub(super) enum NotOpen {
    Failed {
        failure: Failure,
        /// The data to send on another path; `None` if no other path may be tried.
        resend: Option<Vec<u8>>,
    },
    ApplicationGone(std::io::Error),
}

impl NotOpen {
    /// Returns a failure after which the destination may have been dialled.
    fn for_good(failure: Failure) -> Self {
        Self::Failed { failure, resend: None }
    }

    /// Returns a failure before any dial of the destination; `resend` is the data that the
    /// application has sent.
    fn before_dial(failure: Failure, resend: impl Into<Option<Vec<u8>>>) -> Self {
        Self::Failed { failure, resend: resend.into() }
    }
}

/// A flow whose path is to be opened.
pub(super) struct Wanted<'a> {
    /// The application's connection, from which data is read and sent while the path opens; absent
    /// if the caller has read all data that may be sent by then.
    pub(super) application: Option<&'a Connection>,
    pub(super) listener: &'a Listener,
    pub(super) flow: &'a FlowId,
    pub(super) destination: &'a Destination,
    pub(super) worker: &'a Worker,
    /// The client's address, which log lines about the flow are attributed to.
    pub(super) source: Source,
    /// The part of its headers' nonces that names its trace; absent where nothing records it.
    pub(super) trace: Option<TraceSeed>,
}

impl Wanted<'_> {
    /// Returns the cause that rate-limited log lines about the flow are attributed to.
    const fn cause(&self) -> Cause {
        Cause::Source(self.source)
    }

    /// Runs `work` to its end, unless the application resets its connection first.
    async fn unless_reset<T>(&self, work: impl Future<Output = T>) -> Result<T, NotOpen> {
        match self.application {
            Some(application) => {
                application.unless_reset(work).await.map_err(NotOpen::ApplicationGone)
            }
            None => Ok(work.await),
        }
    }
}

/// The connection to a first relay.
enum First {
    Warm(Warm),
    Fresh(Connection),
}

impl First {
    const fn connection(&self) -> &Connection {
        match self {
            Self::Warm(warm) => &warm.connection,
            Self::Fresh(fresh) => fresh,
        }
    }

    fn into_connection(self) -> Connection {
        match self {
            Self::Warm(warm) => warm.connection,
            Self::Fresh(fresh) => fresh,
        }
    }

    /// Returns whether it was warm and proved dead: the relay has received nothing of the session.
    fn is_untouched(&self) -> bool {
        matches!(self, Self::Warm(warm) if warm.is_untouched())
    }
}

/// The reply of a first relay, and the connection that it was received on.
struct Reached {
    downstream: Connection,
    up: Direction,
    reply: Reply,
    read_ahead: ReadAhead,
    /// The data that was sent along with the header, if it may have to be sent over another path.
    again: Option<Vec<u8>>,
}

/// Opens the paths of flows, by what all sessions share.
pub(super) struct PathOpener {
    pub(super) routes: Arc<Routes>,
    /// The share of sessions in the control arm.
    pub(super) control_share: Live<Ratio>,
    /// The addresses of this host, which direct routes must not lead to.
    pub(super) local_host: LocalHost,
    /// The sealer of headers, shared by all workers; locked for a few keyed hashes at a time.
    pub(super) sealer: Option<Arc<Mutex<Sealer>>>,
    pub(super) dialler: Arc<Dialler>,
    /// Connections to first relays that are kept open; `None` without an identity.
    pub(super) pools: Option<Arc<Pools>>,
    /// Clients on other hosts whose names are looked up for direct paths and UDP.
    pub(super) askers: Arc<Members<Asker>>,
}

impl PathOpener {
    /// Opens a path; `leading` is the data that the application has sent already.
    pub(super) async fn open(
        &self,
        wanted: &Wanted<'_>,
        mut leading: Vec<u8>,
    ) -> Result<OpenPath, NotOpen> {
        let routing = self.routes.current();
        let options = routing.options(wanted.destination);
        let mut order = order(options, Some(wanted.destination), self.routes.now());
        let share = *self.control_share.current();
        // Without entropy it is not drawn.
        let is_drawn = share > Ratio::ZERO
            && tradewind_net::entropy::bytes().is_ok_and(|bytes| {
                draw_control(options, &mut order, share, u32::from_le_bytes(bytes))
            });
        let arm = match order.first() {
            _ if is_drawn => Some(Arm::Control),
            Some(0) if matches!(options[0], PathOption::Relays(_)) => Some(Arm::Overlay),
            _ => None,
        };
        let Some((last, earlier)) = order.split_last() else {
            let message = format!("gateway: no route to {}", wanted.destination);
            let failure = Failure::new(Status::DestinationRefused, message);
            return Err(NotOpen::for_good(failure));
        };
        for index in earlier {
            let option = (&options[*index], arm);
            match self.open_option(wanted, &routing, option, leading, true).await {
                Err(NotOpen::Failed { failure, resend: Some(resend) }) => {
                    let (flow, to) = (wanted.flow, wanted.destination);
                    limited!(
                        info,
                        wanted.worker.lines(),
                        wanted.cause(),
                        %flow,
                        "flow to {to} takes the next path: {}",
                        failure.message
                    );
                    self.routes.count_retry();
                    leading = resend;
                }
                opened => return opened,
            }
        }
        let option = (&options[*last], arm);
        self.open_option(wanted, &routing, option, leading, false).await
    }

    async fn open_option(
        &self,
        wanted: &Wanted<'_>,
        routing: &Routing,
        (option, arm): (&PathOption, Option<Arm>),
        leading: Vec<u8>,
        has_next: bool,
    ) -> Result<OpenPath, NotOpen> {
        note(|facts| {
            (facts.path, facts.arm) = (option.name(), arm);
            facts.trace.begin_dial(|| Some((option.dialled(wanted.destination)?, option.name())));
        });
        let opened = match option {
            PathOption::Refuse => {
                let message = format!("gateway: no route to {}", wanted.destination);
                let failure = Failure::new(Status::DestinationRefused, message);
                Err(NotOpen::for_good(failure))
            }
            PathOption::Direct => self.open_direct(wanted, routing, leading, arm).await,
            PathOption::Relays(path) => self.open_over(wanted, path, leading, has_next).await,
        };
        note(|facts| match &opened {
            Ok(_) => facts.trace.end_dial(None),
            Err(NotOpen::Failed { failure, .. }) => {
                facts.trace.end_dial(Some((failure.status, &failure.message)));
            }
            // It ends with the session.
            Err(NotOpen::ApplicationGone(_)) => {}
        });
        opened
    }

    async fn open_direct(
        &self,
        wanted: &Wanted<'_>,
        routing: &Routing,
        leading: Vec<u8>,
        arm: Option<Arm>,
    ) -> Result<OpenPath, NotOpen> {
        let (dialling, also) = (Dialling::new(&|| {}), wanted.listener.named());
        let is_local = |ip| self.local_host.holds(ip);
        // A client of a proxy gains this host's position in its network, so the destination is
        // checked against the policy, this host's addresses and its listeners.
        let check = Check {
            also: &also,
            listeners: &self.dialler.own_listeners,
            ..Check::new(&routing.policy, &is_local)
        };
        let speaker = if leading.is_empty() { Speaker::Unknown } else { Speaker::Us };
        let (lookups, _place) = wanted.listener.lookups_of(&self.askers, wanted.source);
        let to = wanted.destination;
        let dial = self.dialler.dial_destination(to, speaker, &lookups, &check, &dialling);
        let is_drawn = arm == Some(Arm::Control);
        let dial = async {
            if !is_drawn {
                return dial.await;
            }
            let late = || {
                let message = format!("dial {to}: no answer within {CONTROL_DIAL_LIMIT:?}");
                Err(Failure::new(Status::TimedOut, message))
            };
            timeout(CONTROL_DIAL_LIMIT, dial).await.unwrap_or_else(|_| late())
        };
        let dialled = wanted.unless_reset(dial).await;
        let downstream = match dialled? {
            Ok(downstream) => downstream,
            // One that was drawn has sent no data, and must not fail for the sake of a comparison.
            Err(failure) if dialling.has_begun() && !is_drawn => {
                return Err(NotOpen::for_good(here(failure)));
            }
            Err(failure) => return Err(NotOpen::before_dial(here(failure), leading)),
        };
        let downstream = Connection::plain(downstream);
        let mut up = Direction::new(leading);
        // If this fails, so does the session's first write; data that the destination has sent
        // already is delivered before that.
        let _started = up.start(&downstream, wanted.worker.up_context());
        Ok(OpenPath { downstream, up, down: Direction::new(Vec::new()), offer: None })
    }

    async fn open_over(
        &self,
        wanted: &Wanted<'_>,
        path: &RelayPath,
        leading: Vec<u8>,
        has_next: bool,
    ) -> Result<OpenPath, NotOpen> {
        let sealed = path.check_placed().and_then(|()| self.seal(wanted, path, has_next));
        let header = match sealed {
            Ok(header) => header,
            Err(failure) => return Err(NotOpen::before_dial(here(failure), leading)),
        };
        let Reached { downstream, mut up, reply, read_ahead, again } =
            self.reach(wanted, path, &header, leading, has_next).await?;
        let hops = path.route.hops();
        if reply.status == Status::Ok {
            drop(up.take_retained());
            path.unreached.forget(wanted.destination);
            let offer = Offer::of_dialled(&self.dialler, &hops[0], &header);
            let down = Direction::new(read_ahead.into_bytes());
            return Ok(OpenPath { downstream, up, down, offer });
        }
        let at = hops.get(reply.hop).unwrap_or(&hops[0]).address;
        let message = format!("relay {} ({at}): {}", reply.hop + 1, reply.message);
        let last_hop = hops.len() - 1;
        let failure = Failure::new(reply.status, message);
        let failure = if reply.hop < last_hop { failure.of_overlay() } else { failure };
        if is_the_paths_fault(&reply, last_hop, has_next) {
            hops.get(reply.hop + 1)
                .into_iter()
                .for_each(|hop| self.routes.names.suspect(hop.address));
            self.blame(path, &failure);
        } else if is_the_last_legs_fault(&reply, last_hop) {
            path.unreached.note(wanted.destination, self.routes.now());
        }
        if reply.dialled {
            Err(NotOpen::for_good(failure))
        } else {
            let resend = again.map(|leading| [leading, up.take_retained()].concat());
            Err(NotOpen::before_dial(failure, resend))
        }
    }

    /// Gets the reply of the first relay: over a warm connection if there is one; otherwise, or if
    /// that proves dead, over a fresh one.
    async fn reach(
        &self,
        wanted: &Wanted<'_>,
        path: &RelayPath,
        header: &SealedHeader,
        mut leading: Vec<u8>,
        has_next: bool,
    ) -> Result<Reached, NotOpen> {
        let hop = &path.route.hops()[0];
        let mut pooled = self.pools.as_ref().and_then(|pools| pools.take(&header.from, hop));
        // Without a reply it is unknown whether the relay has received the header. A relay accepts
        // a header only once, but the relays of another path would accept another header.
        let (mut may_have_it, mut has_asked) = (false, false);
        loop {
            let first = match pooled.take() {
                Some(warm) => First::Warm(warm),
                None => match self.dial_first(wanted, &header.from, path, has_next).await? {
                    Ok(fresh) => First::Fresh(fresh),
                    Err(failure) => {
                        self.routes.names.suspect(hop.address);
                        self.blame(path, &failure);
                        let resend = (!may_have_it).then_some(leading);
                        return Err(NotOpen::before_dial(here(failure.of_overlay()), resend));
                    }
                },
            };
            let is_warm = matches!(first, First::Warm(_));
            let again = (has_next && !may_have_it).then(|| leading.clone());
            let flight = if is_warm { leading.clone() } else { std::mem::take(&mut leading) };
            let mut up = Direction::after(&header.bytes, flight);
            if has_next || is_warm {
                up.keep();
            }
            match self.ask(wanted, path, header, &first, &mut up).await {
                Waited::Replied(reply, read_ahead) => {
                    self.pools.iter().for_each(|pools| pools.keep_ready(&header.from, hop));
                    let downstream = first.into_connection();
                    // A relay that reports a replay had received the header before, and its
                    // acknowledgement was lost.
                    let has_it = has_asked && reply.status == Status::Replayed;
                    let again = again.filter(|_| !has_it);
                    return Ok(Reached { downstream, up, reply, read_ahead, again });
                }
                Waited::Failed(failure) if first.is_untouched() => {
                    tracing::debug!("a warm connection was dead: {}", failure.message);
                    (may_have_it, has_asked) = (failure.status == Status::TimedOut, true);
                    leading.extend(up.take_retained());
                }
                Waited::Failed(failure) => {
                    self.blame(path, &failure);
                    return Err(NotOpen::for_good(here(failure.of_overlay())));
                }
                Waited::UpstreamGone(error) => return Err(NotOpen::ApplicationGone(error)),
            }
        }
    }

    /// Sends the header and the data after it, and waits for the reply. On a warm connection whose
    /// other end acknowledges nothing, it waits no longer than a fresh dial would take.
    async fn ask(
        &self,
        wanted: &Wanted<'_>,
        path: &RelayPath,
        header: &SealedHeader,
        first: &First,
        up: &mut Direction,
    ) -> Waited {
        let hops = path.route.hops();
        let (connection, address) = (first.connection(), hops[0].address);
        // If this fails, so does the wait for the reply, which reports why.
        let _started = up.start(connection, wanted.worker.up_context());
        let next = NextRelay { connection, address, key: &header.downstream };
        let legs = u32::try_from(hops.len() + 1).unwrap_or(u32::MAX);
        let limit = self.dialler.limit() * legs;
        let silence = path.health().dial_limit();
        let reply = next.reply(wanted.application, up, wanted.worker, limit);
        match first {
            First::Fresh(_) => reply.await,
            First::Warm(warm) => warm.unless_silent(silence, address, reply).await,
        }
    }

    /// Dials the first relay. If there is another path, the dial has a shorter limit, so that a
    /// dead path is left soon.
    async fn dial_first(
        &self,
        wanted: &Wanted<'_>,
        from: &PublicIdentity,
        path: &RelayPath,
        has_next: bool,
    ) -> Result<Result<Connection, Failure>, NotOpen> {
        let first = &path.route.hops()[0];
        let dial = async {
            let dial = self.dialler.dial(from, first, Speaker::Us);
            if !has_next {
                return dial.await;
            }
            let limit = path.health().dial_limit().min(self.dialler.limit());
            let late = || {
                let message = format!("dial {}: no answer within {limit:?}", first.address);
                Err(Failure::new(Status::TimedOut, message))
            };
            timeout(limit, dial).await.unwrap_or_else(|_| late())
        };
        wanted.unless_reset(dial).await
    }

    /// Makes new sessions avoid the path from now on, unless the fault is this host's own.
    fn blame(&self, path: &RelayPath, failure: &Failure) {
        if !is_own_fault(failure) {
            path.blame(self.routes.now(), &failure.message);
        }
    }

    fn seal(
        &self,
        wanted: &Wanted<'_>,
        path: &RelayPath,
        has_next: bool,
    ) -> Result<SealedHeader, Failure> {
        let Wanted { flow, destination, .. } = *wanted;
        let request = Request { flow, destination, route: &path.route };
        let first = path.route.hops()[0].address;
        let may_stripe = !self.dialler.legs.to(first).connections.is_one();
        // With a single relay there is no next one to dial; without another path, a slow dial is
        // better than none.
        let limits = has_next && path.route.hops().len() > 1;
        let dial_limit = limits.then(|| DialLimit::covering(path.health().inner_dial_limit()));
        let terms = Terms { may_stripe, dial_limit };
        self.with_sealer(|sealer, nonce| {
            let nonce = wanted.trace.map_or(nonce, |seed| seed.within(nonce));
            note(|facts| {
                facts.trace.name_dial(&nonce);
                facts.grant = Some(sealer.grant().id());
                facts.gateway = Some(sealer.grant().unverified().gateway);
            });
            sealer.seal_on_terms(unix_now(), nonce, &request, terms)
        })
    }

    /// Seals a header with a fresh nonce.
    pub(super) fn with_sealer(
        &self,
        seal: impl FnOnce(&mut Sealer, Nonce) -> Result<SealedHeader, GrantError>,
    ) -> Result<SealedHeader, Failure> {
        let Some(sealer) = &self.sealer else {
            let message = "this gateway has no identity or grant";
            return Err(Failure::new(Status::GrantRefused, message));
        };
        let entropy = tradewind_net::entropy::bytes().map_err(|error| {
            Failure::new(Status::Internal, format!("entropy: {}", plain(&error)))
        })?;
        let mut sealer = sealer.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(seal(&mut sealer, Nonce::from_entropy(entropy))?)
    }
}

/// Marks a failure as the gateway's own.
pub(super) fn here(failure: Failure) -> Failure {
    failure.of("gateway")
}

/// Returns whether the failure is this host's own, such as a lack of resources, and so says nothing
/// about a path.
pub(super) const fn is_own_fault(failure: &Failure) -> bool {
    matches!(failure.status, Status::Internal | Status::Overloaded | Status::GrantRefused)
}

/// Returns whether a reply reports the failure of a relay or of a leg between two, rather than of
/// the destination or a refusal by its rules. A dial that ended early because there is another path
/// does not count, since one lost packet may be the cause: probes show whether the leg is dead.
fn is_the_paths_fault(reply: &Reply, last_hop: usize, has_next: bool) -> bool {
    match reply.status {
        Status::Draining | Status::NextHopFailed | Status::NextHopRefused => true,
        Status::Overloaded => !reply.dialled,
        Status::ConnectionRefused | Status::Unreachable => reply.hop < last_hop,
        Status::TimedOut => reply.hop < last_hop && (reply.dialled || !has_next),
        _ => false,
    }
}

/// Returns whether a reply, which is not the path's fault, reports that the leg to the destination
/// is broken.
const fn is_the_last_legs_fault(reply: &Reply, last_hop: usize) -> bool {
    matches!(reply.status, Status::Unreachable | Status::TimedOut) && reply.hop >= last_hop
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leg_failures_blame_the_path() {
        let reply = |status, hop| Reply::failed(status, hop, "");
        for status in [Status::ConnectionRefused, Status::Unreachable, Status::TimedOut] {
            assert!(is_the_paths_fault(&reply(status, 0), 1, false), "{status}");
            assert!(!is_the_paths_fault(&reply(status, 1), 1, false), "{status}");
        }
        for status in [Status::DestinationRefused, Status::NameNotFound, Status::GrantRefused] {
            assert!(!is_the_paths_fault(&reply(status, 0), 1, false), "{status}");
        }
        assert!(is_the_paths_fault(&reply(Status::Draining, 0), 0, true));
        assert!(is_the_paths_fault(&reply(Status::Overloaded, 1).before_dial(), 1, true));
        assert!(!is_the_paths_fault(&reply(Status::Overloaded, 1), 1, true));
    }

    #[test]
    fn early_cancelled_dial_blames_no_path() {
        let late = Reply::failed(Status::TimedOut, 0, "").before_dial();
        assert!(!is_the_paths_fault(&late, 1, true) && !is_the_last_legs_fault(&late, 1));
        assert!(is_the_paths_fault(&late, 1, false));
        assert!(is_the_paths_fault(&Reply::failed(Status::TimedOut, 0, ""), 1, true), "silent");
        assert!(is_the_paths_fault(&Reply::failed(Status::ConnectionRefused, 0, ""), 1, true));
        assert!(is_the_last_legs_fault(&Reply::failed(Status::TimedOut, 1, ""), 1));
    }
}
