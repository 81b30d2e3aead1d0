//! Properties of any bytes: shared by the fuzz targets and by the replay of their corpora.

#![allow(dead_code, reason = "each fuzz target takes one of these")]
#![allow(clippy::unwrap_used, reason = "a panic is what a fuzzer looks for")]

use std::cell::RefCell;

use tradewind_grant::header::header_length;
use tradewind_grant::join::{self, WELCOME_BYTES};
use tradewind_grant::reply::reply_length;
use tradewind_grant::{
    Destination, DestinationRule, Grant, GrantId, GrantSpec, Hop, IdentityKey, JoinKey, Nonce,
    OperatorKey, PublicIdentity, Relays, Reply, ReplyKey, Request, Revocations, Route, Sealer,
    SignedGrant, SignedRevocations, Status, Verifier,
};
use tradewind_units::{Duration, FlowId, Timestamp};

/// The same time and keys as the tests' fixtures.
const NOW: Timestamp = Timestamp::from_nanos(1_795_176_000_000_000_000);

fn operator() -> OperatorKey {
    OperatorKey::from_entropy([1; 32])
}

fn gateway() -> IdentityKey {
    IdentityKey::from_entropy([2; 32])
}

fn relay(number: u8) -> IdentityKey {
    IdentityKey::from_entropy([10 + number; 32])
}

fn grant() -> Grant {
    Grant {
        gateway: gateway().public(),
        not_before: NOW,
        expires: NOW + Duration::from_secs(3600),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::Any,
        destinations: ["0.0.0.0/0:*", "[::]/0:*", "10.0.0.0/8:*"]
            .map(|r| r.parse().unwrap())
            .into(),
    }
}

/// A gateway and the first two relays, with warm caches.
struct Cast {
    sealer: Sealer,
    relays: [Verifier; 2],
    identities: [PublicIdentity; 2],
    sealed: u64,
}

thread_local! {
    static CAST: RefCell<Cast> = RefCell::new(new_cast());
}

fn new_cast() -> Cast {
    let verifier = |number| Verifier::new(relay(number), vec![operator().public()]);
    Cast {
        sealer: Sealer::new(gateway(), grant().sign(&operator()).unwrap()).unwrap(),
        relays: [verifier(1), verifier(2)],
        identities: [relay(1).public(), relay(2).public()],
        sealed: 0,
    }
}

/// Takes a length-prefixed part from the front.
fn cut<'a>(data: &mut &'a [u8], most: usize) -> &'a [u8] {
    let Some((&length, rest)) = data.split_first() else { return &[] };
    let (part, rest) = rest.split_at(rest.len().min(usize::from(length)).min(most));
    *data = rest;
    part
}

/// Checks that no bytes make a relay panic, and that two relays open what a gateway seals.
pub(crate) fn hop_header(data: &[u8]) {
    CAST.with_borrow_mut(|cast| {
        let _ = header_length(data);
        if let Ok(open) = cast.relays[0].open(NOW, data) {
            // A header of the corpus that the fixtures' gateway sealed.
            assert_eq!(header_length(data), Ok(data.len()));
            assert!(cast.relays[0].forward(&open).is_ok());
        }
        let _ = cast.relays[1].open(NOW, data);
        hello(cast, data);
        seal_and_open(cast, data);
    });
}

/// Checks that no bytes make a parser of hellos panic, and that only a neighbour's are accepted.
fn hello(cast: &mut Cast, data: &[u8]) {
    // The relay has sent a hello itself, so that it holds a shared key.
    let peer = cast.identities[0];
    let own = cast.relays[1].public();
    let _known = cast.relays[1].hello(NOW, Nonce::from_entropy([3; 16]), &own, &peer);
    assert!(cast.relays[1].open_hello(NOW, data).is_err(), "a hello was forged");
}

/// Reads a request out of `data` and sends it over one or two relays.
fn seal_and_open(cast: &mut Cast, mut data: &[u8]) -> Option<()> {
    let flow = FlowId::new(std::str::from_utf8(cut(&mut data, 64)).ok()?).ok()?;
    let destination: Destination = std::str::from_utf8(cut(&mut data, 255)).ok()?.parse().ok()?;
    let mut hops = Vec::new();
    for identity in cast.identities {
        let address = std::str::from_utf8(cut(&mut data, 60)).ok()?.parse().ok();
        hops.extend(address.map(|address| Hop { address, identity }));
    }
    let route = Route::new(hops).ok()?;
    let request = Request { flow: &flow, destination: &destination, route: &route };
    cast.sealed += 1;
    if cast.sealed.is_multiple_of(100_000) {
        *cast = Cast { sealed: cast.sealed, ..new_cast() };
    }
    let mut entropy = [0xff; 16];
    entropy[..8].copy_from_slice(&cast.sealed.to_be_bytes());
    let mut header = cast.sealer.seal(NOW, Nonce::from_entropy(entropy), &request).ok()?;
    for (index, hop) in route.hops().iter().enumerate() {
        let number = cast.identities.iter().position(|known| *known == hop.identity)?;
        let open = cast.relays[number].open(NOW, &header.bytes).expect("sealed for this relay");
        assert_eq!((&open.flow, &open.destination), (&flow, &destination));
        assert_eq!((&open.route, open.hop), (&route, index));
        let reply = Reply::failed(Status::Internal, index, "fuzzed");
        assert_eq!(header.downstream.open(&open.upstream.seal(&reply)), Ok(reply));
        if let Some(next) = cast.relays[number].forward(&open).expect("the cast has no weak key") {
            header = next;
        }
    }
    Some(())
}

/// Checks that no bytes make a parser of grants panic, and that each grant has one encoding.
pub(crate) fn grant_token(data: &[u8]) {
    if let Ok(signed) = SignedGrant::from_bytes(data) {
        let again = signed.unverified().clone().sign(&operator()).expect("what was read is sound");
        let body = 12..data.len() - 64;
        assert_eq!(again.as_bytes()[body.clone()], data[body], "a grant has one form");
        assert_eq!(signed.to_string().parse::<SignedGrant>().as_ref(), Ok(&signed));
        if signed.verify(&[operator().public()]).is_ok() {
            assert_eq!(again, signed, "only the operator signs");
        }
        let _ = signed.unverified().check_expiry(NOW);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = text.parse::<SignedGrant>();
    let _ = text.parse::<IdentityKey>();
    if let Ok(rule) = text.parse::<DestinationRule>() {
        assert_eq!(rule.to_string().parse::<DestinationRule>(), Ok(rule));
    }
    if let Ok(destination) = text.parse::<Destination>() {
        assert_eq!(destination.to_string().parse::<Destination>(), Ok(destination));
    }
    match GrantSpec::parse(text) {
        Ok(spec) => drop(spec.issue(NOW).and_then(|grant| grant.sign(&operator()))),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
}

/// Checks that no bytes make a parser of revocation lists panic or pass as signed, and that each
/// list has one encoding.
pub(crate) fn revocation_list(data: &[u8]) {
    let operators = [operator().public()];
    if let Ok(signed) = SignedRevocations::from_bytes(data) {
        assert_eq!(signed.to_string().parse::<SignedRevocations>().as_ref(), Ok(&signed));
        if let Ok(list) = signed.verify(&operators) {
            let again = list.sign(&operator()).expect("what was read is sound");
            assert_eq!(again, signed, "a list has one form, and only the operator signs");
            let lists = std::slice::from_ref(&signed);
            let revocations = Revocations::default().updated(lists, &operators).expect("the first");
            assert_eq!(revocations.updated(lists, &operators).as_ref(), Ok(&revocations));
            let granted = grant().sign(&operator()).unwrap().into_verified(&operators).unwrap();
            let is_named = list.grants.contains(&granted.id)
                || list.gateways.contains(&granted.grant.gateway)
                || list.issued_before.is_some_and(|before| granted.grant.issued_at() < before);
            assert_eq!(revocations.check(&granted).is_err(), is_named);
        }
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = text.parse::<SignedRevocations>();
    if let Ok(id) = text.parse::<GrantId>() {
        assert_eq!(id.to_string(), text.to_lowercase());
    }
}

thread_local! {
    static REPLY_KEYS: [ReplyKey; 2] = reply_keys();
}

/// Returns the gateway's key and the first relay's for one session.
fn reply_keys() -> [ReplyKey; 2] {
    let mut cast = new_cast();
    let hop = Hop { address: "192.0.2.1:7000".parse().unwrap(), identity: cast.identities[0] };
    let (flow, route) = (FlowId::new("fuzzed").unwrap(), Route::new(vec![hop]).unwrap());
    let destination = "10.1.2.3:443".parse().unwrap();
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let header = cast.sealer.seal(NOW, Nonce::from_entropy([7; 16]), &request).unwrap();
    let open = cast.relays[0].open(NOW, &header.bytes).unwrap();
    [header.downstream, open.upstream]
}

/// Checks that no bytes make a parser of replies panic or pass as sealed, and that sealed replies
/// open.
pub(crate) fn hop_reply(data: &[u8]) {
    REPLY_KEYS.with(|[gateway, relay]| {
        let _ = reply_length(data);
        if let Ok(reply) = gateway.open(data) {
            assert_eq!(relay.seal(&reply), data, "a reply has one form");
        }
        let message = String::from_utf8_lossy(data);
        let failed = Reply::failed(Status::Unreachable, 0, &message);
        assert_eq!(gateway.open(&relay.seal(&failed)), Ok(failed));
    });
}

/// Checks that no bytes make a parser of joins panic or pass as sealed, and that each end opens the
/// other's.
pub(crate) fn join(data: &[u8]) {
    REPLY_KEYS.with(|[gateway, relay]| {
        let (dials, accepts) = (JoinKey::of(gateway), JoinKey::of(relay));
        let _ = join::session_of(data);
        if let Ok(number) = accepts.open(data) {
            assert_eq!(dials.join(number)[..], *data, "a join has one form");
        }
        let number = data.iter().take(4).fold(0, |number, byte| (number << 8) | u32::from(*byte));
        if let Ok(welcome) = <&[u8; WELCOME_BYTES]>::try_from(data) {
            let ours = accepts.welcome(number);
            assert_eq!(dials.is_welcome(number, welcome), ours == *welcome);
        }
        let sealed = dials.join(number);
        match number {
            0 => assert!(accepts.open(&sealed).is_err(), "the first connection joins nothing"),
            _ => assert_eq!(accepts.open(&sealed), Ok(number)),
        }
        for at in 0..sealed.len() {
            let mut other = sealed;
            other[at] ^= 1 + data.get(at).copied().unwrap_or(0) % 255;
            assert!(accepts.open(&other).is_err(), "a byte was changed");
        }
    });
}
