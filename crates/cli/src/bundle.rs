//! `tradewind bundle`: an archive for those who help, without secrets.
//!
//! It holds answers of the API, which have no secrets, the known keys of `controller.toml`, and
//! facts of this host; of all that, whatever looks like a secret is left out once more.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tradewind_controller::folder::Settings;
use tradewind_controller::view::SCHEMA_VERSION;
use tradewind_controller::{Client, Folder};
use tradewind_net::{capability, sysctl};
use tradewind_stream::clock::unix_now;

use crate::controller::access::ControllerArgs;
use crate::netcheck::page;
use crate::output::{self, BadFile, Outcome};

/// Answers of the API, each with its file.
const ANSWERS: [(&str, &str); 12] = [
    ("status.json", "/v1/status"),
    ("settings.json", "/v1/settings"),
    ("hosts.json", "/v1/hosts"),
    ("flows.json", "/v1/flows"),
    ("plan-newest.json", "/v1/plans/newest"),
    ("gain.json", "/v1/gain?days=31"),
    ("jumpstart.json", "/v1/jumpstart?days=31"),
    ("measurements.json", "/v1/measurements"),
    ("packets.json", "/v1/packets"),
    ("learned.json", "/v1/learned"),
    ("tenants.json", "/v1/tenants"),
    ("audit.json", "/v1/audit"),
];

/// Settings of the kernel that explain what connections do.
const SYSCTLS: [&str; 10] = [
    "kernel.osrelease",
    "net.core.default_qdisc",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_max",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Beginnings of the text forms of secrets: ours, and those of places that hold code and messages.
const SECRETS: [&str; 14] = [
    "twtoken_",
    "twidkey_",
    "twopkey_",
    "twgrant_",
    "twinvite1_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
];

/// Ends of the names of keys whose values are secrets.
const SECRET_KEYS: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "authorization",
    "credential",
    "credentials",
    "private_key",
    "api_key",
    "secret_key",
    "access_key",
];

/// Options of commands whose values are a user's name and password.
const USER_OPTIONS: [&str; 4] = ["-u ", "--user ", "--user=", "--proxy-user "];

/// That which stands in place of a secret.
const LEFT_OUT: &str = "[secret]";

#[derive(clap::Args)]
pub(crate) struct BundleArgs {
    /// The archive to make, such as `tradewind.tar.gz`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    controller: ControllerArgs,
}

pub(crate) fn run(args: &BundleArgs) -> Outcome {
    let folder = args.controller.folder();
    let mut bundle = Bundle { files: Vec::new(), missing: Vec::new() };
    bundle.add("versions.json", versions());
    bundle.add("kernel.txt", Ok(kernel()));
    bundle.of_controller(&folder, args.controller.client());
    let missing = bundle.missing.len();
    bundle.files.push(("missing.txt", bundle.missing.concat()));
    write(&args.file, &bundle.files)?;
    let count = match missing {
        0 => String::new(),
        1 => "; 1 part could not be had (missing.txt tells why)".to_owned(),
        missing => format!("; {missing} parts could not be had (missing.txt tells why)"),
    };
    output::note(format_args!("wrote {}{count}", args.file.display()));
    Ok(ExitCode::SUCCESS)
}

/// The files of an archive, without secrets.
struct Bundle {
    files: Vec<(&'static str, String)>,
    /// A line for each part that could not be had.
    missing: Vec<String>,
}

impl Bundle {
    fn add(&mut self, name: &'static str, text: anyhow::Result<String>) {
        match text {
            Ok(text) => self.files.push((name, without_secrets(&text))),
            Err(error) => {
                let line = format!("{name}: {}\n", output::one_line(&error));
                self.missing.push(without_secrets(&line));
            }
        }
    }

    fn of_controller(&mut self, folder: &Folder, client: anyhow::Result<Client>) {
        // What does not parse may hold anything, and so may the error about it.
        let unread = || anyhow::anyhow!("it cannot be read: `tradewind controller run` tells why");
        let settings = folder.settings().map_err(|_| unread());
        let metrics = settings.as_ref().ok().and_then(|settings| settings.metrics);
        self.add("controller.toml", settings.as_ref().map(written).map_err(|_| unread()));
        if let Some(metrics) = metrics {
            self.add("metrics.txt", metrics_of(metrics));
        }
        let client = match client {
            Ok(client) => client,
            Err(error) => return self.add("status.json", Err(error)),
        };
        for (name, path) in ANSWERS {
            let answer = client.get::<Value>(path).map_err(anyhow::Error::new);
            self.add(name, answer.and_then(|answer| Ok(serde_json::to_string_pretty(&answer)?)));
        }
    }
}

fn metrics_of(address: SocketAddr) -> anyhow::Result<String> {
    page(address, "/metrics").with_context(|| format!("metrics at {address}"))
}

/// Returns the keys of `controller.toml` that are known.
fn written(settings: &Settings) -> String {
    let Settings { agents, api, advertise, metrics, metrics_expose, metrics_hosts } = settings;
    let metrics = metrics.map_or(String::new(), |metrics| format!("metrics = \"{metrics}\"\n"));
    format!(
        "agents = \"{agents}\"\napi = \"{api}\"\nadvertise = \"{advertise}\"\n{metrics}\
         metrics_expose = {metrics_expose}\nmetrics_hosts = {metrics_hosts:?}\n"
    )
}

fn versions() -> anyhow::Result<String> {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let versions = json!({
        "schema_version": SCHEMA_VERSION,
        "made_unix_ms": unix_now().as_nanos() / 1_000_000,
        "tradewind": env!("CARGO_PKG_VERSION"),
        "kernel": capability::kernel_release(),
        "system": system.map(|name| name.trim_matches('"')),
        "architecture": std::env::consts::ARCH,
        "processors": processors,
    });
    Ok(serde_json::to_string_pretty(&versions)?)
}

/// Returns settings of this kernel, a line each.
fn kernel() -> String {
    let line = |name: &&str| match sysctl::get(name) {
        Ok(value) => format!("{name} = {value}\n"),
        Err(_) => format!("{name} is not there\n"),
    };
    SYSCTLS.iter().map(line).collect()
}

/// Writes a new archive that only its owner reads.
fn write(file: &Path, files: &[(&str, String)]) -> anyhow::Result<()> {
    let name = || file.display().to_string();
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let made = match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(BadFile(format!("{}: is there already; name a new file", name())).into());
        }
        made => made.with_context(name)?,
    };
    let packed = pack(&made, files).with_context(name);
    if packed.is_err() {
        let _half_written = fs::remove_file(file);
    }
    packed
}

fn pack(mut file: &fs::File, files: &[(&str, String)]) -> anyhow::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(text.len() as u64);
        header.set_mtime(unix_now().as_nanos() / 1_000_000_000);
        archive.append_data(&mut header, format!("tradewind/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?;
    Ok(file.flush()?)
}

/// Returns a text without the values that look like secrets: those with the beginning of one, those
/// of keys that are named like one, and passwords of addresses.
fn without_secrets(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let is_in_word = clean.ends_with(|c: char| c.is_alphanumeric());
        if let Some((kept, left_out)) = secret_at(rest, is_in_word) {
            clean.push_str(&rest[..kept]);
            clean.push_str(LEFT_OUT);
            rest = &rest[kept + left_out..];
        } else {
            clean.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    clean
}

/// Returns the lengths of what is kept before a secret at the start of a text, and of the secret;
/// none but passwords of addresses begin within a word.
fn secret_at(text: &str, is_in_word: bool) -> Option<(usize, usize)> {
    if let Some(address) = text.strip_prefix("://") {
        let end = address.find(|c| is_end(c) || c == '/').unwrap_or(address.len());
        let at = address[..end].rfind('@')?;
        return Some((3, at));
    }
    if is_in_word {
        return None;
    }
    if let Some(found) = of_known_form(text) {
        return Some(found);
    }
    // A name such as `proxy_password`, then `=` or `:`, then its value.
    let name = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'))?;
    let key = text[..name].to_ascii_lowercase().replace('-', "_");
    if !SECRET_KEYS.iter().any(|word| key.ends_with(word)) {
        return None;
    }
    let sign = text[name..].trim_start_matches(['"', '\'', '\\', ' ']);
    let value = sign.strip_prefix(['=', ':'])?.trim_start_matches([' ', '[']);
    let quote = ["\\\"", "\"", "'"].into_iter().find(|quote| value.starts_with(quote));
    let value = &value[quote.map_or(0, str::len)..];
    let length = match quote {
        Some(quote) => quoted(value, quote),
        None => unquoted(value)?,
    };
    (length > 0).then_some((text.len() - value.len(), length))
}

/// Does the same as [`secret_at`] for secrets that show by themselves what they are.
fn of_known_form(text: &str) -> Option<(usize, usize)> {
    /// Length of the word before the token of a request.
    const BEARER: usize = "Bearer ".len();
    if text.get(..BEARER).is_some_and(|word| word.eq_ignore_ascii_case("bearer ")) {
        let token = &text[BEARER..];
        let length = token.find(is_end).unwrap_or(token.len());
        return (length > 0).then_some((BEARER, length));
    }
    if SECRETS.iter().any(|secret| text.starts_with(secret)) {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        return Some((0, text.find(|c| !is_part(c)).unwrap_or(text.len())));
    }
    if text.starts_with("$argon2") {
        return Some((0, text.find(is_end).unwrap_or(text.len())));
    }
    if let Some(label) = text.strip_prefix("-----BEGIN ") {
        let (label, _) = label.split_once("-----")?;
        let end = format!("-----END {label}-----");
        // One that is cut off has no end.
        let length = text.find(&end).map_or(text.len(), |at| at + end.len());
        return label.ends_with("PRIVATE KEY").then_some((0, length));
    }
    let value = USER_OPTIONS.iter().find_map(|option| text.strip_prefix(option))?;
    let value = value.trim_start_matches([' ', '"', '\'', '\\']);
    let word = &value[..value.find(is_end).unwrap_or(value.len())];
    let (_, password) = word.split_once(':')?;
    (!password.is_empty())
        .then_some((text.len() - value.len() + word.len() - password.len(), password.len()))
}

/// Returns the length of a value up to the quote that ends it; without one, up to the line's end.
fn quoted(value: &str, quote: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in value.char_indices() {
        if value[at..].starts_with(quote) && !is_escaped {
            return at;
        }
        is_escaped = quote == "\"" && c == '\\' && !is_escaped;
    }
    value.find(['\n', '\r']).unwrap_or(value.len())
}

/// Returns the length of a value without quotes, which may hold blanks; `None` for what JSON writes
/// so, which is no secret.
fn unquoted(value: &str) -> Option<usize> {
    let word = &value[..value.find(is_end).unwrap_or(value.len())];
    let is_json =
        matches!(word, "" | "null" | "true" | "false" | "{") || word.parse::<f64>().is_ok();
    // A quote ends the text that it stands in.
    let line = value[..value.find(['\n', '\r', '"', '\\']).unwrap_or(value.len())].trim_end();
    // Or it begins the value of another key, which may be a secret.
    let name = line.trim_end_matches(['=', ':', ' ']);
    let line = if name.len() == line.len() { line } else { &line[..name.rfind(' ').unwrap_or(0)] };
    (!is_json).then_some(line.trim_end().len().max(word.len()))
}

fn is_end(c: char) -> bool {
    c.is_whitespace() || "\"'\\,;)}]".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out_wherever_they_stand() {
        for (text, expected) in [
            ("invite twinvite1_ab-c.D_9, used", "invite [secret], used"),
            ("{\"failure\": \"twgrant_abc\"}", "{\"failure\": \"[secret]\"}"),
            ("line 3: password = 'hunter2' is short", "line 3: password = '[secret]' is short"),
            ("{\"why\": \"api_token: \\\"abc\\\"\"}", "{\"why\": \"api_token: \\\"[secret]\\\"\"}"),
            ("PASSWORD=a;b", "PASSWORD=[secret]"),
            ("password = \"correct horse, battery\" # x", "password = \"[secret]\" # x"),
            ("{\"password\": [\"x\\\"y\"], \"a\": 1}", "{\"password\": [\"[secret]\"], \"a\": 1}"),
            ("{\"why\": \"password: a b, c\"}", "{\"why\": \"password: [secret]\"}"),
            ("Authorization: Bearer abc", "Authorization: [secret]"),
            ("sent Bearer abc to it", "sent Bearer [secret] to it"),
            ("private_key = abc\nnext", "private_key = [secret]\nnext"),
            ("hash $argon2id$v=19$m=1$abc$def end", "hash [secret] end"),
            ("proxy http://me:pw@host:1/x", "proxy http://[secret]@host:1/x"),
            ("twtoken_1twtoken_2", "[secret]"),
            ("-H \"authorization: bearer abc\" x", "-H \"authorization: [secret]\" x"),
            ("token: a; secret = \"b\", c", "token: [secret] secret = \"[secret]\", c"),
            ("BEARER abc", "BEARER [secret]"),
            ("api-key: abc", "api-key: [secret]"),
            ("{\"aws_secret_access_key\": \"a/b+c\"}", "{\"aws_secret_access_key\": \"[secret]\"}"),
            ("curl -u \"me:a b\" x", "curl -u \"me:[secret] b\" x"),
            ("curl --proxy-user me:ab x", "curl --proxy-user me:[secret] x"),
            ("-----BEGIN PRIVATE KEY-----\\nMII\\n", "[secret]"),
            ("github_pat_1A, xoxb-1-2", "[secret], [secret]"),
        ] {
            assert_eq!(without_secrets(text), expected);
        }
    }

    #[test]
    fn all_else_stays_as_it_is() {
        for text in [
            "twid_abc twop_def: public identities stay",
            "{\"tokens\": 5, \"secretary\": \"x\", \"a\": \"https://host/path@2\"}",
            "{\"token\": null, \"secret\": 5}",
            "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
            "sort -u file; docker run -u me image",
            "the password of the day; no token is shown\n  -> `tradewind password`",
        ] {
            assert_eq!(without_secrets(text), text);
        }
    }
}
