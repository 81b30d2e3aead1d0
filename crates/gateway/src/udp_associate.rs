//! UDP for SOCKS5 clients [RFC 1928 section 7]: the gateway unwraps a client's datagrams, forwards
//! them to their destinations over the packet plane, and returns the replies wrapped.
//!
//! An association belongs to the connection that requested it, and ends with it. Its port serves
//! only the one address that its client sends from. Each destination has a task and a flow of its
//! own, however long it is idle: a server's reply after an hour is still delivered. If there is no
//! capacity for another flow, the one that has been idle longest is evicted.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::UdpSocket;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tradewind_grant::{Destination, Sealer};
use tradewind_net::registration;
use tradewind_stream::access_log::{Goes, Record, note};
use tradewind_stream::connection::Connection;
use tradewind_stream::counts::Outcome;
use tradewind_stream::failure::plain;
use tradewind_stream::process::worker::{Cause, Permit, Worker};
use tradewind_stream::resolver::{Lookups, Resolver};
use tradewind_stream::session::buffer_pool::BUFFER_BYTES;
use tradewind_telemetry::limited;
use tradewind_units::{Duration, Source};

use super::datagrams::Plane;
use super::http::Served;
use super::service::{GatewayService, Listener};
use super::slots::{FlowSlot, SlotState};
use super::socks5;

/// Most destinations of an association at a time. Chosen: the peers of a game or a call, and its
/// name servers.
const MAX_DESTINATIONS: usize = 64;
/// Most bytes of datagrams of one association that are queued, over all its flows. Chosen: the
/// first round trips of a video call.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Most datagrams that are queued for one flow. Chosen: those of the first round trips; a socket
/// would hold no more.
const MAX_WAITING: usize = 64;
/// Longest time that the first datagrams wait for the remote gateway.
const OPENING: Duration = Duration::from_secs(5);
/// Interval at which it is polled.
const LOOK: Duration = Duration::from_millis(20);

/// A queued datagram, and its share of the bytes that may be queued.
type Waiting = (Vec<u8>, OwnedSemaphorePermit);

/// The client of an association.
struct Client {
    ip: IpAddr,
    /// The port that it sends from; absent until its first datagram, if its request named none.
    port: Option<u16>,
}

impl Client {
    /// Returns whether a datagram from `source` is the client's own; the first one sets its port.
    fn sends_from(&mut self, source: SocketAddr) -> bool {
        let is_client = source.ip().to_canonical() == self.ip;
        is_client && *self.port.get_or_insert(source.port()) == source.port()
    }
}

/// A destination of an association.
struct Talk {
    datagrams: Sender<Waiting>,
    held: Arc<SlotState>,
    task: AbortHandle,
}

impl Drop for Talk {
    fn drop(&mut self) {
        // It may still be resolving the name or waiting for the remote gateway, with datagrams
        // queued.
        self.task.abort();
    }
}

/// An association: the state that its destinations share.
struct Association {
    plane: Arc<Plane>,
    resolver: Resolver,
    lookups: Lookups,
    /// The sealer, whose grant decides which names are looked up.
    sealer: Option<Arc<Mutex<Sealer>>>,
    source: Source,
    /// Its record in the access log.
    record: Option<Arc<Record>>,
    /// The bytes that may still be queued.
    queue_permits: Arc<Semaphore>,
    /// Longest lookup of a name.
    limit: Duration,
    socket: UdpSocket,
}

impl GatewayService {
    /// Serves an association of the client of `application` until that connection ends; `port` is
    /// the port that it announced to send from, or 0.
    pub(super) async fn associate(
        &self,
        application: &Connection,
        port: u16,
        listener: &Listener,
        permit: &Permit,
    ) -> Served {
        let (worker, cause) = (permit.worker(), Cause::Source(permit.source()));
        let from = application.remote();
        let over = |word, outcome| Served::Over { word, outcome };
        let Some(plane) = self.plane.get() else {
            let why = "SOCKS5: UDP needs the packet plane (`[socks5_udp]`)";
            limited!(info, worker.lines(), cause, "refused: {from}: {why}");
            return over(socks5::reply(socks5::NO_COMMAND).to_vec(), Outcome::Malformed);
        };
        let bound = async {
            let stream = application.stream();
            let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
            let socket = UdpSocket::bind(SocketAddr::new(local.ip(), 0)).await?;
            Ok::<_, io::Error>((socket.local_addr()?, peer, socket))
        };
        let (at, peer, socket) = match bound.await {
            Ok(bound) => bound,
            Err(error) => {
                limited!(warn, worker.lines(), cause, "SOCKS5: UDP: {from}: {}", plain(&error));
                return over(socks5::reply(socks5::FAILED).to_vec(), Outcome::Broken);
            }
        };
        if application.write_all(&socks5::associated(at)).await.is_err() {
            return Served::Broken(Outcome::Broken);
        }
        let client = Client { ip: peer.ip().to_canonical(), port: (port != 0).then_some(port) };
        note(|facts| {
            facts.flow = Some(listener.flow.clone());
            facts.path = Some("packets".to_owned());
            facts.datagrams_to = Some(0);
        });
        let (lookups, _place) = listener.lookups_of(&self.opener.askers, permit.source());
        let association = Arc::new(Association {
            plane: Arc::clone(plane),
            resolver: self.opener.dialler.resolver.clone(),
            lookups,
            sealer: self.opener.sealer.clone(),
            source: permit.source(),
            record: permit.record().cloned(),
            queue_permits: Arc::new(Semaphore::new(MAX_WAITING_BYTES)),
            limit: self.opener.dialler.limit(),
            socket,
        });
        tokio::select! {
            () = ended(application, worker) => over(Vec::new(), Outcome::Ended),
            error = association.serve(client, worker) => {
                tracing::debug!("SOCKS5: UDP: {}", plain(&error));
                Served::Broken(Outcome::Broken)
            }
        }
    }
}

impl Association {
    /// Forwards the client's datagrams to their destinations, until the socket fails.
    async fn serve(self: &Arc<Self>, mut client: Client, worker: &Worker) -> io::Error {
        let mut talks: BTreeMap<Destination, Talk> = BTreeMap::new();
        // Dropped with the association, and all its tasks with it.
        let mut tasks = JoinSet::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let (length, source) = match self.socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // An ICMP error caused by a reply is no failure of the socket.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return error,
            };
            while tasks.try_join_next().is_some() {}
            // Datagrams of others are dropped, as are fragments and invalid ones.
            if !client.sends_from(source) {
                continue;
            }
            let Some((to, data)) = socks5::unwrap(&buffer[..length]) else { continue };
            worker.counts.up.moved(data.len());
            self.record.iter().for_each(|record| record.moved(Goes::Up, data.len() as u64));
            talks.retain(|_, talk| !talk.datagrams.is_closed());
            if !talks.contains_key(&to) {
                let Some(talk) = self.begin(&to, &mut talks, (&mut tasks, source), worker) else {
                    continue;
                };
                talks.insert(to.clone(), talk);
            }
            let Some(talk) = talks.get(&to) else { continue };
            talk.held.touch();
            // A datagram that exceeds the queue is lost, as in a socket.
            let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
            if let Ok(permit) = Arc::clone(&self.queue_permits).try_acquire_many_owned(length) {
                let _lost = talk.datagrams.try_send((data.to_vec(), permit));
            }
        }
    }

    /// Opens a flow to another destination; if there is no capacity, the one that has been idle
    /// longest is evicted. `None` if its source has no flow to evict.
    fn begin(
        self: &Arc<Self>,
        to: &Destination,
        talks: &mut BTreeMap<Destination, Talk>,
        (tasks, client): (&mut JoinSet<()>, SocketAddr),
        worker: &Worker,
    ) -> Option<Talk> {
        if talks.len() >= MAX_DESTINATIONS {
            let oldest = talks.iter().min_by_key(|(_, talk)| talk.held.last());
            let oldest = oldest.map(|(to, _)| to.clone());
            oldest.and_then(|oldest| talks.remove(&oldest));
            worker.counts.udp_flow_evicted();
        }
        let Some((slot, has_evicted)) = self.plane.slots.enter(self.source) else {
            tracing::debug!("SOCKS5: datagrams to {to}: no room for another flow");
            return None;
        };
        if has_evicted {
            worker.counts.udp_flow_evicted();
        }
        let (datagrams, waiting) = mpsc::channel(MAX_WAITING);
        note(|facts| {
            facts.destination.get_or_insert_with(|| to.clone());
            facts.datagrams_to = facts.datagrams_to.map(|count| count + 1);
        });
        let held = Arc::clone(slot.held());
        let (association, to) = (Arc::clone(self), to.clone());
        let task = tasks.spawn(async move {
            if let Err(why) = association.talk(&to, slot, waiting, client).await {
                tracing::debug!("SOCKS5: datagrams to {to}: {why}");
            }
        });
        Some(Talk { datagrams, held, task })
    }

    /// Carries the datagrams to one destination and its replies, until the association ends or the
    /// flow is evicted.
    async fn talk(
        &self,
        to: &Destination,
        slot: FlowSlot,
        mut waiting: Receiver<Waiting>,
        client: SocketAddr,
    ) -> Result<(), String> {
        let to = self.address_of(to).await?;
        let flow = self.plane.datagrams.open(client, to)?;
        let opening = async {
            while !flow.is_open()? {
                sleep(LOOK).await;
            }
            Ok::<_, String>(())
        };
        timeout(OPENING, opening).await.map_err(|_| "the remote gateway does not answer")??;
        let answers = flow.as_fd().try_clone_to_owned().and_then(registration::for_reading);
        let answers = answers.map_err(|error| plain(&error))?;
        loop {
            tokio::select! {
                datagram = waiting.recv() => match datagram {
                    Some((datagram, _permit)) => flow.send(&datagram)?,
                    None => return Ok(()),
                },
                ready = answers.readable() => {
                    let mut ready = ready.map_err(|error| plain(&error))?;
                    match flow.receive()? {
                        Some(datagram) => {
                            slot.held().touch();
                            // If the client is gone, the reply is lost.
                            let wrapped = socks5::wrap(to, &datagram);
                            let length = datagram.len() as u64;
                            self.record.iter().for_each(|record| record.moved(Goes::Down, length));
                            let _gone = self.socket.send_to(&wrapped, client).await;
                        }
                        None => ready.clear_ready(),
                    }
                }
                () = slot.held().is_left() => return Ok(()),
            }
        }
    }

    /// Returns whether the grant may cover a destination.
    fn may_reach(&self, to: &Destination) -> bool {
        let covers = |sealer: &Arc<Mutex<Sealer>>| {
            let sealer = sealer.lock().unwrap_or_else(PoisonError::into_inner);
            sealer.grant().unverified().may_cover(to)
        };
        self.sealer.as_ref().is_some_and(covers)
    }

    /// Returns the address of a destination: a remote gateway accepts addresses alone, so a name is
    /// looked up here, if the grant may cover it.
    async fn address_of(&self, to: &Destination) -> Result<SocketAddr, String> {
        let (name, port) = match to {
            Destination::Address(address) => return Ok(*address),
            Destination::Name { .. } if !self.may_reach(to) => {
                return Err("the grant does not cover it, so it is not looked up".to_owned());
            }
            Destination::Name { name, port } => (name, *port),
        };
        let found = self.resolver.resolve(name.as_str(), port, &self.lookups);
        let found = timeout(self.limit, found).await.map_err(|_| "no answer in time")?;
        let found = found.map_err(|error| plain(&error))?;
        let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
        first.copied().ok_or_else(|| "its name has no address".to_owned())
    }
}

/// Waits until the connection of an association ends; data received on it is ignored.
async fn ended(application: &Connection, worker: &Worker) {
    let mut read_ahead = tradewind_stream::connection::head::ReadAhead::default();
    while let Ok(count @ 1..) =
        read_ahead.read_more(application, &worker.buffer_pool, BUFFER_BYTES).await
    {
        read_ahead.use_up(count);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use tradewind_grant::{Extensions, Grant, IdentityKey, OperatorKey, Relays};
    use tradewind_units::Timestamp;

    use super::*;
    use crate::datagrams::{DatagramFlow, Datagrams};

    /// A packet plane whose flows deliver nothing.
    struct Nowhere;

    struct Silence(std::fs::File);

    impl Datagrams for Nowhere {
        fn open(&self, _: SocketAddr, _: SocketAddr) -> Result<Box<dyn DatagramFlow>, String> {
            Ok(Box::new(Silence(std::fs::File::open("/dev/null").unwrap())))
        }
    }

    impl AsFd for Silence {
        fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl DatagramFlow for Silence {
        fn is_open(&self) -> Result<bool, String> {
            Ok(true)
        }

        fn send(&self, _: &[u8]) -> Result<(), String> {
            Ok(())
        }

        fn receive(&self) -> Result<Option<Vec<u8>>, String> {
            Ok(None)
        }
    }

    /// A sealer with a grant for `rules`.
    fn sealer(rules: &[&str]) -> Option<Arc<Mutex<Sealer>>> {
        let identity = IdentityKey::from_entropy([1; 32]);
        let grant = Grant {
            gateway: identity.public(),
            not_before: Timestamp::ZERO,
            expires: Timestamp::ZERO + Duration::from_secs(60),
            sessions: None,
            extensions: Extensions::default(),
            relays: Relays::Any,
            destinations: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
        };
        let grant = grant.sign(&OperatorKey::from_entropy([2; 32])).unwrap();
        Some(Arc::new(Mutex::new(Sealer::new(identity, grant).unwrap())))
    }

    #[tokio::test]
    async fn ungranted_names_are_not_resolved() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let asks = Arc::clone(&asked);
        let resolver = Resolver::by(move |name| {
            asks.lock().unwrap().push(name.to_owned());
            vec![[192, 0, 2, 9].into()]
        });
        let mut association = Association {
            plane: Arc::new(Plane::new(Arc::new(Nowhere))),
            resolver,
            lookups: Lookups::of_one(),
            sealer: sealer(&["voice.example:5000", "10.0.0.0/8:*"]),
            source: Source::of([192, 0, 2, 1].into()),
            record: None,
            queue_permits: Arc::new(Semaphore::new(1)),
            limit: Duration::from_secs(1),
            socket: UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        };
        for other in ["db.internal:5000", "voice.example:22"] {
            let why = association.address_of(&other.parse().unwrap()).await.unwrap_err();
            assert!(why.contains("the grant does not cover it"), "{why}");
        }
        assert!(asked.lock().unwrap().is_empty(), "a name server was told of it");
        let found = association.address_of(&"voice.example:5000".parse().unwrap()).await;
        assert_eq!(found, Ok(([192, 0, 2, 9], 5000).into()));
        assert_eq!(*asked.lock().unwrap(), ["voice.example"]);
        association.sealer = None;
        association.address_of(&"voice.example:5000".parse().unwrap()).await.unwrap_err();
    }

    #[test]
    fn association_serves_only_its_client() {
        let ip: IpAddr = [192, 0, 2, 1].into();
        let from = |last: u8, port: u16| SocketAddr::from(([192, 0, 2, last], port));
        let mut client = Client { ip, port: None };
        assert!(!client.sends_from(from(2, 5)), "another host");
        assert!(client.sends_from(from(1, 7)));
        assert!(!client.sends_from(from(1, 8)), "another program of its host");
        assert!(client.sends_from("[::ffff:192.0.2.1]:7".parse().unwrap()));
        assert!(!Client { ip, port: Some(9) }.sends_from(from(1, 7)));
    }
}
