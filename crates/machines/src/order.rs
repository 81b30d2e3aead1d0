//! Machines with type and price.

use serde::Serialize;
use tradewind_config::MachineConfig;
use tradewind_model::catalogue::{Catalogue, Egress, VmType};
use tradewind_units::{Money, PricePerGb, RegionId};

/// A machine to be made, with its type and price.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Order {
    /// Its name in the file of machines.
    pub machine: String,
    /// The region that it is in.
    pub region: RegionId,
    /// Its type, as the catalogue names it.
    #[serde(rename = "type")]
    pub machine_type: String,
    /// The cloud's id of its image; the cloud's Debian 12 if absent.
    pub image: Option<String>,
    /// Price of an hour.
    pub usd_per_hour: Money,
    /// Source of that price: the file, or the catalogue's words.
    pub price_source: String,
    /// Date of that price, if the catalogue has it.
    pub price_dated: Option<String>,
    /// Price of a gigabyte to the Internet; absent where the catalogue has none.
    pub usd_per_gb: Option<PricePerGb>,
}

/// The reason why a machine cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The catalogue does not know the type.
    #[error("machine `{machine}`: no machine type `{machine_type}` in the catalogue{meant}")]
    UnknownType {
        /// The machine's name.
        machine: String,
        /// The type that it should have.
        machine_type: String,
        /// A type of nearly this name, or nothing.
        meant: String,
    },
    /// The catalogue does not know the region.
    #[error("machine `{machine}`: no region `{region}` in the catalogue{meant}")]
    UnknownRegion {
        /// The machine's name.
        machine: String,
        /// The region.
        region: RegionId,
        /// A region of nearly this name, or nothing.
        meant: String,
    },
    /// The catalogue has no type of this cloud.
    #[error("machine `{machine}`: the catalogue has no machine type of its cloud: state a `type`")]
    NoType {
        /// The machine's name.
        machine: String,
    },
    /// The type is of another processor than the package.
    #[error(
        "machine `{machine}`: `{machine_type}` has ARM processors, and machines are made for \
         x86-64: choose another `type`"
    )]
    Arm {
        /// The machine's name.
        machine: String,
        /// The type.
        machine_type: String,
    },
}

/// Returns a machine's type and price. Without a type it is the cloud's cheapest.
///
/// # Errors
/// When the catalogue lacks its region or type, or it has another processor than x86-64.
pub fn order(machine: &MachineConfig, catalogue: &Catalogue) -> Result<Order, OrderError> {
    let name = machine.name.clone();
    if catalogue.region(&machine.region).is_none() {
        let meant = catalogue.did_you_mean(machine.region.as_str());
        let region = machine.region.clone();
        return Err(OrderError::UnknownRegion { machine: name, region, meant });
    }
    let vm = vm_type(machine, catalogue)?;
    let own = machine.usd_per_hour;
    let egress = catalogue.egress_price(&machine.region, Egress::Internet);
    Ok(Order {
        machine: name,
        region: machine.region.clone(),
        machine_type: vm.id.clone(),
        image: machine.image.clone(),
        usd_per_hour: own.unwrap_or(vm.usd_per_hour),
        price_source: own.map_or_else(|| vm.source.clone(), |_| "the file of machines".to_owned()),
        price_dated: own.is_none().then(|| vm.dated.clone()),
        usd_per_gb: egress.ok(),
    })
}

fn vm_type<'a>(
    machine: &MachineConfig,
    catalogue: &'a Catalogue,
) -> Result<&'a VmType, OrderError> {
    let name = || machine.name.clone();
    let Some(wanted) = &machine.machine_type else {
        let of_cloud = |vm: &&VmType| vm.id.split(':').next() == Some(machine.region.cloud());
        let fit = catalogue.vm_types().filter(of_cloud).filter(|vm| !is_arm(&vm.id));
        let cheapest = fit.min_by_key(|vm| (vm.usd_per_hour, &vm.id));
        return cheapest.ok_or_else(|| OrderError::NoType { machine: name() });
    };
    let machine_type = wanted.clone();
    if is_arm(wanted) {
        return Err(OrderError::Arm { machine: name(), machine_type });
    }
    catalogue.vm_type(wanted).ok_or_else(|| {
        let meant = catalogue.did_you_mean_machine(wanted);
        OrderError::UnknownType { machine: name(), machine_type, meant }
    })
}

/// Returns whether a type has ARM processors, by its cloud's way to name them: a `g` after the
/// generation (`aws:c7gn.large`), a `p` after the number of cores (`azure:Standard_D2ps_v5`), or
/// the series of GCP.
fn is_arm(machine_type: &str) -> bool {
    let Some((cloud, name)) = machine_type.split_once(':') else { return false };
    match cloud {
        "aws" => {
            let family = name.split('.').next().unwrap_or_default();
            let options = family.trim_start_matches(|c: char| c.is_ascii_lowercase());
            options.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with('g')
        }
        "azure" => {
            let size = name.trim_start_matches("Standard_");
            let options = size.trim_start_matches(|c: char| c.is_ascii_uppercase());
            let options = options.trim_start_matches(|c: char| c.is_ascii_digit());
            options.split('_').next().is_some_and(|letters| letters.contains('p'))
        }
        "gcp" => ["t2a-", "c4a-", "n4a-"].iter().any(|series| name.starts_with(series)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(region: &str, machine_type: Option<&str>) -> MachineConfig {
        MachineConfig {
            name: "m".to_owned(),
            region: region.parse().unwrap(),
            machine_type: machine_type.map(str::to_owned),
            image: None,
            usd_per_hour: None,
        }
    }

    #[test]
    fn cheapest_type_of_the_cloud_is_taken_unless_one_is_named() {
        let catalogue = Catalogue::builtin();
        for cloud in ["aws", "azure", "gcp", "ibm"] {
            let of_cloud = |id: &str| id.starts_with(&format!("{cloud}:"));
            let region = catalogue.regions().find(|it| of_cloud(it.id.as_str())).unwrap();
            let order = order(&machine(region.id.as_str(), None), &catalogue).unwrap();
            let cheaper = catalogue.vm_types().filter(|vm| of_cloud(&vm.id) && !is_arm(&vm.id));
            assert!(cheaper.map(|vm| vm.usd_per_hour).min() == Some(order.usd_per_hour));
            assert!(order.usd_per_gb.is_some() && order.price_dated.is_some(), "{order:?}");
        }
        let named = machine("aws:us-east-1", Some("aws:m5.8xlarge"));
        assert_eq!(order(&named, &catalogue).unwrap().machine_type, "aws:m5.8xlarge");
        let mut own = named;
        own.usd_per_hour = Money::from_usd(1.5).ok();
        let order = order(&own, &catalogue).unwrap();
        assert_eq!((Some(order.usd_per_hour), order.price_dated), (own.usd_per_hour, None));
    }

    #[test]
    fn what_the_catalogue_lacks_is_named_with_what_may_be_meant() {
        let catalogue = Catalogue::builtin();
        let error = |machine| order(&machine, &catalogue).unwrap_err().to_string();
        let unknown = error(machine("aws:us-esat-1", None));
        assert!(unknown.contains("did you mean `aws:us-east-1`"), "{unknown}");
        let unknown = error(machine("aws:us-east-1", Some("aws:c5n.larg")));
        assert!(unknown.contains("did you mean `aws:c5n.large`"), "{unknown}");
    }

    #[test]
    fn arm_machines_are_refused() {
        for name in
            ["aws:c7gn.large", "aws:t4g.nano", "azure:Standard_D2ps_v5", "gcp:t2a-standard-1"]
        {
            assert!(is_arm(name), "{name}");
        }
        for name in ["aws:c5n.large", "aws:g5.xlarge", "azure:Standard_D2s_v5", "gcp:e2-medium"] {
            assert!(!is_arm(name), "{name}");
        }
        let arm = machine("azure:eastus", Some("azure:Standard_D2ps_v5"));
        let error = order(&arm, &Catalogue::builtin()).unwrap_err().to_string();
        assert!(error.contains("ARM processors"), "{error}");
    }
}
