//! Names that only a members file explains, and the sections that hold them.

use super::{DeliveryPolicy, Group, Path, Recipient, Remote, Rendezvous, Via};
use crate::ConfigError;

/// The keys of the sections that paths, groups and deposits were read from, such as `packet[1]`, in
/// their order; empty for those of a program.
#[derive(Debug, Clone, Default)]
pub struct SectionKeys {
    /// Those of the paths.
    pub paths: Vec<String>,
    /// Those of the groups.
    pub groups: Vec<String>,
    /// Those of the deposits.
    pub deposits: Vec<String>,
}

impl DeliveryPolicy {
    /// Checks that a members file has all that the policy names; `has` says whether it may have an
    /// endpoint with an id, and is absent without such a file.
    ///
    /// # Errors
    /// The key `remote` or `relays`.
    pub fn check_members(&self, has: Option<&dyn Fn(&str) -> bool>) -> Result<(), ConfigError> {
        match &self.remote {
            Remote::Member(name) => check_member(name, has)?,
            Remote::At(_) => {}
        }
        if self.relays == Via::Nearest && has.is_none() {
            let problem =
                "`nearest` takes the relays of `members` in [packet_endpoint], which is missing";
            return Err(ConfigError::new("relays", problem));
        }
        Ok(())
    }
}

impl Recipient {
    /// Checks that a members file may have the receiver.
    fn check_members(&self, has: Option<&dyn Fn(&str) -> bool>) -> Result<(), ConfigError> {
        match self {
            Self::Member(name) => check_member(name, has),
            Self::Identity(_) => Ok(()),
        }
    }
}

/// Checks that a members file may have an endpoint of this name.
fn check_member(name: &str, has: Option<&dyn Fn(&str) -> bool>) -> Result<(), ConfigError> {
    let problem = match has {
        Some(has) if has(name) => return Ok(()),
        Some(_) => format!("no endpoint among the members has the id `{name}`"),
        None => format!(
            "`{name}` is an id of `members` in [packet_endpoint], which is missing; expected that, \
             or an address and an identity"
        ),
    };
    Err(ConfigError::new("remote", problem))
}

/// Everything in a configuration that may name members.
#[derive(Debug, Clone, Copy)]
pub struct MemberReferences<'a> {
    /// The paths.
    pub paths: &'a [Path],
    /// The groups.
    pub groups: &'a [Group],
    /// The deposits and the relays where packets wait.
    pub rendezvous: &'a Rendezvous,
}

impl SectionKeys {
    /// Checks that a members file has all that `references` name, as
    /// [`DeliveryPolicy::check_members`].
    ///
    /// # Errors
    /// The first key, with its section's if that is known.
    pub fn check_members(
        &self,
        references: MemberReferences<'_>,
        has: Option<&dyn Fn(&str) -> bool>,
    ) -> Result<(), ConfigError> {
        for (at, path) in references.paths.iter().enumerate() {
            let checked = path.delivery.check_members(has);
            checked.map_err(|error| error.of_section(self.paths.get(at)))?;
        }
        for (at, group) in references.groups.iter().enumerate() {
            for (member, (_, delivery)) in group.courses().enumerate() {
                let checked = delivery.check_members(has);
                let in_group = |error: ConfigError| error.within(&format!("group[{member}]"));
                let section = self.groups.get(at);
                checked.map_err(|error| in_group(error).of_section(section))?;
            }
        }
        for (at, deposits) in references.rendezvous.deposits.iter().enumerate() {
            let checked = deposits.remote.check_members(has);
            checked.map_err(|error| error.of_section(self.deposits.get(at)))?;
        }
        Ok(())
    }
}
