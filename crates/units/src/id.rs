//! Names typed by what they name, so that a site is never looked up among relays.
//!
//! All are short printable words. A region's id carries its cloud: `gcp:europe-north1`.

use crate::{UnitError, text};

/// Longest name that is accepted, in bytes. Chosen: longer than any cloud's region name.
const MAX_NAME_BYTES: usize = 64;
const EXPECTED: &str =
    "a name of 1 to 64 letters, digits, `-`, `_`, `.`, `:`, that starts with a letter or digit";

fn check(quantity: &'static str, name: &str) -> Result<(), UnitError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if name.len() > MAX_NAME_BYTES || !starts_well || !name.chars().all(allowed) {
        return Err(UnitError::new(quantity, EXPECTED, name));
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $quantity:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            /// Creates an id from `name`.
            ///
            /// # Errors
            /// When the name is empty, too long, or holds other than letters, digits and `-_.:`.
            pub fn new(name: impl Into<String>) -> Result<Self, UnitError> {
                let name = name.into();
                check($quantity, &name)?;
                Ok(Self(name))
            }

            /// Returns the name itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $type {
            type Err = UnitError;

            fn from_str(input: &str) -> Result<Self, UnitError> {
                Self::new(input)
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }

        text::serde_as_text!($type, EXPECTED);
    };
}

name_type!(
    /// A cloud's location, written `cloud:region`, e.g. `gcp:europe-north1`.
    RegionId, "region"
);
name_type!(
    /// Any place that holds hosts: a region, or an end point outside every cloud.
    SiteId, "site"
);
name_type!(
    /// One relay process.
    RelayId, "relay"
);
name_type!(
    /// A kind of relay: a machine of a size and price.
    RelayTypeId, "relay type"
);
name_type!(
    /// A flow: traffic that an application wants carried.
    FlowId, "flow"
);
name_type!(
    /// One machine: a virtual machine in a cloud, or a network namespace in the lab.
    HostId, "host"
);

impl RegionId {
    /// Returns the part before the colon, e.g. `gcp`; the whole name when there is no colon.
    #[must_use]
    pub fn cloud(&self) -> &str {
        self.0.split_once(':').map_or(self.as_str(), |(cloud, _)| cloud)
    }
}

impl From<RegionId> for SiteId {
    /// Converts a region into a site, as every region is one.
    fn from(region: RegionId) -> Self {
        Self(region.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_knows_its_cloud() {
        assert_eq!(RegionId::new("gcp:europe-north1").unwrap().cloud(), "gcp");
    }

    #[test]
    fn names_unsafe_in_paths_or_tables_are_refused() {
        for name in ["", "a/b", "-x", "..", "ä", "a b", "\n", &"x".repeat(65)] {
            assert_eq!(SiteId::new(name).unwrap_err().value, name);
        }
    }
}
