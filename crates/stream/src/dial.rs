//! Dialling the next connection of a path.

pub mod local_host;
pub mod local_ports;
pub(crate) mod pacing_ramp;
pub mod pool;
pub mod pool_metrics;
pub mod probe_leg;
pub mod profile;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout_at};
use tradewind_grant::{
    Check, Destination, GrantError, Hop, HostName, PublicIdentity, Status, Target,
};
use tradewind_net::interception::CARRIED_HOPS;
use tradewind_net::tcp::{self, SocketOptions};

use crate::StreamError;
use crate::connection::Connection;
use crate::dial::profile::Legs;
use crate::failure::{Failure, out_of_descriptors, plain};
use crate::keys::own_identities::OwnIdentities;
use crate::limits::timeouts::LiveTimeouts;
use crate::resolver::{Lookups, Resolver};
use local_ports::LocalPorts;

/// Silence of one address of a name after which the next is dialled as well. Source: what RFC 8305
/// recommends.
const STAGGER: Duration = Duration::from_millis(250);

/// The side that speaks first on a new connection, as far as is known before it is established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// This side: it has something to send and starts with [`Direction::start`].
    ///
    /// [`Direction::start`]: crate::session::pump::Direction::start
    Us,
    /// Not known.
    Unknown,
}

/// The state of a dial to a destination, for the caller to observe.
pub struct Dialling<'a> {
    /// Called once the rules allow the destination, before it is dialled.
    pub(crate) admitted: &'a (dyn Fn() + Sync),
    /// Set when the dial fails and the destination may have received something.
    pub(crate) begun: AtomicBool,
}

impl<'a> Dialling<'a> {
    /// Creates the state of a dial that calls `admitted` once the rules allow the destination.
    pub fn new(admitted: &'a (dyn Fn() + Sync)) -> Self {
        Self { admitted, begun: AtomicBool::new(false) }
    }

    /// Returns true if a dial has failed whose other end may have received something.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Relaxed)
    }
}

/// The dialler of connections: options, timeouts, names and identities.
#[derive(Debug, Clone)]
pub struct Dialler {
    /// The profiles of legs.
    pub legs: Arc<Legs>,
    /// The timeouts in force.
    pub timeouts: LiveTimeouts,
    /// The addresses on which this process itself listens.
    pub own_listeners: Vec<SocketAddr>,
    /// The resolver of names.
    pub resolver: Resolver,
    /// The mark of its connections (`SO_MARK`), where rules of this host must tell them from
    /// others'.
    pub mark: Option<u32>,
    /// This host's local ports, for connections that are dialled.
    pub local_ports: LocalPorts,
    /// The identities with which legs are encrypted; none where this process has no identity.
    pub own: Arc<OwnIdentities>,
}

/// Tries the options on an unconnected socket, so that an option that the kernel refuses is
/// reported at the start and not by every session.
pub fn try_options(legs: &Legs) -> Result<(), StreamError> {
    for leg in legs.all() {
        let socket = TcpSocket::new_v4().map_err(StreamError::Runtime)?;
        leg.first.apply(&socket)?;
    }
    Ok(())
}

impl Dialler {
    /// Returns the time limit of each dial.
    pub fn limit(&self) -> Duration {
        self.timeouts.dial()
    }

    /// Connects to a relay with the identity `from`; where the leg is encrypted the relay must
    /// prove its identity.
    pub async fn dial(
        &self,
        from: &PublicIdentity,
        hop: &Hop,
        speaker: Speaker,
    ) -> Result<Connection, Failure> {
        self.dial_within(from, hop, speaker, Duration::MAX).await
    }

    /// Does the same within `limit`, or within that of all dials if it is less.
    pub async fn dial_within(
        &self,
        from: &PublicIdentity,
        hop: &Hop,
        speaker: Speaker,
        limit: Duration,
    ) -> Result<Connection, Failure> {
        let (address, deadline) = (hop.address, Instant::now() + limit.min(self.limit()));
        let leg = self.legs.to(address);
        // A reload may take the identity away while this dials.
        let own = self.own.get(from);
        let begun = AtomicBool::new(false);
        let stream = self.dial_until(address, speaker, deadline, &leg.early, &begun).await;
        let stream = stream.map_err(|error| Failure::dial(address, &error))?;
        if !leg.is_encrypted {
            return Ok(Connection::plain(stream));
        }
        let Some(own) = own else {
            let message = format!("next relay {address}: {}", GrantError::NotOwnIdentity(*from));
            return Err(Failure::new(Status::Internal, message));
        };
        let failed =
            |status, cause: String| Failure::new(status, format!("next relay {address}: {cause}"));
        // On the heap: it takes more memory than all else, and is over soon.
        let sealing = Box::pin(own.tls.seal_dialled(stream, hop.identity));
        match timeout_at(deadline, sealing).await {
            Ok(sealed) => sealed.map_err(|error| failed(Status::NextHopFailed, error.to_string())),
            Err(_) => Err(failed(Status::TimedOut, "no TLS handshake in time".to_owned())),
        }
    }

    /// Dials `address`. Sets `begun` when that fails and the other end may have received something.
    async fn dial_until(
        &self,
        address: SocketAddr,
        speaker: Speaker,
        deadline: Instant,
        more: &SocketOptions,
        begun: &AtomicBool,
    ) -> io::Result<TcpStream> {
        let attempt = async {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            self.legs.to(address).first.apply(&socket)?;
            more.apply(&socket)?;
            tcp::limit_hops(&socket, address.is_ipv6(), CARRIED_HOPS)?;
            if let Some(mark) = self.mark {
                tcp::set_mark(&socket, mark)?;
            }
            if speaker == Speaker::Us {
                tcp::acknowledge_with_data(&socket)?;
            }
            socket.connect(address).await
        };
        let late = || Err(io::Error::from(io::ErrorKind::TimedOut));
        let dialled = timeout_at(deadline, attempt).await.unwrap_or_else(|_| late());
        dialled.map_err(|error| {
            let is_unsent = local_ports::are_exhausted(&error) || out_of_descriptors(&error);
            begun.fetch_or(!is_unsent, Relaxed);
            let cause = local_ports::cause_of(error, address, self.mark);
            if local_ports::are_exhausted(&cause) {
                self.local_ports.note_exhausted(address);
            }
            cause
        })
    }

    /// Connects to `destination`, if `check` allows it. A name that it allows is resolved once, as
    /// one of `lookups`; of its addresses those that `check` allows are dialled, until one answers
    /// or the time is over. An address that is never dialled condemns the name: no honest name has
    /// one. If the dial fails, `dialling` tells whether the destination may have received
    /// something.
    ///
    /// The failure that is reported for a name holds none of its addresses.
    pub async fn dial_destination(
        &self,
        destination: &Destination,
        speaker: Speaker,
        lookups: &Lookups,
        check: &Check<'_>,
        dialling: &Dialling<'_>,
    ) -> Result<TcpStream, Failure> {
        let deadline = Instant::now() + self.limit();
        let none = SocketOptions::default();
        check.allows(Target::of(destination))?;
        let (name, port) = match destination {
            Destination::Address(address) => {
                (dialling.admitted)();
                let begun = &dialling.begun;
                let dialled = self.dial_until(*address, speaker, deadline, &none, begun).await;
                return dialled.map_err(|error| Failure::dial(*address, &error));
            }
            Destination::Name { name, port } => (name, *port),
        };
        // On the heap: addresses, which most destinations are, need none of its memory.
        Box::pin(self.dial_name((name, port), (speaker, deadline), lookups, check, dialling)).await
    }

    /// Resolves a name, and connects to the first of its allowed addresses that answers.
    async fn dial_name(
        &self,
        (name, port): (&HostName, u16),
        (speaker, deadline): (Speaker, Instant),
        lookups: &Lookups,
        check: &Check<'_>,
        dialling: &Dialling<'_>,
    ) -> Result<TcpStream, Failure> {
        let none = SocketOptions::default();
        let resolving = self.resolver.resolve(name.as_str(), port, lookups);
        let found = timeout_at(deadline, resolving).await.map_err(|_| {
            Failure::new(Status::TimedOut, format!("resolve {name}: no answer in time"))
        })?;
        let nowhere = |why: &str| {
            let failure = Failure::new(Status::NameNotFound, format!("resolve {name}: {why}"));
            failure.with_peer_message(format!("resolve {name}: no address"))
        };
        let addresses = found.map_err(|error| nowhere(&plain(&error)))?;
        // A gateway that was not granted this name does not learn that it resolves here.
        let refused = |cause: GrantError| {
            if check.names(name, port) {
                Failure::from(cause)
                    .with_peer_message(format!("{name}: no address that may be dialled"))
            } else {
                nowhere(&cause.to_string())
            }
        };
        let (mut allowed, mut refusal) = (Vec::new(), None);
        for address in addresses {
            match check.allows(Target::Resolved(name, address)) {
                Ok(()) => allowed.push(address),
                Err(cause @ GrantError::Forbidden { .. }) => return Err(refused(cause)),
                Err(cause) => refusal = Some(refused(cause)),
            }
        }
        if !allowed.is_empty() {
            (dialling.admitted)();
        }
        let (none, begun) = (&none, &dialling.begun);
        let dial = |address| async move {
            let dialled = self.dial_until(address, speaker, deadline, none, begun).await;
            dialled.map_err(|error| {
                let failure = Failure::dial(address, &error);
                let own = format!("dial {address}");
                let message = failure.message.replacen(&own, &format!("dial {name}:{port}"), 1);
                failure.with_peer_message(message)
            })
        };
        let dialled = first_of(in_turns_of_families(allowed), dial).await;
        dialled.map_err(|failed| failed.or(refusal).unwrap_or_else(|| nowhere("no address")))
    }
}

/// Returns the addresses in their order, with IPv4 and IPv6 alternating as long as there are both:
/// an unreachable family costs a name a single [`STAGGER`] \[RFC 8305, 4\].
fn in_turns_of_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let starts_with_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == starts_with_v6);
    let longest = first.len().max(second.len());
    (0..longest).flat_map(|turn| [first.get(turn), second.get(turn)]).flatten().copied().collect()
}

/// Returns the result of the first of `addresses` that answers; each is dialled when those before
/// it have failed, or the last of them has been silent for [`STAGGER`] \[RFC 8305, 5\]. If all
/// fail, returns the last failure; `None` if there are no addresses.
async fn first_of<T, F: Future<Output = Result<T, Failure>>>(
    addresses: Vec<SocketAddr>,
    dial: impl Fn(SocketAddr) -> F,
) -> Result<T, Option<Failure>> {
    let mut left = addresses.into_iter();
    let mut dials: Vec<Pin<Box<F>>> = Vec::new();
    let mut failed = None;
    let mut next_at = pin!(sleep_until(Instant::now()));
    poll_fn(|cx| {
        loop {
            let is_over = match poll_each(cx, &mut dials) {
                Poll::Ready(Ok(done)) => return Poll::Ready(Ok(done)),
                Poll::Ready(Err(failure)) => {
                    failed = Some(failure);
                    true
                }
                Poll::Pending => false,
            };
            let is_time = dials.is_empty() || is_over || next_at.as_mut().poll(cx).is_ready();
            if is_time && let Some(address) = left.next() {
                dials.push(Box::pin(dial(address)));
                next_at.as_mut().reset(Instant::now() + STAGGER);
            } else if dials.is_empty() {
                return Poll::Ready(Err(failed.take()));
            } else if !is_over {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Polls `dials` until one is ready; removes that one and returns its output.
fn poll_each<F: Future>(cx: &mut Context<'_>, dials: &mut Vec<Pin<Box<F>>>) -> Poll<F::Output> {
    for index in 0..dials.len() {
        if let Poll::Ready(output) = dials[index].as_mut().poll(cx) {
            drop(dials.swap_remove(index));
            return Poll::Ready(output);
        }
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tradewind_grant::{IdentityKey, Policy};
    use tradewind_net::iproute::{Tool, batch};
    use tradewind_net::netns::Namespace;
    use tradewind_net::sysctl;

    use super::*;
    use crate::connection::tests::{key, runtime};
    use tradewind_config::{LegProfiles, Timeouts};

    #[test]
    fn families_take_turns_and_keep_their_order() {
        let addresses = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| format!("{text}:1").parse().unwrap()).collect()
        };
        for (given, wanted) in [
            (&["[::1]", "[::2]", "[::3]", "1.1.1.1"][..], &["[::1]", "1.1.1.1", "[::2]", "[::3]"]),
            (&["1.1.1.1", "1.1.1.2", "[::1]", "[::2]"], &["1.1.1.1", "[::1]", "1.1.1.2", "[::2]"]),
        ] {
            assert_eq!(in_turns_of_families(addresses(given)), addresses(wanted));
        }
        assert!(in_turns_of_families(Vec::new()).is_empty());
    }

    fn dialler(resolver: Resolver, own: &[IdentityKey]) -> Dialler {
        let timeouts = Timeouts::default();
        Dialler {
            legs: Arc::new(Legs::new(&LegProfiles::default(), &timeouts, None)),
            timeouts: LiveTimeouts::new(&timeouts),
            own_listeners: Vec::new(),
            resolver,
            mark: None,
            local_ports: LocalPorts::default(),
            own: Arc::new(OwnIdentities::new(own).unwrap()),
        }
    }

    #[test]
    fn dial_outlives_identity_reload() {
        let dialler = dialler(Resolver::default(), &[key(1)]);
        runtime().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (from, identity) = (key(1).public(), key(2).public());
            let hop = Hop { address: listener.local_addr().unwrap(), identity };
            let mut dial = pin!(dialler.dial(&from, &hop, Speaker::Us));
            // Connecting as far as is known: it has not been polled since.
            let begun = poll_fn(|cx| Poll::Ready(dial.as_mut().poll(cx).is_pending())).await;
            assert!(begun);
            dialler.own.set(Vec::new());
            let hello = async {
                let (stream, _) = listener.accept().await.unwrap();
                stream.readable().await.unwrap();
                stream.try_read(&mut [0; 1]).unwrap()
            };
            tokio::select! {
                ended = dial => panic!("{:?}", ended.err()),
                read = hello => assert_eq!(read, 1, "of the handshake"),
            }
        });
    }

    /// Dials a name that resolves to loopback, and returns the status of its failure and whether
    /// the destination may have received something.
    fn dial_by_name(port: u16) -> (Status, bool) {
        let dialler = dialler(Resolver::by(|_| vec![[127, 0, 0, 1].into()]), &[]);
        let destinations = ["127.0.0.0/8:*", "*.test:*"].map(|rule| rule.parse().unwrap());
        let destinations = destinations.to_vec();
        let policy = Policy { destinations, allow_loopback: true, ..Policy::default() };
        let (is_local, dialling) = (|_| false, Dialling::new(&|| {}));
        let check = Check::new(&policy, &is_local);
        let to = format!("db.test:{port}").parse().unwrap();
        let lookups = Lookups::of_one();
        let dial = dialler.dial_destination(&to, Speaker::Unknown, &lookups, &check, &dialling);
        let failure = runtime().block_on(dial).unwrap_err();
        (failure.status, dialling.has_begun())
    }

    #[test]
    fn exhausted_local_ports_are_not_a_dial() {
        let host = match Namespace::create() {
            Ok(host) => host,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        batch(&host, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
        let test = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            sysctl::set("net.ipv4.ip_local_port_range", "61000 61003").unwrap();
            let connect = |_| std::net::TcpStream::connect(to).ok();
            let used: Vec<_> = (0..9).map_while(connect).collect();
            assert!((1..9).contains(&used.len()), "{}", used.len());
            assert_eq!(dial_by_name(to.port()), (Status::Overloaded, false));
            drop((used, listener));
            // A destination that refuses has received the SYN.
            assert_eq!(dial_by_name(9), (Status::ConnectionRefused, true));
        };
        host.run(test).unwrap();
    }
}
