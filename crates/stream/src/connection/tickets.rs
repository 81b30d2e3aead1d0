//! Tickets of a neighbour, by each of which one connection to it may resume.
//!
//! A connection uses one up and receives the next. So there are as many as concurrent connections,
//! of which rustls's own store would keep eight.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Most tickets of one neighbour, of half a kilobyte or so. Chosen: more sessions seldom begin
/// before one of them is answered, and those that do sign.
const MAX_TICKETS: usize = 64;

/// The tickets of one neighbour, for all names that it is dialled by.
#[derive(Debug, Default)]
pub(super) struct Tickets(Mutex<VecDeque<Tls13ClientSessionValue>>);

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Tls13ClientSessionValue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Tickets {
    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut tickets = self.lock();
        if tickets.len() >= MAX_TICKETS {
            tickets.pop_front();
        }
        tickets.push_back(ticket);
    }

    /// Takes the newest: the key of an old one may be gone.
    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().pop_back()
    }

    /// Does nothing: there is one group to choose from.
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    /// Does nothing: TLS 1.2 is never negotiated.
    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}
}
