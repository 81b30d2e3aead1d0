//! Configurations of programs that link this crate: no file, no ports of their own.

use super::*;

impl NodeConfig {
    /// Returns a node that listens here, carries nothing and serves nobody.
    pub(super) fn bare(listen: SocketAddr, identity: IdentityKey) -> Self {
        Self {
            listen,
            identity,
            other_identities: Vec::new(),
            workers: 1,
            operators: Vec::new(),
            revocations: Revocations::default(),
            neighbours: BTreeSet::new(),
            policy: Policy::default(),
            grant: None,
            paths: Vec::new(),
            groups: Vec::new(),
            courses: Vec::new(),
            further_addresses: BTreeMap::new(),
            repeats_copies: true,
            leg_seal: LegSeal::default(),
            preserve_source: Vec::new(),
            tunnel: None,
            services: RelayServices::default(),
            members: None,
            copying: Copying::default(),
            rendezvous: Rendezvous::default(),
            sections: SectionKeys::default(),
        }
    }

    /// Returns the node of an application that sends by [`Node::register`](crate::Node::register):
    /// it has no ports of its own and serves nobody.
    #[must_use]
    pub fn of_application(identity: IdentityKey, grant: SignedGrant) -> Self {
        Self { grant: Some(grant), ..Self::bare(ANY_PORT, identity) }
    }

    /// Returns the node of an application that others send to
    /// ([`Node::listen`](crate::Node::listen)). It listens at `listen`, for those who hold a grant
    /// of one of the `operators`, directly and over paths that end with one of the `relays`. The
    /// addresses that a listener may have are added to its policy's destinations.
    #[must_use]
    pub fn of_listener(
        listen: SocketAddr,
        identity: IdentityKey,
        operators: Vec<OperatorPublicKey>,
        relays: impl IntoIterator<Item = PublicIdentity>,
    ) -> Self {
        let neighbours = relays.into_iter().collect();
        Self { operators, neighbours, ..Self::bare(listen, identity) }
    }
}
