//! The methods by which a client opens a session through each subject.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::SystemTime;

use tradewind_grant::reply::{REPLY_PREFIX_BYTES, reply_length};
use tradewind_grant::{
    Destination, Grant, GrantError, Hop, IdentityKey, Nonce, OperatorKey, Relays, ReplyKey,
    Request, Route, Sealer, SignedGrant, Status,
};
use tradewind_units::{Duration, FlowId, Timestamp};

use crate::place::{IN_A_ROW, Port, relay_address};

/// The keys of one run: an operator, a gateway (the load generator) and the relays.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) operator: OperatorKey,
    pub(crate) gateway: IdentityKey,
    /// One, or several in a row.
    pub(crate) relays: [IdentityKey; IN_A_ROW],
    pub(crate) grant: SignedGrant,
}

/// Lifetime of the grant; longer than any run.
const GRANT_LIFE: Duration = Duration::from_secs(7 * 86_400);

impl Keys {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let entropy = tradewind_net::entropy::bytes::<32>;
        let operator = OperatorKey::from_entropy(entropy()?);
        let gateway = IdentityKey::from_entropy(entropy()?);
        let relay = || Ok::<_, anyhow::Error>(IdentityKey::from_entropy(entropy()?));
        let relays = [relay()?, relay()?, relay()?];
        let grant = Grant {
            gateway: gateway.public(),
            not_before: unix_now(),
            expires: unix_now() + GRANT_LIFE,
            sessions: None,
            extensions: tradewind_grant::Extensions::default(),
            relays: Relays::listed(&relays.each_ref().map(IdentityKey::public)),
            destinations: vec![DESTINATIONS.parse()?],
        };
        let grant = grant.sign(&operator)?;
        Ok(Self { operator, gateway, relays, grant })
    }
}

/// The destinations that the grant covers and the relay may dial: the server.
pub(crate) const DESTINATIONS: &str = "10.77.2.2/32:*";

fn unix_now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::ZERO + since_epoch.unwrap_or_default()
}

/// The forwarder between a client and the server.
#[derive(Debug)]
pub(crate) enum Access {
    /// None.
    Direct,
    /// A proxy with one port for each destination.
    Proxy,
    /// Our relay, which reads the destination from a hop header.
    Relay(Box<Gateway>),
}

/// The gateway's part: sealing hop headers.
#[derive(Debug)]
pub(crate) struct Gateway {
    sealer: Sealer,
    flow: FlowId,
    route: Route,
}

impl Gateway {
    pub(crate) fn new(keys: &Keys) -> Result<Self, GrantError> {
        let hop = Hop { address: relay_address(), identity: keys.relays[0].public() };
        Ok(Self {
            sealer: Sealer::new(keys.gateway.clone(), keys.grant.clone())?,
            flow: FlowId::new("bench").expect("a short word"),
            route: Route::new(vec![hop])?,
        })
    }

    fn seal(&mut self, port: Port) -> io::Result<(Vec<u8>, ReplyKey)> {
        let nonce = Nonce::from_entropy(tradewind_net::entropy::bytes()?);
        let destination = Destination::Address(port.behind_relay());
        let request = Request { flow: &self.flow, destination: &destination, route: &self.route };
        let header = self.sealer.seal(unix_now(), nonce, &request).map_err(io::Error::other)?;
        Ok((header.bytes, header.downstream))
    }
}

impl Access {
    /// Opens a session to the server's `port` and sends `first` in its first flight.
    pub(crate) fn open(&mut self, port: Port, first: &[u8]) -> io::Result<Session> {
        let (address, opening) = match self {
            Self::Direct => (port.direct(), None),
            Self::Proxy => (port.at_proxy(), None),
            Self::Relay(gateway) => (relay_address(), Some(gateway.seal(port)?)),
        };
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let reply = match opening {
            Some((mut header, reply)) => {
                header.extend_from_slice(first);
                stream.write_all(&header)?;
                Some(reply)
            }
            None => {
                stream.write_all(first)?;
                None
            }
        };
        Ok(Session { stream, reply })
    }
}

/// An open session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) stream: TcpStream,
    reply: Option<ReplyKey>,
}

impl Session {
    /// Waits for the relay's reply that the server is connected, if the subject is a relay.
    pub(crate) fn await_open(&mut self) -> io::Result<()> {
        let Some(key) = self.reply.take() else { return Ok(()) };
        let mut bytes = vec![0; REPLY_PREFIX_BYTES];
        self.stream.read_exact(&mut bytes)?;
        let length = reply_length(&bytes).map_err(io::Error::other)?;
        bytes.resize(length, 0);
        self.stream.read_exact(&mut bytes[REPLY_PREFIX_BYTES..])?;
        check_reply(&key, &bytes)
    }

    /// Reads until the server ends the stream; `buffer` must be longer than the stream. Returns the
    /// server's bytes.
    pub(crate) fn read_to_end<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let mut filled = 0;
        loop {
            match self.stream.read(&mut buffer[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        let received = &buffer[..filled];
        let Some(key) = self.reply.take() else { return Ok(received) };
        let length = reply_length(received).map_err(io::Error::other)?;
        let cut_off = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (reply, rest) = received.split_at_checked(length).ok_or_else(cut_off)?;
        check_reply(&key, reply)?;
        Ok(rest)
    }
}

fn check_reply(key: &ReplyKey, bytes: &[u8]) -> io::Result<()> {
    let reply = key.open(bytes).map_err(io::Error::other)?;
    match reply.status {
        Status::Ok => Ok(()),
        status => Err(io::Error::other(format!("the relay says {status}: {}", reply.message))),
    }
}
