//! Jump-start on the lab, with the kernel's own TCP: `rt-probes` `[RT IV]`, `rt-guard` and
//! `rt-ramp` (ours).
//!
//! | module | holds |
//! |---|---|
//! | [`probes`] | the paper's probes between PoPs, with and without the daemon |
//! | [`guard`] | costs of jumps where they can do harm |
//! | [`ramp`] | 1 MB against a round trip and its time on the wire |
//! | [`arm`] | a method of starting connections: by default, `riptide`, `paced` |
//! | [`compare`] | ratios of paired runs, with bounds |

pub(crate) mod arm;
pub(crate) mod compare;
pub(crate) mod guard;
pub(crate) mod probes;
pub(crate) mod ramp;

use tradewind_lab::{Lab, LabError};
use tradewind_model::Catalogue;
use tradewind_net::sysctl;
use tradewind_units::{HostId, SiteId};
use tradewind_wan::Topology;

use crate::harness::ProcessError;

/// Linux's default receive buffers, 128 KiB to begin with, as on an unprepared host.
const DEFAULT_RECEIVE_BUFFER: &str = "4096 131072 33554432";

/// Returns the host of this name.
fn host(name: &str) -> HostId {
    HostId::new(name).expect("a host's name")
}

/// Returns the site of this name.
fn site(name: &str) -> SiteId {
    SiteId::new(name).expect("a site's name")
}

/// Parses a topology whose text was made here.
fn topology(text: &str, file: &str) -> Result<Topology, ProcessError> {
    Topology::parse(text, &Catalogue::builtin())
        .map_err(|source| ProcessError::Topology { file: file.to_owned(), source })
}

/// Returns a site outside every cloud; its place does not matter, as all round trips are stated.
fn site_text(id: &str) -> String {
    format!("[[site]]\nid = \"{id}\"\nlocation = {{ latitude = 50.0, longitude = 8.0 }}\n")
}

/// Sets the receive buffers of `host` to Linux's defaults.
fn unprepare(lab: &Lab, host: &HostId) -> Result<(), ProcessError> {
    let set = || sysctl::set("net.ipv4.tcp_rmem", DEFAULT_RECEIVE_BUFFER);
    lab.enter(host, set)?.map_err(LabError::from)?;
    Ok(())
}
