//! `tradewind gateway`: puts an application's TCP and UDP on the overlay.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use tradewind_config::GatewayConfig;
use tradewind_gateway::Gateway;
use tradewind_net::sandbox;
use tradewind_node::{GATEWAY_LIVE_KEYS, Node, NodeConfig};
use tradewind_stream::{
    Additions, Handover, HeldKeys, OwnKeys, Reloads, Rights, Shutdown, check_readers, keys,
};

use crate::journal::Logs;
use crate::learner::Learner;
use crate::output::{BadFile, OrBadFile as _, Outcome, read_text};
use crate::packet_plane::{self, PacketSettings, Running};
use crate::privileges::RetainedRights;
use crate::relay::{Beside, Log, announce, start_log};
use crate::socks_udp::SocksUdp;
use crate::traces;

#[derive(clap::Args)]
pub(crate) struct GatewayArgs {
    /// The gateway's configuration (TOML; docs/reference/gateway.md, and packets.md for packets)
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

pub(crate) fn run(args: &GatewayArgs) -> Outcome {
    // Before it has read a secret.
    sandbox::hide()?;
    let text = read_text(&args.config)?;
    let place = || args.config.display().to_string();
    let mut config = GatewayConfig::parse(&text).or_bad(&args.config)?;
    config.traces = traces::or_environment(config.traces)?;
    check_readers(&args.config, &text).or_bad(&args.config)?;
    let socks5_udp = config.packets().or_bad(&args.config)?.and_then(|packets| packets.socks5_udp);
    let own = OwnKeys::read(&config.keys()).with_context(place)?;
    let user = args.user.as_deref().or(config.run_as.as_deref());
    let rights = Rights::of_gateway(&config);
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
        reloads.register("gateway", registry);
        packets.iter().for_each(|node| node.show_at(registry));
        learner.iter().for_each(|learner| learner.register(registry));
    };
    let additions = Additions { register: &register, learned: learned.as_ref(), held: Some(&held) };
    let mut gateway = Gateway::bind_with(&config, handover, &additions).with_context(place)?;
    gateway.intercept(&shutdown)?;
    let beside = (packets.as_ref(), config.revocations.clone());
    let reloads = reloads.with(gateway.reloader());
    packet_plane::reload_beside(reloads, beside, GATEWAY_LIVE_KEYS, move |text| {
        node_config(&GatewayConfig::parse(text)?, &held, text)
    })
    .start(args.watch, &shutdown)?;
    // Logged after any error of the configuration, which is one line.
    warnings.iter().for_each(|line| tracing::warn!("{line}"));
    announce(
        "gateway",
        gateway.identity().map(|identity| identity.to_string()),
        &gateway.handle(),
        &Beside { packets: packets.as_ref(), learner: learner.as_ref() },
    )?;
    learner.iter().try_for_each(|learner| learner.leave_to_successor(&shutdown))?;
    gateway.take_over()?;
    if let (Some(packets), Some(delivery)) = (&packets, socks5_udp) {
        gateway.carry_datagrams(Arc::new(SocksUdp { flows: packets.flow_opener()?, delivery }));
    }
    let logs = Logs { access: gateway.access_log(), audit: None };
    let _packets = Running::start(packets, logs, &shutdown, gateway.handle().health())?;
    gateway.run(&shutdown)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the settings of the gateway's packet plane, if it has one.
fn node_config(
    config: &GatewayConfig,
    held: &HeldKeys,
    text: &str,
) -> anyhow::Result<Option<PacketSettings>> {
    let Some(packets) = config.packets()? else { return Ok(None) };
    let missing = |what: &str| BadFile(what.to_owned());
    let identity = keys::opening(config, held)?
        .ok_or_else(|| missing("identity_file: missing, and there are packets"))?;
    let others = keys::of_gateway(config, held)?.into_iter();
    let others = others.filter(|other| other.public() != identity.public()).collect();
    let node = NodeConfig::of_gateway(&packets, identity, keys::grant(config)?);
    let node = NodeConfig { other_identities: others, ..node };
    let (text, revocations) = (text.to_owned(), config.revocations.clone());
    Ok(Some(PacketSettings { node, section: "packet_endpoint", text, revocations }))
}

/// Opens the gateway's packet plane, if it has one.
fn packets(
    (config, text): (&GatewayConfig, &str),
    held: &HeldKeys,
    handover: &mut Handover,
) -> anyhow::Result<Option<Node>> {
    let node = node_config(config, held, text)?;
    node.map(|node| packet_plane::open(node, handover)).transpose()
}
