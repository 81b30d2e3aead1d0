//! The binary `tradewind`: commands, tables, progress and JSON only.
//!
//! Data goes to standard output, messages to standard error. Exit codes: 0 done, 1 failed, 2 wrong
//! usage, something named that is not there, or a bad file (problem, configuration, key), 3 a check
//! failed, an overlay has a problem, or a lab run was invalid (the demo's with `--strict` alone).

mod agent;
mod apply;
mod budget;
mod bundle;
mod config;
mod controller;
mod cost;
mod dashboard;
mod demo;
mod deploy;
mod doctor;
mod events;
mod explain;
mod flow;
mod forecast;
mod forward;
mod gain;
mod gateway;
mod generate;
mod grant;
mod hosts;
mod invite;
mod journal;
mod jumpstart;
mod keygen;
mod lab;
mod learned;
mod learner;
mod machines;
mod measure;
mod netcheck;
mod output;
mod packet;
mod packet_flows;
mod packet_plane;
mod password;
mod ping;
mod plan;
mod privileges;
mod probe;
mod relay;
mod route;
mod socks_udp;
mod status;
mod tenant;
mod traces;
mod what_if;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Carries traffic over relays in the public clouds, and only where that pays.
#[derive(Parser)]
#[command(name = "tradewind", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, no plan, or no controller answers, 2 wrong usage, \
     something named that is not there, or a bad file (problem, configuration, key; not what the \
     host lacks, as a free port), 3 an experiment on the lab was invalid (the demo only with \
     --strict), doctor misses something needed, or status shows a problem."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure, plan, deploy, carry and compare, on this machine (CloudPilot's experiment)
    Demo(demo::DemoArgs),
    /// Try each feature that Tradewind needs from this kernel once
    ///
    /// Exit code 3 when a feature is missing without which nothing works.
    Doctor(doctor::DoctorArgs),
    /// Hosts in network namespaces joined by an emulated WAN
    ///
    /// There is one lab for each place, by default one for each user; the environment variable
    /// TRADEWIND_RUNTIME_DIR names another directory, for a second lab.
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Split TCP sessions and serve packets here, for gateways that hold a grant
    Relay(relay::RelayArgs),
    /// Run what a controller asks of this host, within the ceiling that its owner sets
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Put applications' TCP and UDP on the overlay: ports, SOCKS5, HTTP CONNECT, transparent, TUN
    Gateway(gateway::GatewayArgs),
    /// Pass TCP on without splitting it: NAT rules of this host's kernel, removed at the end
    Forward(forward::ForwardArgs),
    /// Show the path that a flow to DEST takes, the round trip of each leg, and the reason
    ///
    /// Asks the running gateway; if none runs, probes the paths of its configuration. Ends with 1
    /// when the path is dead.
    Ping(ping::PingArgs),
    /// Show all paths of a gateway: state, round trips, the one taken and the reason
    ///
    /// Asks the running gateway; if none runs, probes the paths of its configuration. Ends with 1
    /// when a path that would be taken is dead.
    Netcheck(netcheck::NetcheckArgs),
    /// Make a key: an identity for a relay or gateway, or an operator's signing key
    Keygen(keygen::KeygenArgs),
    /// Make the hash of a password from standard input, for a user of a gateway's proxies
    Password,
    /// Sign and inspect grants, which say who may send to which destinations
    #[command(subcommand)]
    Grant(grant::GrantCommand),
    /// Run the controller of an overlay (docs/how-to/overlay.md)
    #[command(subcommand)]
    Controller(controller::ControllerCommand),
    /// Print the address of the dashboard, with the token that it asks for
    ///
    /// The token is behind `#`, which browsers send to nobody; the page takes it out of the address
    /// at once (docs/how-to/dashboard.md).
    Dashboard(dashboard::DashboardArgs),
    /// Make the line by which a host joins the overlay of a controller
    Invite(invite::InviteArgs),
    /// Put agents on hosts by ssh, upgrade them, or take them away (docs/how-to/deploy.md)
    ///
    /// Looks at each host of the file, and does what is missing: copies and installs the package,
    /// has the host join, starts the agent, and waits until the controller hears it. Upgrades one
    /// host after the other. A host where a step fails is left as it was. Exit code 1 when a host
    /// is not as the file says, 2 for a mistake in the file.
    Deploy(deploy::DeployArgs),
    /// Make machines in clouds that join as relays by themselves (docs/how-to/machines.md)
    ///
    /// Shows prices and what would be done; does it with --yes, by Terraform, in a folder beside
    /// the file: `net.machines` beside `net.toml`. Exit code 1 when a machine is not as the file
    /// says, 2 for a mistake in the file.
    Machines(machines::MachinesArgs),
    /// Show the hosts of an overlay
    Hosts(hosts::HostsArgs),
    /// Show the relays of an overlay: the hosts of that role
    Relays(hosts::RelaysArgs),
    /// Take a host out of service, back into it, or revoke it
    #[command(subcommand)]
    Host(hosts::HostCommand),
    /// Show the flows of an overlay and their paths
    Flows(flow::FlowsArgs),
    /// Show the packet flows of an overlay: sent, lost, recovered and late packets
    Packets(packet_flows::PacketsArgs),
    /// Declare a flow of an overlay, adopt a learned one, or remove one
    #[command(subcommand)]
    Flow(flow::FlowCommand),
    /// Have the gateways of a site offer proxies, and learn flows from them
    ///
    /// Programs of the gateway's host reach other hosts through them. Sessions to the destination
    /// of a flow take its path, others go direct and are counted by destination.
    Proxies(learned::ProxiesArgs),
    /// Show the destinations that gateways have learned from their proxies
    Learned(learned::LearnedArgs),
    /// Show or set the most that a day of an overlay may cost
    Budget(budget::BudgetArgs),
    /// Add, show or remove tenants: groups of flows with budgets and accounts of their own
    #[command(subcommand)]
    Tenant(tenant::TenantCommand),
    /// Let you or the controller put plans into effect
    Mode(budget::ModeArgs),
    /// Show a plan of the controller, and put it into effect
    Apply(apply::ApplyArgs),
    /// Show whether all is well with an overlay, and if not, what to do
    ///
    /// Exit code 3 when something is wrong.
    Status(status::StatusArgs),
    /// Choose relays and paths for flows, within a budget
    ///
    /// Reads a problem (docs/reference/problem.md), solves and verifies it. Prints the plan;
    /// `--out` keeps it for `explain`. Without `--problem` the controller makes a plan of what it
    /// has measured, and nothing is changed by it: `tradewind apply` does that.
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Plan(plan::PlanCommand),
    /// Show what the plan of an overlay would be if something were otherwise; changes nothing
    ///
    /// Beside the paths in effect: money and seconds a day, relays and flows that would move.
    /// Without a change: the best plan of now.
    WhatIf(what_if::WhatIfArgs),
    /// Show the seconds that an overlay saves, by sessions that go direct beside it, and their cost
    Gain(gain::GainArgs),
    /// Show the money of an overlay, by day, relay and flow: estimated, metered and billed
    ///
    /// Relays and flows share the same money: a flow pays for its bytes, and by its bytes for the
    /// machines that carry them.
    Cost(cost::CostArgs),
    /// Show the audit log of an overlay, and what happens there now
    Events(events::EventsArgs),
    /// Show what is measured of the legs of an overlay; take in what other tools measured
    Measure(measure::MeasureArgs),
    /// Pack what helps to find a fault into an archive, without secrets
    ///
    /// Versions, facts of this kernel, and answers of the controller: its state, hosts, flows,
    /// packets, newest plan, gain, measurements, learned destinations, tenants, audit log and
    /// metrics, and the known keys of its configuration. Works without a controller too, with what
    /// is there.
    Bundle(bundle::BundleArgs),
    /// Show why a flow takes its path, and what the others would have cost and gained
    ///
    /// Of the running overlay, or with a file of a plan.
    Explain(explain::ExplainArgs),
    /// Show why a flow of an overlay does not go over relays
    WhyNot(why::WhyNotArgs),
    /// Measure round-trip times and rates
    #[command(subcommand)]
    Probe(probe::ProbeCommand),
    /// Start connections with windows learned from those that this host already has (Riptide)
    ///
    /// Works alone on any Linux host, with nothing else of Tradewind (docs/how-to/jumpstart.md).
    #[command(subcommand)]
    Jumpstart(jumpstart::JumpstartCommand),
    /// Show the state of the packet flows of a running gateway
    #[command(subcommand)]
    Packet(packet::PacketCommand),
    /// Check the configuration files of relays, gateways and jump-start
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Route(route::RouteArgs),
    Forecast(forecast::ForecastArgs),
    /// Make shell completions, manual pages, the reference of the commands, or that of the API
    #[command(subcommand)]
    Generate(generate::GenerateCommand),
}

fn main() -> ExitCode {
    let matches = take_negative_numbers(Cli::command()).try_get_matches();
    let command = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli.command,
        Err(answer) => return answer_usage(&answer),
    };
    let outcome = match command {
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Lab(command) => lab::run(command),
        Command::Relay(args) => relay::run(&args),
        Command::Agent(command) => agent::run(command),
        Command::Gateway(args) => gateway::run(&args),
        Command::Forward(args) => forward::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Netcheck(args) => netcheck::run(&args),
        Command::Keygen(args) => keygen::run(&args),
        Command::Password => password::run(),
        Command::Grant(command) => grant::run(command),
        Command::Controller(command) => controller::run(command),
        Command::Dashboard(args) => dashboard::run(&args),
        Command::Invite(args) => invite::run(&args),
        Command::Deploy(args) => deploy::run(&args),
        Command::Machines(args) => machines::run(&args),
        Command::Hosts(args) => hosts::list(&args),
        Command::Relays(args) => hosts::relays(&args),
        Command::Host(command) => hosts::run(&command),
        Command::Flows(args) => flow::list(&args),
        Command::Packets(args) => packet_flows::list(&args),
        Command::Flow(command) => flow::run(command),
        Command::Proxies(args) => learned::proxies(args),
        Command::Learned(args) => learned::list(&args),
        Command::Budget(args) => budget::budget(&args),
        Command::Tenant(command) => tenant::run(&command),
        Command::Mode(args) => budget::mode(&args),
        Command::Apply(args) => apply::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Plan(command) => plan::run(&command),
        Command::WhatIf(args) => what_if::run(&args),
        Command::Gain(args) => gain::run(&args),
        Command::Cost(args) => cost::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Measure(args) => measure::run(args),
        Command::Bundle(args) => bundle::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::WhyNot(args) => why::run(&args),
        Command::Probe(command) => probe::run(command),
        Command::Jumpstart(command) => jumpstart::run(command),
        Command::Packet(command) => packet::run(&command),
        Command::Config(command) => config::run(&command),
        Command::Route(args) => route::run(&args),
        Command::Forecast(args) => forecast::run(&args),
        Command::Generate(asked) => generate::run(asked, Cli::command()),
    };
    let code = outcome.unwrap_or_else(|error| {
        let line = output::one_line(&error);
        // If this process was to take over from another, that one reports the failure.
        tradewind_net::handover::decline(&line);
        output::complain(line);
        output::exit_code(&error).into()
    });
    tradewind_telemetry::flush_logs();
    code
}

/// Has the command and those below it take `-1` as a value, so that the error names its argument.
fn take_negative_numbers(command: clap::Command) -> clap::Command {
    command.allow_negative_numbers(true).mut_subcommands(take_negative_numbers)
}

/// Prints the answer of the argument parser: help and version as they are, an error in one line.
fn answer_usage(answer: &clap::Error) -> ExitCode {
    match output::help(answer) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(line)) => {
            tradewind_net::handover::decline(&line);
            output::complain(line);
            output::BAD_USAGE.into()
        }
        Err(error) => {
            output::complain(output::one_line(&error));
            output::FAILED.into()
        }
    }
}
