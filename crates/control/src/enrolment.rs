//! Enrolment of hosts: invites, and the requests that use them.

use std::net::{IpAddr, SocketAddr};

use tradewind_grant::PublicIdentity;
use tradewind_units::{Duration, HostId, SiteId};

use crate::draft::{Draft, OPERATOR};
use crate::event::{Answer, Refusal};
use crate::invite::{Invite, InviteSecret};
use crate::message::{JoinAnswer, JoinRequest, SCHEMA_VERSION};
use crate::prices::{CATALOGUE, relay_type};
use crate::record::{Host, InviteRecord, Record, Role};
use crate::relayed;
use crate::terms::Terms;

/// Longest that an invite may last. Chosen: a month, the longest that an order of machines takes.
const MAX_INVITE: Duration = Duration::from_secs(31 * 86_400);
/// Most bytes of a site's name in a host's: the number after it fits into a name of 64.
const MAX_SITE_BYTES: usize = 56;

/// Makes an invite; the controller's address and identity are `by`.
pub(crate) fn invite(
    draft: &mut Draft,
    role: &Role,
    ttl: Duration,
    by: (SocketAddr, PublicIdentity),
    entropy: [u8; 32],
) -> Result<Invite, Refusal> {
    check_role(&draft.state.settings.terms, role)?;
    if ttl.is_zero() || ttl > MAX_INVITE {
        return Err(Refusal::Invalid("an invite lasts up to 31 days".to_owned()));
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&entropy[..16]);
    let secret = InviteSecret::from_entropy(bytes);
    let expires_unix_ms = draft.now().saturating_add(ttl.as_millis() as u64);
    draft.push(Record::Invite(InviteRecord {
        hash: secret.hash(),
        role: role.clone(),
        expires_unix_ms,
        used_by: None,
    }));
    draft.audit(OPERATOR, format!("invited {}, for {} s", described(role), ttl.as_secs()));
    let (controller, identity) = by;
    Ok(Invite { controller, identity, role: role.clone(), secret })
}

/// Refuses a relay whose price is unknown, and a site that is called as a region.
pub(crate) fn check_role(terms: &Terms, role: &Role) -> Result<(), Refusal> {
    match role {
        Role::Relay { region, relay_type: id } => {
            CATALOGUE.require(region).map_err(|error| Refusal::Invalid(error.to_string()))?;
            relay_type(terms, id).map(drop)
        }
        Role::Gateway { site } | Role::Probe { site } => check_site(site),
    }
}

/// Refuses a site that is called as a region of the catalogue.
pub(crate) fn check_site(site: &SiteId) -> Result<(), Refusal> {
    if CATALOGUE.regions().any(|region| region.id.as_str() == site.as_str()) {
        let problem = format!("site `{site}`: a region is called so; give it another name");
        return Err(Refusal::Invalid(problem));
    }
    Ok(())
}

/// Lets a host join by an invite. The same host may use its invite again.
pub(crate) fn join(
    draft: &mut Draft,
    identity: &PublicIdentity,
    from: IpAddr,
    request: &JoinRequest,
) -> Result<Answer, Refusal> {
    let known = draft.state.invites.get(&request.secret.hash()).cloned();
    let Some(invite) = known else {
        return Err(Refusal::Forbidden("the controller knows no such invite".to_owned()));
    };
    if let Some(used_by) = invite.used_by.filter(|used_by| used_by != identity) {
        let attempt =
            format!("refused {from}: its invite was used by {used_by}, not by {identity}");
        draft.audit(&identity.to_string(), attempt);
        let refusal = Refusal::Forbidden("another host has used the invite".to_owned());
        return Ok(Answer::Refused(refusal));
    }
    let known = known_or_new(draft, identity, &invite)?;
    let host = Host {
        data_identity: request.data_identity,
        address: request.address.unwrap_or(from),
        ..relayed::with_version(&known, request.config_version, draft.now())
    };
    let is_taken = |other: &Host| other.id != host.id && other.data_identity == host.data_identity;
    if draft.state.hosts.values().any(is_taken) {
        return Err(Refusal::Conflict("another host has the same `data_identity`".to_owned()));
    }
    let (id, role) = (host.id.clone(), host.role.clone());
    if draft.state.hosts.get(&id) != Some(&host) {
        draft.push(Record::Invite(InviteRecord { used_by: Some(*identity), ..invite }));
        let action = format!("joined as {}, at {}", described(&role), host.address);
        draft.push(Record::Host(host));
        draft.audit(id.as_str(), action);
    }
    Ok(Answer::Joined(JoinAnswer { schema_version: SCHEMA_VERSION, host: id, role }))
}

/// Returns the host that has used the invite before, or a new one.
fn known_or_new(
    draft: &Draft,
    identity: &PublicIdentity,
    invite: &InviteRecord,
) -> Result<Host, Refusal> {
    match draft.state.host_of(identity) {
        Some(host) if !host.is_trusted => {
            Err(Refusal::Forbidden(format!("host `{}` is revoked", host.id)))
        }
        Some(host) if invite.used_by.is_none() => {
            Err(Refusal::Conflict(format!("it has joined already, as `{}`", host.id)))
        }
        Some(host) => Ok(host.clone()),
        None if draft.now() > invite.expires_unix_ms => {
            Err(Refusal::Forbidden("the invite has expired".to_owned()))
        }
        None => check_role(&draft.state.settings.terms, &invite.role).map(|()| Host {
            id: new_name(draft, &invite.role.site()),
            role: invite.role.clone(),
            identity: *identity,
            data_identity: *identity,
            address: IpAddr::from([0, 0, 0, 0]),
            joined_unix_ms: draft.now(),
            is_trusted: true,
            is_drained: false,
            config_version: 0,
            counts_from_unix_ms: None,
        }),
    }
}

/// Returns the name of a new host: its site's and the first free number.
fn new_name(draft: &Draft, site: &SiteId) -> HostId {
    let site = &site.as_str()[..site.as_str().len().min(MAX_SITE_BYTES)];
    let name = |number: u64| HostId::new(format!("{site}-{number}"));
    let is_free = |name: &HostId| !draft.state.hosts.contains_key(name);
    let mut names = (1..=u64::MAX).filter_map(|number| name(number).ok());
    names.find(is_free).expect("there are fewer hosts than numbers")
}

/// Returns a role in words.
fn described(role: &Role) -> String {
    match role {
        Role::Relay { region, relay_type } => format!("a relay of type {relay_type} in {region}"),
        Role::Gateway { site } => format!("a gateway of {site}"),
        Role::Probe { site } => format!("a prober of {site}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, SettingsRequest};
    use crate::testing::{Bench, gateway, identity, relay};

    #[test]
    fn same_host_joins_again_and_another_is_refused_and_recorded() {
        let mut bench = Bench::new();
        let secret = bench.invite(gateway("office"));
        let first = bench.event(Bench::request(1, secret));
        let hosts = bench.state().hosts.clone();
        // Even after the invite's end: the answer may have been lost.
        bench.now += 3_600_000;
        assert_eq!(bench.event(Bench::request(1, secret)), first);
        assert_eq!(bench.state().hosts, hosts);
        let lines = bench.state().audit.len();
        let answer = bench.event(Bench::request(2, secret));
        assert!(matches!(answer, Answer::Refused(Refusal::Forbidden(_))), "{answer:?}");
        assert_eq!(bench.state().hosts, hosts);
        let (_, line) = bench.state().audit.last_key_value().unwrap();
        assert_eq!((bench.state().audit.len(), &line.actor), (lines + 1, &identity(2).to_string()));
    }

    #[test]
    fn late_unknown_and_second_invites_are_refused() {
        let mut bench = Bench::new();
        let unknown = InviteSecret::from_entropy([99; 16]);
        assert!(matches!(bench.refusal(Bench::request(1, unknown)), Refusal::Forbidden(_)));
        let secret = bench.invite(gateway("office"));
        bench.now += 60_001;
        assert!(matches!(bench.refusal(Bench::request(1, secret)), Refusal::Forbidden(_)));
        bench.join(1, gateway("office"));
        let second = bench.invite(gateway("office"));
        assert!(matches!(bench.refusal(Bench::request(1, second)), Refusal::Conflict(_)));
    }

    #[test]
    fn invites_for_a_relay_type_that_is_not_known_any_more_are_refused() {
        let mut bench = Bench::new();
        let set = |terms: &str| {
            let terms = Some(toml::from_str(terms).unwrap());
            Event::ChangeSettings(SettingsRequest { terms, ..SettingsRequest::default() })
        };
        bench.event(set("[relay_types.rack]\nusd_per_day = 1\ncapacity = \"1 Gbit/s\"\n"));
        let region = "gcp:us-east1".parse().unwrap();
        let secret = bench.invite(Role::Relay { region, relay_type: "rack".parse().unwrap() });
        // The invite has expired, then the clock is put back.
        bench.now += 60_001;
        bench.event(set(""));
        bench.now -= 60_001;
        let refusal = bench.refusal(Bench::request(1, secret));
        assert!(refusal.to_string().contains("no relay type `rack`"), "{refusal}");
        assert!(bench.state().hosts.is_empty());
    }

    #[test]
    fn hosts_are_numbered_by_place_and_revoked_ones_stay_out() {
        let mut bench = Bench::new();
        assert_eq!(bench.join(1, relay("gcp:us-east1")).as_str(), "gcp:us-east1-1");
        let secret = bench.invite(relay("gcp:us-east1"));
        let Answer::Joined(second) = bench.event(Bench::request(2, secret)) else { panic!() };
        assert_eq!(second.host.as_str(), "gcp:us-east1-2");
        bench.event(Event::Revoke(second.host));
        assert!(matches!(bench.refusal(Bench::request(2, secret)), Refusal::Forbidden(_)));
    }

    #[test]
    fn relays_without_a_known_price_and_sites_called_as_regions_are_refused() {
        let mut bench = Bench::new();
        let mut refused = |role| {
            let controller = ([192, 0, 2, 1], 7443).into();
            let ttl = Duration::from_secs(60);
            bench.refusal(Event::Invite { role, ttl, controller }).to_string()
        };
        assert!(refused(relay("gcp:us-east9")).contains("us-east9"));
        assert!(refused(gateway("gcp:us-east1")).contains("a region is called so"));
    }
}
