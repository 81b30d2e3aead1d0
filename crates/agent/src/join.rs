//! Joining a controller by an invite.

use std::net::IpAddr;
use std::sync::Arc;

use tradewind_control::message::{CONFIG_VERSION, JoinRequest, SCHEMA_VERSION};
use tradewind_control::{Ceiling, Invite};
use tradewind_stream::connection::Tls;

use crate::home::Membership;
use crate::link::Link;
use crate::{AGENT_VERSION, AgentError, Home};

/// Joins the controller of `invite`, and keeps the answer in `home`, which the caller has locked.
/// The same host may do it again. `address` is where neighbours reach the host, if it is not where
/// the request comes from. Without a `ceiling`, an existing one stays, and a new one is written for
/// the host's role ([`Ceiling::of_role`]).
///
/// # Errors
/// When the folder belongs to another controller, or the controller is not reached or refuses.
pub async fn join(
    home: &Home,
    invite: &Invite,
    address: Option<IpAddr>,
    ceiling: Option<&Ceiling>,
) -> Result<Membership, AgentError> {
    if let Some(known) = home.membership()?.filter(|known| known.identity != invite.identity) {
        let (host, controller) = (known.host, known.controller);
        return Err(AgentError::OfAnother { dir: home.path().to_owned(), host, controller });
    }
    let (agent, data) = (home.agent_key()?, home.data_key()?);
    let tls = Arc::new(Tls::new(&agent)?);
    let request = JoinRequest {
        schema_version: SCHEMA_VERSION,
        secret: invite.secret,
        data_identity: data.public(),
        address,
        agent_version: AGENT_VERSION.to_owned(),
        config_version: CONFIG_VERSION,
    };
    let controller = invite.controller;
    let mut link = Link::new(tls, controller, invite.identity);
    let answer = link.join(&request).await;
    let answer = answer.map_err(|error| AgentError::Link { controller, error })?;
    match ceiling {
        Some(ceiling) => home.set_ceiling(ceiling)?,
        None if home.ceiling()?.is_none() => home.set_ceiling(&Ceiling::of_role(&answer.role))?,
        None => {}
    }
    let identity = invite.identity;
    let membership = Membership { controller, identity, host: answer.host, role: answer.role };
    home.set_membership(&membership)?;
    Ok(membership)
}
