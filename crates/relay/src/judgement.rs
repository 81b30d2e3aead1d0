//! The verification of headers, also while another process takes over.
//!
//! One process at a time holds the table of headers seen. Once it is handed over, headers wait for
//! the next process's answer, and nothing else does: the table is sent, and the next process asked,
//! without the lock that all workers share.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Instant, timeout_at};
use tradewind_grant::{
    GrantError, OpenHeader, Opening, PublicIdentity, ReceivedHeader, Refusal, ReplyKey, Sighting,
    Verifier, warm,
};
use tradewind_stream::clock::unix_now;
use tradewind_stream::process::upgrade::{Successor, send_bytes, start_asking};

/// The verifier of headers and hellos.
pub(super) struct HeaderVerifier {
    /// Shared by all workers, since a replayed header may arrive at another one. Locked for a few
    /// keyed hashes at a time; signatures are checked without the lock.
    verifier: Arc<Mutex<Verifier>>,
    /// The process that takes over, which holds the table of headers seen from then on.
    successor: Mutex<Option<Successor>>,
}

impl HeaderVerifier {
    pub(super) const fn new(verifier: Arc<Mutex<Verifier>>) -> Self {
        Self { verifier, successor: Mutex::new(None) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Verifier> {
        self.verifier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a hello from `peer`, which is the identity proved in TLS, if there is one.
    pub(super) fn open_hello(
        &self,
        bytes: &[u8],
        peer: Option<PublicIdentity>,
    ) -> Result<ReplyKey, GrantError> {
        match (peer, warm::sender(bytes)) {
            (Some(peer), Some(sender)) if sender != peer => Err(GrantError::HelloTag(sender)),
            _ => self.lock().open_hello(unix_now(), bytes),
        }
    }

    /// Opens a header from `peer`, the identity proved in TLS if there is one, by `deadline`.
    pub(super) async fn verify(
        &self,
        bytes: &[u8],
        peer: Option<PublicIdentity>,
        deadline: Instant,
    ) -> Result<OpenHeader, Box<Refusal>> {
        let header = match self.begin_open(bytes)? {
            Opening::Open(header) => *header,
            Opening::Unjudged(unjudged) => {
                let asked = timeout_at(deadline, self.ask_successor(unjudged.sighting)).await;
                // Without an answer by the deadline the header is refused.
                let verdict = asked.unwrap_or(Err(GrantError::ReplayTableFull(0)));
                self.lock().finish(*unjudged, verdict)?
            }
        };
        let (hop, neighbour) = (header.hop, header.neighbour());
        if peer.is_some_and(|peer| peer != neighbour) {
            return Err(GrantError::WrongNeighbour { hop, neighbour }.into());
        }
        Ok(header)
    }

    fn begin_open(&self, bytes: &[u8]) -> Result<Opening, Box<Refusal>> {
        let header = ReceivedHeader::parse(bytes)?;
        let mut verifier = self.lock();
        if !verifier.knows_grant_of(&header) {
            let trust = Arc::clone(verifier.trust());
            drop(verifier);
            let verified = header.verify_grant(trust.operators())?;
            verifier = self.lock();
            verifier.learn(verified);
        }
        verifier.begin_open(unix_now(), header)
    }

    /// Asks the process that takes over, unless it has failed meanwhile and the table is back here.
    async fn ask_successor(&self, sighting: Sighting) -> Result<(), GrantError> {
        let successor = self.successor();
        let verdict = match &successor {
            Some(successor) => successor.ask(unix_now(), sighting).await,
            None => None,
        };
        verdict.unwrap_or_else(|| {
            let judged = self.lock().judge(unix_now(), &sighting);
            judged.unwrap_or(Err(GrantError::ReplayTableFull(0)))
        })
    }

    fn successor(&self) -> Option<Successor> {
        self.successor.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_successor(&self, successor: Option<Successor>) {
        *self.successor.lock().unwrap_or_else(PoisonError::into_inner) = successor;
    }

    /// Verifies a header for the previous process, on a thread of its own.
    pub(super) fn judge(&self, sighting: &Sighting) -> Result<(), GrantError> {
        if let Some(judged) = self.lock().judge(unix_now(), sighting) {
            return judged;
        }
        // This process has a successor, too.
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let asked = runtime.map(|runtime| runtime.block_on(self.ask_successor(*sighting)));
        asked.unwrap_or(Err(GrantError::ReplayTableFull(0)))
    }

    /// Sends the table to the process at the other end of `stream`, which is asked from now on; on
    /// an error the table stays here.
    pub(super) fn hand_over(&self, stream: &UnixStream) -> io::Result<()> {
        let asked = stream.try_clone()?;
        let (successor, questions) = Successor::new();
        let before = self.successor();
        // Set first, since headers cannot be verified here once the table is removed.
        self.set_successor(Some(successor));
        let Some(table) = self.lock().hand_over() else {
            self.set_successor(before);
            return Err(io::Error::other("another process has taken over already"));
        };
        let (bytes, take_back) = (table.to_bytes(), || {
            self.lock().take_over(table);
            self.set_successor(None);
        });
        if let Err(error) = send_bytes(stream, &bytes) {
            // The table is back before tasks that wait for an answer learn that there is none.
            take_back();
            drop(questions);
            return Err(error);
        }
        start_asking(asked, questions).inspect_err(|_| take_back())
    }
}
