//! Names that only a members file explains.

use super::*;

impl NodeConfig {
    /// Checks that the members file, if there is one, is valid and has all that sections name.
    pub(super) fn check_members(&self) -> Result<(), NodeError> {
        let members = self.members.as_deref().map(Members::read).transpose()?;
        for (at, path) in self.paths.iter().enumerate() {
            let checked = path.delivery.check_members(members.as_ref());
            checked.map_err(|error| self.sections.in_path(at, error))?;
        }
        for (at, group) in self.groups.iter().enumerate() {
            for (_, delivery) in group.courses() {
                let checked = delivery.check_members(members.as_ref());
                checked.map_err(|error| self.sections.in_group(at, error))?;
            }
        }
        for (at, deposits) in self.rendezvous.deposits.iter().enumerate() {
            if let Recipient::Member(name) = &deposits.far {
                let checked = check_member(name, members.as_ref());
                checked.map_err(|error| self.sections.in_deposits(at, error))?;
            }
        }
        Ok(())
    }
}

impl DeliveryPolicy {
    /// Checks that these members have all that the policy names.
    fn check_members(&self, members: Option<&Members>) -> Result<(), NodeError> {
        self.check_has_members(members.is_some())?;
        match &self.far {
            Far::Member(name) => check_member(name, members),
            Far::At(_) => Ok(()),
        }
    }

    /// Checks that a node can follow the policy, which may have members or none.
    pub(crate) fn check_has_members(&self, has_members: bool) -> Result<(), NodeError> {
        match &self.far {
            Far::Member(name) if !has_members => check_member(name, None),
            _ if self.relays == Via::Nearest && !has_members => {
                let problem = "`nearest` takes the relays of `members` in [packet_endpoint], which \
                               is missing";
                Err(NodeError::Config { key: "relays", problem: problem.into() })
            }
            _ => Ok(()),
        }
    }
}

/// Checks that these members may have an endpoint of this name.
fn check_member(name: &str, members: Option<&Members>) -> Result<(), NodeError> {
    let problem = match members {
        Some(members) if members.may_know(name) => return Ok(()),
        Some(_) => format!("no endpoint among the members has the id `{name}`"),
        None => format!(
            "`{name}` is an id of `members` in [packet_endpoint], which is missing; expected that, \
             or an address and an identity"
        ),
    };
    Err(NodeError::Config { key: "far", problem })
}
