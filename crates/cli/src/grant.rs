//! `tradewind grant`: signs grants and shows their contents.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_grant::{
    Grant, GrantId, GrantSpec, OperatorKey, OperatorPublicKey, PublicIdentity, Relays,
    RevocationList, SignedGrant, SourceRange,
};
use tradewind_stream::keys::revocations;
use tradewind_units::time::parse_duration;
use tradewind_units::{Duration, Timestamp};

use crate::output::file::write_whole;
use crate::output::{self, BadFile, OrBadFile as _, Outcome, read_text};

#[derive(clap::Subcommand)]
pub(crate) enum GrantCommand {
    /// Sign the grant that a specification describes, and print it
    ///
    /// The specification is TOML: gateway = "twid_...", destinations = ["10.0.0.0/8:443",
    /// "*.example.com:443"], relays = ["twid_..."] or "any", expires = "720 h" or a date; optional:
    /// not_before, sessions, session_max_age, sources = ["10.1.0.0/16"].
    Issue {
        /// The operator's key, made by `tradewind keygen operator`
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Longest that a session may be open, such as `24 h`; instead of the specification's
        #[arg(long, value_name = "SPAN", value_parser = parse_duration)]
        session_max_age: Option<Duration>,
        /// Source addresses of packets that a remote gateway may preserve, beside the
        /// specification's `sources`; may be given several times
        #[arg(long, value_name = "RANGE")]
        source: Vec<SourceRange>,
        /// The specification
        spec: PathBuf,
    },
    /// Revoke grants before their end: make a signed list, or add to one
    ///
    /// Relays and gateways with the file in their configuration (`revocations = "FILE"`) apply its
    /// changes: sessions of revoked grants end within a second, and new ones are refused. Each
    /// change raises the list's version; an older one is refused.
    Revoke {
        /// The operator's key, which has signed the grants
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The list; it is made if it is not there. Lists of other operators in it stay
        #[arg(long, value_name = "FILE")]
        list: PathBuf,
        /// A grant: its name, as `show` prints it, or the file that holds it
        #[arg(long, value_name = "GRANT")]
        grant: Vec<String>,
        /// A gateway's identity, `twid_...`: all grants that were issued to it, and will be
        #[arg(long, value_name = "IDENTITY")]
        gateway: Vec<PublicIdentity>,
        /// All grants that were issued before then: a date with time and zone, or `now`
        #[arg(long, value_name = "TIME", value_parser = parse_moment)]
        issued_before: Option<Timestamp>,
    },
    /// Verify a grant and show what it allows
    Show {
        /// The operator's public half, `twop_...`
        #[arg(long, value_name = "KEY")]
        operator: OperatorPublicKey,
        /// The grant, as `issue` printed it
        grant: PathBuf,
    },
}

pub(crate) fn run(command: GrantCommand) -> Outcome {
    match command {
        GrantCommand::Issue { key, session_max_age, source, spec } => {
            issue(&key, session_max_age, source, &spec)
        }
        GrantCommand::Revoke { key, list, grant, gateway, issued_before } => {
            revoke(&key, &list, &Revoked { grant, gateway, issued_before })
        }
        GrantCommand::Show { operator, grant } => show(&operator, &grant),
    }
}

fn operator(key: &Path) -> anyhow::Result<OperatorKey> {
    secret(key).or_bad(key)?.trim().parse().or_bad(key)
}

fn issue(
    key: &Path,
    session_max_age: Option<Duration>,
    sources: Vec<SourceRange>,
    spec: &Path,
) -> Outcome {
    let operator = operator(key)?;
    let spec_text = read_text(spec)?;
    let mut parsed = GrantSpec::parse(&spec_text).or_bad(spec)?;
    parsed.session_max_age = session_max_age.or(parsed.session_max_age);
    parsed.sources.extend(sources);
    let signed = parsed.issue(now()).and_then(|grant| grant.sign(&operator)).or_bad(spec)?;
    output::line(signed)?;
    Ok(ExitCode::SUCCESS)
}

/// The entries to revoke.
struct Revoked {
    grant: Vec<String>,
    gateway: Vec<PublicIdentity>,
    issued_before: Option<Timestamp>,
}

fn revoke(key: &Path, file: &Path, revoked: &Revoked) -> Outcome {
    let operator = operator(key)?;
    let place = || file.display().to_string();
    if revoked.grant.is_empty() && revoked.gateway.is_empty() && revoked.issued_before.is_none() {
        let problem = "nothing to revoke; expected --grant, --gateway or --issued-before";
        return Err(BadFile(problem.to_owned()).into());
    }
    let lists = if file.exists() { revocations::read(file)? } else { Vec::new() };
    let (own, others): (Vec<_>, Vec<_>) =
        lists.into_iter().partition(|list| list.key_id() == operator.public().key_id());
    let mut list = RevocationList::default();
    for known in own {
        let known = known.verify(&[operator.public()]).or_bad(file)?;
        if known.version > list.version {
            list = known.clone();
        }
    }
    list.version += 1;
    list.gateways.extend(&revoked.gateway);
    list.issued_before = list.issued_before.max(revoked.issued_before);
    for grant in &revoked.grant {
        list.grants.insert(grant_name(grant)?);
    }
    let signed = list.sign(&operator).with_context(place)?;
    let lines = others.iter().chain([&signed]).map(|list| format!("{list}\n"));
    write_whole(file, &lines.collect::<String>())?;
    let RevocationList { version, grants, gateways, issued_before } = list;
    let before = issued_before.map_or(String::new(), |_| ", all issued before a time".to_owned());
    let (grants, gateways) = (grants.len(), gateways.len());
    output::line(format_args!("version {version}: grants {grants}, gateways {gateways}{before}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the id of a grant, given by its id or by the file that holds it.
fn grant_name(text: &str) -> anyhow::Result<GrantId> {
    if let Ok(name) = text.parse() {
        return Ok(name);
    }
    let file = Path::new(text);
    let grant: SignedGrant = read_text(file)?.trim().parse().or_bad(file)?;
    Ok(grant.id())
}

/// Parses a date with time and zone, or `now`.
fn parse_moment(text: &str) -> Result<Timestamp, String> {
    match text {
        "now" => Ok(now()),
        _ => tradewind_grant::parse_moment(text).map_err(|error| error.to_string()),
    }
}

/// Reads a key file, which others may not read.
pub(crate) fn secret(file: &Path) -> anyhow::Result<impl std::ops::Deref<Target = String>> {
    /// Far longer than a key.
    const MAX_BYTES: usize = 4096;
    Ok(tradewind_net::secret_file::read(file, MAX_BYTES)?)
}

fn show(operator: &OperatorPublicKey, file: &Path) -> Outcome {
    let place = || file.display().to_string();
    let signed: SignedGrant = read_text(file)?.trim().parse().or_bad(file)?;
    let grant = signed.verify(std::slice::from_ref(operator)).with_context(place)?;
    output::line(format_args!("name          {}", signed.id()))?;
    show_terms(grant)?;
    grant.check_expiry(now()).with_context(place)?;
    let minutes = grant.expires.since(now()).as_secs() / 60;
    output::line(format_args!("expires       in {} h {} min", minutes / 60, minutes % 60))?;
    Ok(ExitCode::SUCCESS)
}

fn show_terms(grant: &Grant) -> anyhow::Result<()> {
    let destinations: Vec<String> = grant.destinations.iter().map(ToString::to_string).collect();
    let relays = match &grant.relays {
        Relays::Any => "any".to_owned(),
        Relays::Listed(listed) => format!("{} listed", listed.len()),
    };
    let sessions = match grant.sessions {
        Some(limit) => format!("{limit} at a time at each relay"),
        None => "no limit".to_owned(),
    };
    if let Some(age) = grant.extensions.session_max_age {
        output::line(format_args!("sessions end  after {} s", age.as_secs()))?;
    }
    output::line(format_args!("gateway       {}", grant.gateway))?;
    output::line(format_args!("destinations  {}", destinations.join(", ")))?;
    output::line(format_args!("relays        {relays}"))?;
    let sources: Vec<String> = grant.extensions.sources.iter().map(ToString::to_string).collect();
    if !sources.is_empty() {
        output::line(format_args!("sources       {}", sources.join(", ")))?;
    }
    output::line(format_args!("sessions      {sessions}"))
}

/// Returns the time since the Unix epoch, as `tradewind_grant` counts it.
fn now() -> Timestamp {
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    Timestamp::ZERO + since_epoch
}
