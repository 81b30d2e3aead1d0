//! Hosts of the file; a site without one gets a host of its own name.

use std::collections::BTreeSet;

use toml::Spanned;
use tradewind_model::{Catalogue, catalogue::VmType};
use tradewind_units::{Bandwidth, Bytes, Duration, HostId};

use super::{
    CapFlavour, Host, Route, Site, SiteIndex, TopologyError, limits,
    resolve::{Names, Source, room},
    text::{File, HostSection, Limit, RouteSection},
};

/// Default burst of a cap. Chosen: two offloaded super-packets.
const BURST: Bytes = Bytes::new(128 * 1024);
/// Default interface MTU: Ethernet's.
const MTU: Bytes = Bytes::new(1500);
/// Default congestion control: Linux's.
const CONGESTION_CONTROL: &str = "cubic";
/// Longest name of a congestion control (the kernel's TCP_CA_NAME_MAX, less the final zero).
const MAX_CONGESTION_CONTROL: usize = 15;

/// Returns all hosts: those of the file in its order, then those of sites without any.
pub(super) fn hosts(
    file: &File,
    names: &Names<'_>,
    sites: &[Site],
    catalogue: &Catalogue,
) -> Result<Vec<Host>, TopologyError> {
    let source = names.source;
    let none = HostSection::default();
    let default = file.default.host.as_ref().map_or(&none, Spanned::get_ref);
    if let Some(spanned) = &file.default.host
        && (default.id.is_some() || default.site.is_some())
    {
        let problem = "`id` and `site` have no default: write them in `[[host]]`";
        return Err(source.refuse_at(spanned, problem));
    }
    let mut hosts: Vec<Host> = Vec::new();
    let mut used: BTreeSet<HostId> = BTreeSet::new();
    for spanned in &file.host {
        let section = spanned.get_ref();
        let Some(site) = &section.site else {
            return Err(source.refuse_at(spanned, "a host needs the `site` that it is at"));
        };
        let index = names.site(site.get_ref(), site.span())?;
        let (id, span) = match &section.id {
            Some(id) => (id.get_ref().clone(), id.span()),
            None => (named_after(&sites[usize::from(index.0)]), site.span()),
        };
        if !used.insert(id.clone()) {
            return Err(source.refuse(span, format!("a second host `{id}`: give it another `id`")));
        }
        hosts.push(Layers { section, default, catalogue, names }.host(id, index)?);
    }
    for (index, site) in sites.iter().enumerate() {
        let index = SiteIndex(u16::try_from(index).expect("sites are limited"));
        if hosts.iter().any(|host| host.site == index) {
            continue;
        }
        let id = named_after(site);
        if !used.insert(id.clone()) {
            let place = format!("site `{id}`");
            let problem = format!("it has no host, and host `{id}` is elsewhere: add a `[[host]]`");
            return Err(TopologyError { place, problem });
        }
        hosts.push(Layers { section: &none, default, catalogue, names }.host(id, index)?);
    }
    if hosts.len() > limits::MAX_HOSTS {
        let place = "hosts".to_owned();
        let problem = format!("at most {} of them, not {}", limits::MAX_HOSTS, hosts.len());
        return Err(TopologyError { place, problem });
    }
    Ok(hosts)
}

fn named_after(site: &Site) -> HostId {
    HostId::new(site.id.as_str()).expect("a site's name is a name")
}

/// A host's own section and the defaults.
struct Layers<'a> {
    section: &'a HostSection,
    default: &'a HostSection,
    catalogue: &'a Catalogue,
    names: &'a Names<'a>,
}

impl<'a> Layers<'a> {
    fn find<T>(&self, key: impl Fn(&'a HostSection) -> Option<T>) -> Option<T> {
        key(self.section).or_else(|| key(self.default))
    }

    fn host(&self, id: HostId, site: SiteIndex) -> Result<Host, TopologyError> {
        let source = self.names.source;
        let mtu = match self.find(|section| section.mtu.as_ref()) {
            Some(mtu) => {
                limits::mtu(*mtu.get_ref())
                    .map_err(|problem| source.refuse_at(mtu, format!("mtu: {problem}")))?;
                *mtu.get_ref()
            }
            None => MTU,
        };
        let queue = match self.find(|section| section.queue.as_ref()) {
            Some(queue) => Some(room(Some(queue), None, mtu, Duration::ZERO, source)?),
            None => None,
        };
        let congestion_control = match self.find(|section| section.congestion_control.as_ref()) {
            Some(name) => congestion_control(name, source)?,
            None => CONGESTION_CONTROL.to_owned(),
        };
        Ok(Host {
            id,
            site,
            egress: self.cap(|section| section.egress, |vm| Some(vm.egress_cap))?,
            ingress: self.cap(|section| section.ingress, |vm| Some(vm.ingress_cap))?,
            per_connection: self
                .cap(|section| section.per_connection, |vm| vm.per_connection_cap)?,
            cap: self.find(|section| section.cap).unwrap_or(CapFlavour::BackPressure),
            burst: self
                .size("burst", limits::buffer, |section| section.burst.as_ref())?
                .unwrap_or(BURST),
            queue,
            mtu,
            congestion_control,
            receive_buffer: self.size("receive_buffer", limits::socket_buffer, |section| {
                section.receive_buffer.as_ref()
            })?,
            send_buffer: self.size("send_buffer", limits::socket_buffer, |section| {
                section.send_buffer.as_ref()
            })?,
            initcwnd: self.find(|section| section.initcwnd),
            initrwnd: self.find(|section| section.initrwnd),
            routes: self.routes()?,
        })
    }

    /// Returns a buffer size after `check` has accepted it for a kernel.
    fn size<'s>(
        &'s self,
        name: &str,
        check: fn(Bytes) -> Result<(), String>,
        key: impl Fn(&'s HostSection) -> Option<&'s Spanned<Bytes>>,
    ) -> Result<Option<Bytes>, TopologyError> {
        let Some(size) = self.find(key) else { return Ok(None) };
        check(*size.get_ref())
            .map_err(|problem| self.names.source.refuse_at(size, format!("{name}: {problem}")))?;
        Ok(Some(*size.get_ref()))
    }

    /// Returns a cap: the section's own key, else that of its machine type, else the default's.
    fn cap(
        &self,
        key: impl Fn(&HostSection) -> Option<Limit>,
        of_vm: impl Fn(&VmType) -> Option<Bandwidth>,
    ) -> Result<Option<Bandwidth>, TopologyError> {
        for section in [self.section, self.default] {
            if let Some(limit) = key(section) {
                return Ok(limit.0);
            }
            if let Some(vm) = self.vm(section)? {
                return Ok(of_vm(vm));
            }
        }
        Ok(None)
    }

    fn vm(&self, section: &HostSection) -> Result<Option<&VmType>, TopologyError> {
        let Some(spanned) = &section.vm else { return Ok(None) };
        let found = self.catalogue.vm_type(spanned.get_ref());
        found.map(Some).ok_or_else(|| {
            let name = spanned.get_ref();
            let close = self.catalogue.did_you_mean_machine(name);
            let problem = format!("no machine type `{name}` in the catalogue{close}");
            self.names.source.refuse_at(spanned, problem)
        })
    }

    fn routes(&self) -> Result<Vec<Route>, TopologyError> {
        let mut routes: Vec<Route> = Vec::new();
        for sections in [&self.section.route, &self.default.route] {
            let own_from = routes.len();
            for section in sections {
                let route = self.route(section)?;
                if routes[own_from..].iter().any(|other| other.to == route.to) {
                    let problem = format!("a second route to `{}`", section.to.get_ref());
                    return Err(self.names.source.refuse_at(&section.to, problem));
                }
                routes.push(route);
            }
        }
        Ok(routes)
    }

    fn route(&self, section: &RouteSection) -> Result<Route, TopologyError> {
        let congestion_control = match &section.congestion_control {
            Some(name) => Some(congestion_control(name, self.names.source)?),
            None => None,
        };
        let to = self.names.site(section.to.get_ref(), section.to.span())?;
        if congestion_control.is_none() && section.initcwnd.is_none() && section.initrwnd.is_none()
        {
            let problem = "a route says what differs there: write `congestion_control`, `initcwnd` \
                           or `initrwnd`";
            return Err(self.names.source.refuse_at(&section.to, problem));
        }
        Ok(Route { to, congestion_control, initcwnd: section.initcwnd, initrwnd: section.initrwnd })
    }
}

fn congestion_control(name: &Spanned<String>, source: Source<'_>) -> Result<String, TopologyError> {
    let text = name.get_ref();
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if text.is_empty() || text.len() > MAX_CONGESTION_CONTROL || !text.chars().all(allowed) {
        let problem = format!("congestion_control: a kernel's name such as `cubic`, not `{text}`");
        return Err(source.refuse_at(name, problem));
    }
    Ok(text.clone())
}
