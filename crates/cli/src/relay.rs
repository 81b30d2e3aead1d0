//! `tradewind relay`: splits TCP sessions, and passes packets on, for gateways that hold a grant.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tradewind_config::RelayConfig;
use tradewind_net::sandbox;
use tradewind_node::{Node, NodeConfig, RELAY_LIVE_KEYS};
use tradewind_relay::Relay;
use tradewind_stream::{
    Additions, Handle, Handover, HeldKeys, OwnKeys, Reloads, Rights, Shutdown, check_readers, keys,
};
use tradewind_telemetry::{LogFormat, init_logs};

use crate::journal::Logs;
use crate::learner::Learner;
use crate::output::{self, OrBadFile as _, Outcome, read_text};
use crate::packet_plane::{self, PacketSettings, Running};
use crate::privileges::RetainedRights;
use crate::traces;

#[derive(clap::Args)]
pub(crate) struct RelayArgs {
    /// The relay's configuration (TOML; docs/reference/relay.md, and packets.md for packets)
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Read the configuration anew whenever the file changes, as on SIGHUP
    #[arg(long)]
    watch: bool,
    /// The user to go on as when root starts it, instead of the configuration's; `tradewind`, if
    /// there is one, when neither names one
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Form of the log on standard error; TRADEWIND_LOG filters it
    #[arg(long, value_enum, default_value = "text")]
    log: Log,
}

/// Form of a log.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Log {
    /// For people
    Text,
    /// For programs, an object a line
    Json,
}

pub(crate) fn run(args: &RelayArgs) -> Outcome {
    // Before it has read a secret.
    sandbox::hide()?;
    let text = read_text(&args.config)?;
    let place = || args.config.display().to_string();
    let mut config = RelayConfig::parse(&text).or_bad(&args.config)?;
    config.traces = traces::or_environment(config.traces)?;
    check_readers(&args.config, &text).or_bad(&args.config)?;
    let own = OwnKeys::read(&config.keys()).with_context(place)?;
    let user = args.user.as_deref().or(config.run_as.as_deref());
    let rights = Rights::of_relay(&config);
    let warnings = RetainedRights {
        user,
        capabilities: &rights.of_process,
        of_workers: &rights.of_workers,
        file: Some(&args.config),
        ..RetainedRights::default()
    }
    .drop_others()?;
    // The process before this one may be in other hands.
    let mut handover = Handover::take()?;
    let held = HeldKeys::hold(own, &mut handover).with_context(place)?;
    start_log(args.log)?;
    let shutdown = Shutdown::on_signals()?;
    let packets = packets((&config, &text), &held, &mut handover).with_context(place)?;
    let learner =
        config.jumpstart.clone().map(|learn| Learner::start(learn, &args.config, &mut handover));
    let learned = learner.as_ref().and_then(Learner::own_sockets);
    let reloads = Reloads::new(&args.config, &text);
    let register = |registry: &_| {
        reloads.register("relay", registry);
        packets.iter().for_each(|node| node.show_at(registry));
        learner.iter().for_each(|learner| learner.register(registry));
    };
    let additions = Additions { register: &register, learned: learned.as_ref(), held: Some(&held) };
    let mut relay = Relay::bind_with(&config, handover, &additions).with_context(place)?;
    let beside = (packets.as_ref(), config.revocations.clone());
    let reloads = reloads.with(relay.reloader());
    packet_plane::reload_beside(reloads, beside, RELAY_LIVE_KEYS, move |text| {
        node_config(&RelayConfig::parse(text)?, &held, text)
    })
    .start(args.watch, &shutdown)?;
    let beside = Beside { packets: packets.as_ref(), learner: learner.as_ref() };
    // Logged after any error of the configuration, which is one line.
    warnings.iter().for_each(|line| tracing::warn!("{line}"));
    announce("relay", Some(relay.identity().to_string()), &relay.handle(), &beside)?;
    learner.iter().try_for_each(|learner| learner.leave_to_successor(&shutdown))?;
    relay.take_over()?;
    let (access, audit) = relay.logs();
    let _packets =
        Running::start(packets, Logs { access, audit }, &shutdown, relay.handle().health())?;
    relay.run(&shutdown)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the settings of the relay's packet plane, if it has one.
fn node_config(
    config: &RelayConfig,
    held: &HeldKeys,
    text: &str,
) -> anyhow::Result<Option<PacketSettings>> {
    let Some(packets) = config.packets()? else { return Ok(None) };
    let operators = config.operators.clone();
    let mut identities = keys::of_relay(config, held)?;
    let other_identities = identities.split_off(1);
    let node = NodeConfig::of_relay(&packets, identities.remove(0), operators);
    let node = NodeConfig { other_identities, ..node };
    let (text, revocations) = (text.to_owned(), config.revocations.clone());
    Ok(Some(PacketSettings { node, section: "packet", text, revocations }))
}

/// Opens the relay's packet plane, if it has one.
fn packets(
    (config, text): (&RelayConfig, &str),
    held: &HeldKeys,
    handover: &mut Handover,
) -> anyhow::Result<Option<Node>> {
    let Some(settings) = node_config(config, held, text)? else { return Ok(None) };
    let node = &settings.node;
    let keeps = node.services.is_registry || node.services.rendezvous.is_some();
    let is_idle = node.policy.next_hops.is_empty() && !keeps;
    let node = packet_plane::open(settings, handover)?;
    if is_idle {
        tracing::warn!("packet.next_hops: none, so that no packets are passed on");
    }
    Ok(Some(node))
}

/// Sets up the log of a long-running process.
pub(crate) fn start_log(log: Log) -> anyhow::Result<()> {
    let format = match log {
        Log::Text => LogFormat::Text,
        Log::Json => LogFormat::Json,
    };
    Ok(init_logs(format, "info")?)
}

/// The further parts of a relay's or gateway's process.
pub(crate) struct Beside<'a> {
    pub(crate) packets: Option<&'a Node>,
    pub(crate) learner: Option<&'a Learner>,
}

/// Prints the ready message on standard output: the process's identity and addresses, in one line
/// of JSON.
pub(crate) fn announce(
    role: &str,
    identity: Option<String>,
    handle: &Handle,
    beside: &Beside<'_>,
) -> anyhow::Result<()> {
    let mut ready = serde_json::json!({
        "schema_version": 1,
        "ready": role,
        "identity": identity,
        "listen": handle.local_addrs(),
        "metrics": handle.metrics_addr(),
    });
    if let Some(node) = beside.packets {
        ready["packet"] = serde_json::json!({
            "listen": node.address(),
            "applications": node.local_addresses(),
        });
    }
    if let Some(learner) = beside.learner {
        ready["jumpstart"] = learner.shown();
    }
    /// Longest wait for a reader of standard output. Chosen: an active reader takes a line in far
    /// less.
    const STANDARD_OUTPUT_LIMIT: Duration = Duration::from_secs(1);
    output::line_within(STANDARD_OUTPUT_LIMIT, ready)
}
