//! The rules in force: which sessions they admit, also while these are open.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tradewind_grant::{Check, Destination, GrantError, OpenHeader, Target};
use tradewind_net::tcp;
use tradewind_stream::StreamError;
use tradewind_stream::clock::unix_now;
use tradewind_stream::counts::Outcome;
use tradewind_stream::dial::local_host::LocalHost;
use tradewind_stream::process::live::Live;
use tradewind_stream::process::worker::{Cause, Permit, Worker};
use tradewind_stream::session::Session;
use tradewind_stream::session::authorization::{
    Authorizations, Dialled, Rules, SessionAuthorization,
};
use tradewind_telemetry::limited;

/// The rules of a relay, and the sessions that they have admitted.
pub(super) struct Admission {
    pub(super) rules: Live<Rules>,
    /// The open sessions, and the facts by which they were authorized.
    pub(super) sessions: Arc<Authorizations>,
    local_host: LocalHost,
    own_listeners: Vec<SocketAddr>,
}

impl Admission {
    /// Puts `rules` in force, of a relay with these listeners.
    pub(super) fn new(rules: Rules, own_listeners: Vec<SocketAddr>) -> Result<Self, StreamError> {
        let (rules, local_host) = (Live::new(rules), LocalHost::open()?);
        Ok(Self { rules, sessions: Arc::default(), local_host, own_listeners })
    }

    /// Puts other rules in force. Ends the open sessions that they do not admit, and returns how
    /// many these are.
    pub(super) fn replace(&self, rules: Rules) -> usize {
        self.rules.replace(rules);
        let rules = self.rules.current();
        self.sessions.end_refused(|basis| self.allows(&rules, basis))
    }

    /// Returns whether an address is this host's own.
    pub(super) fn is_local(&self, ip: IpAddr) -> bool {
        self.local_host.holds(ip)
    }

    /// Checks that the next relay at `address` may be dialled.
    pub(super) fn allows_next_hop(&self, address: SocketAddr) -> Result<(), GrantError> {
        let (rules, is_local) = (self.rules.current(), |ip| self.is_local(ip));
        self.check(&rules, &is_local).allows(Target::NextHop(address))
    }

    /// Enters a session whose path has just been opened, unless the rules that admitted it have
    /// changed meanwhile.
    pub(super) fn authorize(
        &self,
        permit: &mut Permit,
        header: &OpenHeader,
        session: &Session,
    ) -> Result<(), Outcome> {
        let dialled = match header.next_hop() {
            Some(next) => Dialled::NextHop(next.address),
            None => match tcp::peer(&session.downstream) {
                Some(address) => Dialled::Destination(address),
                // It has failed already.
                None => return Ok(()),
            },
        };
        let (verified, destination) = (header.verified_grant(), header.destination.clone());
        let basis = Arc::new(SessionAuthorization { verified, destination, dialled });
        permit.authorize(&self.sessions, unix_now(), Arc::clone(&basis));
        // A reload from now on finds it among the others.
        self.check_still(permit.worker(), header, &basis)
    }

    /// Refuses a session for which `dialled` is established now, if the rules that admitted it have
    /// changed during the dial: the other end is to receive nothing of it.
    pub(super) fn check_dialled(
        &self,
        worker: &Worker,
        header: &OpenHeader,
        dialled: Dialled,
    ) -> Result<(), Outcome> {
        let (verified, destination) = (header.verified_grant(), header.destination.clone());
        self.check_still(worker, header, &SessionAuthorization { verified, destination, dialled })
    }

    fn check_still(
        &self,
        worker: &Worker,
        header: &OpenHeader,
        basis: &SessionAuthorization,
    ) -> Result<(), Outcome> {
        self.allows(&self.rules.current(), basis).map_err(|cause| {
            limited!(
                info,
                worker.lines(),
                Cause::Gateway(header.grant.gateway),
                flow = %header.flow,
                "flow to {} ended: {cause}",
                header.destination
            );
            Outcome::Revoked
        })
    }

    /// Checks that `rules` would admit a session.
    fn allows(&self, rules: &Rules, basis: &SessionAuthorization) -> Result<(), GrantError> {
        rules.trust.check(&basis.verified)?;
        let is_local = |ip| self.is_local(ip);
        let check = Check { grant: Some(&basis.verified.grant), ..self.check(rules, &is_local) };
        check.allows(match (basis.dialled, &basis.destination) {
            (Dialled::NextHop(address), _) => Target::NextHop(address),
            (Dialled::Destination(address), Destination::Address(_)) => Target::Address(address),
            (Dialled::Destination(address), Destination::Name { name, .. }) => {
                Target::Resolved(name, address)
            }
        })
    }

    /// Returns the check of where sessions may go.
    pub(super) fn check<'a>(
        &'a self,
        rules: &'a Rules,
        is_local: &'a (dyn Fn(IpAddr) -> bool + Sync),
    ) -> Check<'a> {
        Check { listeners: &self.own_listeners, ..Check::new(&rules.policy, is_local) }
    }
}
