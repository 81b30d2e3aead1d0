//! Relays that forward connections without splitting them, and HAProxy for comparison.

use std::net::{SocketAddr, TcpStream};

use tradewind_lab::LabError;
use tradewind_net::sysctl;
use tradewind_units::HostId;

use super::process::Service;
use super::{LabContext, ProcessError};

/// Forwards connections to `listen` of `host` to `to` without splitting, by `tradewind forward`;
/// enables forwarding in that host's kernel.
///
/// # Errors
/// When the host cannot be entered or the forwarder cannot be started.
pub(super) fn start_forwarder(
    context: &LabContext,
    host: &HostId,
    listen: SocketAddr,
    to: SocketAddr,
) -> Result<Service, ProcessError> {
    let set = context.lab.enter(host, || sysctl::set("net.ipv4.ip_forward", "1"))?;
    set.map_err(LabError::from)?;
    let mut command = context.lab.command(host, &context.program)?;
    command.arg("forward").arg(format!("{listen}={to}"));
    let name = format!("forward-{host}-{}", listen.port());
    Ok(Service::start(command, &name, &context.scratch)?.0)
}

/// Returns the minimal HAProxy configuration that relays `listen`: all else is at its defaults.
fn haproxy_config(listen: SocketAddr, to: SocketAddr) -> String {
    format!(
        "defaults\n mode tcp\n timeout connect 10s\n timeout client 1m\n timeout server 1m\n\
         listen relay\n bind {listen}\n server next {to}\n"
    )
}

/// Relays connections to `listen` of `host` to `to` by HAProxy with its defaults, in `mode tcp`.
///
/// # Errors
/// When it is not installed, the host cannot be entered or it does not listen.
pub(super) fn start_haproxy(
    context: &LabContext,
    host: &HostId,
    listen: SocketAddr,
    to: SocketAddr,
) -> Result<Service, ProcessError> {
    let name = format!("haproxy-{host}-{}", listen.port());
    let config = context.scratch.write(&format!("{name}.cfg"), &haproxy_config(listen, to))?;
    let mut command = context.lab.command(host, "haproxy")?;
    command.arg("-db").arg("-f").arg(config);
    let listens = || Ok(context.lab.enter(host, || TcpStream::connect(listen))?.is_ok());
    let started = Service::start_listening(command, &name, &context.scratch, listens);
    started.map_err(|error| match error {
        ProcessError::Start { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            let why =
                "it is not installed (Debian package haproxy; `make setup-bench` installs it)";
            ProcessError::Program { name: "haproxy".into(), why: why.into() }
        }
        other => other,
    })
}
