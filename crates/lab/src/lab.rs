//! A running topology.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use tradewind_net::NetError;
use tradewind_net::counters;
use tradewind_net::epoll::Waker;
use tradewind_net::idle::WakefulCpus;
use tradewind_net::iproute::{self, Tool};
use tradewind_net::lifeline::Lifeline;
use tradewind_net::netns::Namespace;
use tradewind_net::precedence::Precedence;
use tradewind_net::tun::{Offloads, Tun};
use tradewind_units::HostId;
use tradewind_wan::{Counters, HostIndex, PairChange, Topology};

use crate::address;
use crate::driver::{Driver, Measurement, NetworkSettings, Request};
use crate::error::LabError;
use crate::host::{self, Attachment, HostHandle, Wiring};
use crate::options::{Backend, LabOptions, Passage};
use crate::programs::Programs;
use crate::validity::{self, MachineMark, MachineUse, ValidityRecord};

/// A running lab. Dropping it ends the programs on its hosts and removes everything.
#[derive(Debug)]
pub struct Lab {
    topology: Arc<Topology>,
    hosts: Vec<HostHandle>,
    emulator: Option<JoinHandle<Result<(), LabError>>>,
    requests: Sender<Request>,
    waker: Arc<Waker>,
    lifeline: Option<Lifeline>,
    machine_before: Mutex<MachineMark>,
    programs: Programs,
    _precedence: Precedence,
    wakeful_cpus: Option<Arc<WakefulCpus>>,
    notes: Vec<String>,
    attached_by: Backend,
}

impl Lab {
    /// Starts `topology`.
    ///
    /// # Errors
    /// When required privileges (see [`crate::privilege::acquire`]) or tools are missing, or when a
    /// host needs a feature that this kernel lacks.
    pub fn start(topology: &Topology, options: &LabOptions) -> Result<Self, LabError> {
        if topology.hosts.len() > address::MAX_HOSTS {
            let (hosts, most) = (topology.hosts.len(), address::MAX_HOSTS);
            return Err(LabError::TooManyHosts { hosts, most });
        }
        require_tools(topology)?;
        let precedence = Precedence::take();
        let topology = Arc::new(topology.clone());
        let lifeline = Lifeline::new()?;
        let mut notes = Vec::new();
        let wiring = choose_wiring(options, &mut notes)?;
        let (hosts, attachments) = set_up_hosts(&topology, &wiring, options)?;
        if let Some(rate) = attachments.iter().filter_map(|host| host.port.bearable_rate()).min() {
            notes.push(format!(
                "packet sockets have little room here (sysctl net.core.rmem_max), so hosts send at \
                 most {rate}"
            ));
        }
        let wakeful_cpus = keep_cpus_awake(&mut notes);
        let waker = Arc::new(Waker::new()?);
        let (requests, inbox) = mpsc::channel();
        let (started, has_started) = mpsc::channel();
        let work = {
            let (topology, waker, options) = (topology.clone(), waker.clone(), options.clone());
            let wakeful_cpus = wakeful_cpus.clone();
            move || {
                let network = NetworkSettings {
                    topology: &topology,
                    seed: options.seed.unwrap_or(topology.seed),
                    coalesce: options.coalesce,
                    late: options.late,
                };
                let driver = Driver::new(attachments, network, waker, inbox, wakeful_cpus)?;
                // The receiver waits until this message arrives, so sending cannot fail.
                let _ = started.send(());
                driver.run()
            }
        };
        let emulator = thread::Builder::new()
            .name("lab-emulator".to_owned())
            .spawn(work)
            .map_err(|e| NetError::system("start the emulator's thread", e))?;
        let programs = Programs::watch(hosts.iter().map(|it| it.namespace.clone()).collect())?;
        let mut lab = Self {
            attached_by: match wiring {
                Wiring::Tun(_) => Backend::Tun,
                Wiring::Packet { .. } => Backend::PacketSocket,
            },
            topology,
            hosts,
            emulator: Some(emulator),
            requests,
            waker,
            lifeline: Some(lifeline),
            machine_before: Mutex::new(MachineMark::set(wakeful_cpus.as_deref())?),
            programs,
            _precedence: precedence,
            wakeful_cpus,
            notes,
        };
        if has_started.recv().is_err() {
            return Err(lab.reason_of_stop());
        }
        Ok(lab)
    }

    /// Returns the topology as it was at the start.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns notes for readers of this lab's figures: features that this kernel lacks.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns how hosts are attached: [`Backend::Tun`] or [`Backend::PacketSocket`].
    #[must_use]
    pub fn attached_by(&self) -> Backend {
        self.attached_by
    }

    /// Returns the hosts' names, in the topology's order.
    pub fn hosts(&self) -> impl Iterator<Item = &HostId> {
        self.hosts.iter().map(|host| &host.id)
    }

    /// Returns the host's IPv4 address.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn address(&self, host: &HostId) -> Result<IpAddr, LabError> {
        self.address_v4(host).map(IpAddr::V4)
    }

    /// Returns the host's IPv4 address.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn address_v4(&self, host: &HostId) -> Result<Ipv4Addr, LabError> {
        Ok(address::v4(self.find(host)?.index))
    }

    /// Returns the host's IPv6 address.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn address_v6(&self, host: &HostId) -> Result<Ipv6Addr, LabError> {
        Ok(address::v6(self.find(host)?.index))
    }

    /// Returns the host's network namespace, for callers that create sockets on threads of their
    /// own.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn namespace(&self, host: &HostId) -> Result<Arc<Namespace>, LabError> {
        Ok(self.find(host)?.namespace.clone())
    }

    /// Builds a command that will run on `host`, with the file system and the user of this process.
    /// Its process leads a process group of its own, which is killed when this lab or this process
    /// ends. The command must be started while the lab exists.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn command(&self, host: &HostId, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        let namespace = self.namespace(host)?;
        let mut command = Command::new(program);
        self.lifeline().tie(&mut command, namespace);
        Ok(command)
    }

    /// Runs `work` on a thread inside `host` and waits for it. Sockets that it creates stay on the
    /// host, whichever thread uses them later.
    ///
    /// # Errors
    /// When there is no such host, or it cannot be entered.
    ///
    /// # Panics
    /// When `work` panics.
    pub fn enter<T: Send>(
        &self,
        host: &HostId,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        Ok(self.find(host)?.namespace.run(work)?)
    }

    /// Changes a pair of sites while traffic flows.
    ///
    /// # Errors
    /// When the change names an unknown site, or a value that the pair cannot take.
    pub fn apply(&self, change: &PairChange) -> Result<(), LabError> {
        let change = Box::new(change.clone());
        Ok(self.ask(|answer| Request::Apply(change, answer))??)
    }

    /// Returns the counters of the emulated network since the start, by link.
    ///
    /// # Errors
    /// When the emulator has stopped.
    pub fn counters(&self) -> Result<Counters, LabError> {
        Ok(self.ask(Request::Measure)?.counters)
    }

    /// Returns the validity record since the start or the last reset.
    ///
    /// # Errors
    /// When the emulator has stopped.
    pub fn validity(&self) -> Result<ValidityRecord, LabError> {
        let measured: Measurement = self.ask(Request::Measure)?;
        let before = *self.machine_before.lock().unwrap_or_else(PoisonError::into_inner);
        let after = MachineMark::set(self.wakeful_cpus.as_deref())?;
        let programs = self.programs.used();
        let tcp_memory = counters::tcp_memory();
        let machine = MachineUse { before, after, tcp_memory, programs };
        let name = |host: HostIndex| self.hosts[usize::from(host.0)].id.clone();
        Ok(validity::judge(&measured, &machine, name))
    }

    /// Starts a new validity record.
    ///
    /// # Errors
    /// When the emulator has stopped.
    pub fn reset_validity(&self) -> Result<(), LabError> {
        self.ask(Request::Reset)?;
        self.programs.restart();
        let now = MachineMark::set(self.wakeful_cpus.as_deref())?;
        *self.machine_before.lock().unwrap_or_else(PoisonError::into_inner) = now;
        Ok(())
    }

    pub(crate) fn lifeline(&self) -> &Lifeline {
        self.lifeline.as_ref().expect("it is taken only when the lab is dropped")
    }

    pub(crate) fn find(&self, host: &HostId) -> Result<&HostHandle, LabError> {
        self.hosts.iter().find(|handle| handle.id == *host).ok_or_else(|| {
            let known: Vec<&str> = self.hosts().map(HostId::as_str).collect();
            LabError::UnknownHost { host: host.clone(), known: known.join(", ") }
        })
    }

    /// Sends a request to the emulator and waits for its reply.
    fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> Request) -> Result<T, LabError> {
        let gone = || LabError::Stopped("its thread has ended".to_owned());
        let (answer, answered) = mpsc::channel();
        self.requests.send(request(answer)).map_err(|_| gone())?;
        self.waker.ring();
        answered.recv().map_err(|_| gone())
    }

    /// Returns the reason for which the emulator's thread ended by itself.
    fn reason_of_stop(&mut self) -> LabError {
        match self.emulator.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            Some(Err(_)) => LabError::Stopped("its thread panicked".to_owned()),
            Some(Ok(Ok(()))) | None => LabError::Stopped("it was told to".to_owned()),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Programs end first, so that their sockets' last packets still pass through a network.
        drop(self.lifeline.take());
        for host in &self.hosts {
            host.retire();
        }
        // A thread that has ended by itself has no receiver any more.
        let _ = self.requests.send(Request::Stop);
        self.waker.ring();
        if let Some(emulator) = self.emulator.take() {
            let _ = emulator.join();
        }
    }
}

fn keep_cpus_awake(notes: &mut Vec<String>) -> Option<Arc<WakefulCpus>> {
    match WakefulCpus::hold() {
        Ok(cpus) => Some(Arc::new(cpus)),
        Err(error) => {
            notes.push(format!(
                "CPUs may sleep ({error}), so round trips are some 0.2 ms longer than stated, and \
                 more in a virtual machine"
            ));
            None
        }
    }
}

fn require_tools(topology: &Topology) -> Result<(), LabError> {
    iproute::require(Tool::Ip)?;
    if topology.hosts.iter().any(host::needs_shaper) {
        iproute::require(Tool::Tc)?;
    }
    Ok(())
}

/// Chooses how hosts are attached by a trial.
fn choose_wiring(options: &LabOptions, notes: &mut Vec<String>) -> Result<Wiring, LabError> {
    let wanted = match options.passage {
        Passage::Super => Offloads::TcpAndUdp,
        Passage::Single => Offloads::None,
    };
    let try_tun = || Namespace::create()?.run(|| Tun::create(host::DEVICE, wanted))?;
    let by_packet_socket =
        || Ok(Wiring::Packet { outer: Namespace::create()? }) as Result<Wiring, LabError>;
    if options.backend == Backend::PacketSocket {
        if options.passage == Passage::Single {
            let kernel_feature = "way to pass single packets through a packet socket";
            let needs = "choose the TUN backend";
            return Err(LabError::SinglePackets(NetError::Unsupported { kernel_feature, needs }));
        }
        return by_packet_socket();
    }
    match try_tun() {
        Ok(tun) => {
            if tun.offloads() != wanted {
                notes.push(format!(
                    "this kernel's TUN devices grant {:?} offloads instead of {wanted:?}: the rest \
                     passes packet by packet, which costs CPU",
                    tun.offloads()
                ));
            }
            Ok(Wiring::Tun(tun.offloads()))
        }
        Err(error) if options.backend == Backend::Tun => Err(error.into()),
        Err(error) if options.passage == Passage::Single => Err(LabError::SinglePackets(error)),
        Err(NetError::Unsupported { .. } | NetError::NotPermitted { .. }) => {
            notes.push("no TUN device is to be had: hosts are attached by packet sockets".into());
            by_packet_socket()
        }
        Err(error) => Err(error.into()),
    }
}

fn set_up_hosts(
    topology: &Topology,
    wiring: &Wiring,
    options: &LabOptions,
) -> Result<(Vec<HostHandle>, Vec<Attachment>), LabError> {
    let indices = (0..topology.hosts.len() as u16).map(HostIndex);
    let hosts = indices.map(|index| host::set_up(topology, index, wiring, options));
    Ok(hosts.collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_may_be_shared_between_threads() {
        fn assert_shareable<T: Send + Sync>() {}
        assert_shareable::<Lab>();
    }
}
