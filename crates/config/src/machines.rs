//! The machines that `tradewind machines` makes in clouds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_units::{Money, RegionId};

use crate::{ConfigError, document};

/// The file as a whole.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachinesConfig {
    /// A name for the overlay, part of the tag and of the names of all that is made: lowercase
    /// letters, digits and `-`, at most 20.
    pub name: String,
    /// The address, by https, from which machines fetch the Debian package.
    pub package: String,
    /// The package's SHA-256, as 64 hexadecimal digits; machines install no other.
    pub sha256: String,
    /// A public SSH key (Ed25519 or RSA) that lets you in as the image's user, from the networks of
    /// `ssh_from`. Azure and IBM take no machine without one.
    pub ssh_key: Option<String>,
    /// The networks from which machines take SSH, such as `["198.51.100.0/24"]`.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub ssh_from: Vec<ipnet::Ipv4Net>,
    /// A plan's JSON (`tradewind plan --problem FILE -o json`), relative to this file: its relays
    /// are machines too, named by region and number. Not at IBM, which needs an `image`.
    pub plan: Option<PathBuf>,
    /// The alarm about the bill.
    pub alarm: Option<AlarmConfig>,
    /// Settings for machines of Google Cloud.
    pub gcp: Option<GcpConfig>,
    /// Settings for machines of Azure.
    pub azure: Option<AzureConfig>,
    /// The machines.
    #[serde(default)]
    pub machine: Vec<MachineConfig>,
}

/// The alarm about the bill, by mail from the cloud: at 80 % of the sum, and when it is likely to
/// be passed. AWS, Azure and Google Cloud have one; IBM has none that can be made this way.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlarmConfig {
    /// The sum in dollars, by month and cloud.
    pub usd_per_month: Money,
    /// The receiver. Google Cloud tells the administrators of the billing account instead.
    pub email: String,
}

/// Settings for machines of Google Cloud.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GcpConfig {
    /// The project's id.
    pub project: String,
    /// The billing account, for the alarm.
    pub billing_account: Option<String>,
}

/// Settings for machines of Azure.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AzureConfig {
    /// The subscription's id.
    pub subscription: String,
}

/// A machine, which joins as a relay.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineConfig {
    /// Its name in this file: lowercase letters, digits and `-`, at most 30.
    pub name: String,
    /// The region, such as `aws:us-east-1`; the cloud is one of `aws`, `azure`, `gcp` and `ibm`.
    pub region: RegionId,
    /// The machine type of the catalogue, such as `aws:c5n.large`; the cloud's cheapest when
    /// absent.
    #[serde(rename = "type")]
    pub machine_type: Option<String>,
    /// The cloud's id of a Debian image with cloud-init, for x86-64; Debian 12 as the cloud offers
    /// it when absent. Needed at IBM, and not taken at Azure.
    pub image: Option<String>,
    /// The price of an hour in this region, in dollars; the catalogue's, which is that of one
    /// region, when absent.
    pub usd_per_hour: Option<Money>,
}

/// The clouds that machines can be made in.
const CLOUDS: [&str; 4] = ["aws", "azure", "gcp", "ibm"];

impl MachinesConfig {
    /// Parses and checks a file of machines. Files that it names are relative to `folder`.
    ///
    /// # Errors
    /// The first mistake, with its key, its line and the expected value.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = document::parse(text)?;
        config.plan = config.plan.map(|plan| folder.join(plan));
        config.check().map_err(|error| error.located(text))?;
        Ok(config)
    }

    /// Checks everything, also machines that were added to those of the file.
    ///
    /// # Errors
    /// The first mistake, with its key and the expected value.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, problem: &str| Err(ConfigError::new(key, problem));
        if !is_name(&self.name, 20) {
            return refuse("name", "expected at most 20 lowercase letters, digits and `-`");
        }
        // It stands in a script and in a template.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/?&=+,@%".contains(c);
        if !self.package.starts_with("https://") || !self.package.chars().all(is_plain) {
            return refuse("package", "expected the address of a Debian package, by https");
        }
        let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if self.sha256.len() != 64 || !self.sha256.chars().all(is_hex) {
            return refuse("sha256", "expected 64 hexadecimal digits, as `sha256sum` prints them");
        }
        let is_key = |key: &str| key.starts_with("ssh-ed25519 ") || key.starts_with("ssh-rsa ");
        if self.ssh_key.as_ref().is_some_and(|key| !is_key(key) || is_template(key)) {
            return refuse("ssh_key", "expected a line as in `id_ed25519.pub` or `id_rsa.pub`");
        }
        if let Some(alarm) = &self.alarm {
            if !alarm.email.contains('@') || is_template(&alarm.email) {
                return refuse("alarm.email", "expected an address of electronic mail");
            }
            if alarm.usd_per_month.as_nano_usd() == 0 {
                return refuse("alarm.usd_per_month", "expected more than nothing");
            }
        }
        let gcp = self.gcp.as_ref();
        let billing_account = gcp.and_then(|gcp| gcp.billing_account.as_ref());
        for (key, text) in [
            ("gcp.project", gcp.map(|gcp| &gcp.project)),
            ("gcp.billing_account", billing_account),
            ("azure.subscription", self.azure.as_ref().map(|azure| &azure.subscription)),
        ] {
            let is_id = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
            if text.is_some_and(|text| text.is_empty() || !text.chars().all(is_id)) {
                return refuse(key, "expected the cloud's id of it");
            }
        }
        if self.plan.is_none() && self.machine.is_empty() {
            return refuse("machine", "expected a `[[machine]]`, or a `plan`");
        }
        let mut names = BTreeSet::new();
        for (index, machine) in self.machine.iter().enumerate() {
            let section = format!("machine[{index}]");
            self.check_machine(machine).map_err(|error| error.within(&section))?;
            if !names.insert(&machine.name) {
                let problem = format!("`{}` is there twice; expected another name", machine.name);
                return Err(ConfigError::new(format!("{section}.name"), problem));
            }
        }
        Ok(())
    }

    fn check_machine(&self, machine: &MachineConfig) -> Result<(), ConfigError> {
        let refuse = |key: &str, problem: &str| Err(ConfigError::new(key, problem));
        if !is_name(&machine.name, 30) {
            return refuse("name", "expected at most 30 lowercase letters, digits and `-`");
        }
        let cloud = machine.region.cloud();
        if !CLOUDS.contains(&cloud) {
            return refuse("region", "expected a region of `aws`, `azure`, `gcp` or `ibm`");
        }
        let of_cloud = |kind: &String| kind.split_once(':').is_some_and(|(own, _)| own == cloud);
        if machine.machine_type.as_ref().is_some_and(|kind| !of_cloud(kind)) {
            return refuse("type", "expected a type of the region's cloud, with the cloud's name");
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/:".contains(c);
        if machine.image.as_ref().is_some_and(|it| it.is_empty() || !it.chars().all(is_plain)) {
            return refuse("image", "expected the cloud's id of an image");
        }
        match cloud {
            "ibm" if machine.image.is_none() => refuse("image", "missing: IBM needs an image's id"),
            "azure" if machine.image.is_some() => refuse("image", "Azure has its own Debian 12"),
            "gcp" if self.gcp.is_none() => refuse("region", "needs `[gcp]` with its `project`"),
            "azure" if self.azure.is_none() => {
                refuse("region", "needs `[azure]` with its `subscription`")
            }
            "azure" | "ibm" if self.ssh_key.is_none() => {
                refuse("region", "this cloud needs an `ssh_key`")
            }
            _ => Ok(()),
        }
    }
}

/// Returns whether it is a name that all clouds take.
fn is_name(text: &str, max: usize) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
    begins && !text.ends_with('-') && text.len() <= max && text.chars().all(is_plain)
}

/// Returns whether Terraform would take it for a template, or it is no single line.
fn is_template(text: &str) -> bool {
    text.contains("${") || text.contains("%{") || text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::tests::example_of;

    const HEAD: &str = "name = 'net'\npackage = 'https://example.org/t.deb'\nsha256 = \
        '0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef'\n";

    #[test]
    fn example_of_the_docs_is_right_by_parser_and_schema() {
        let page = include_str!("../../../docs/how-to/machines.md");
        let text = example_of(page, &crate::machines_schema());
        let machines = MachinesConfig::parse(text, Path::new("/here")).unwrap().machine;
        assert_eq!(machines.len(), 2, "{machines:?}");
    }

    #[test]
    fn mistakes_have_their_line() {
        let one = "[[machine]]\nname = 'm'\nregion = 'aws:eu-west-1'\n";
        let of = |cloud: &str| format!("{HEAD}{}", one.replace("aws:", &format!("{cloud}:")));
        for (text, expected) in [
            (HEAD.to_owned(), "`machine`: expected a `[[machine]]`"),
            (format!("{HEAD}{one}colour = 1"), "`machine[0].colour` (line 7): unknown"),
            (format!("{HEAD}{one}{one}"), "`machine[1].name` (line 8): `m` is there twice"),
            (format!("{HEAD}{one}type = 'gcp:e2-medium'"), "`machine[0].type` (line 7): expected"),
            (format!("{HEAD}{one}image = '${{x}}'"), "`machine[0].image` (line 7): expected"),
            (format!("{HEAD}{one}").replace("'m'", "'M'"), "`machine[0].name` (line 5): expected"),
            (format!("{HEAD}{one}").replace("'net'", "'a b'"), "`name` (line 1): expected at most"),
            (format!("{HEAD}{one}").replace("https", "http"), "`package` (line 2): expected the"),
            (format!("{HEAD}{one}").replace("t.deb", "$(x)"), "`package` (line 2): expected the"),
            (format!("{HEAD}{one}").replace("cdef'", "cdeX'"), "`sha256` (line 3): expected 64"),
            (format!("ssh_key = 'x'\n{HEAD}{one}"), "`ssh_key` (line 1): expected a line as in"),
            (format!("{HEAD}{one}[alarm]\nusd_per_month = 5\nemail = 'x'"), "`alarm.email` (line"),
            (of("moon"), "`machine[0].region` (line 6): expected a region of"),
            (of("gcp"), "`machine[0].region` (line 6): needs `[gcp]`"),
            (of("azure"), "`machine[0].region` (line 6): needs `[azure]`"),
            (of("ibm"), "`machine[0].image` (line 4): missing: IBM needs"),
            (format!("{}[azure]\nsubscription = 's'", of("azure")), "`machine[0].region` (line 6)"),
        ] {
            let error = MachinesConfig::parse(&text, Path::new("")).unwrap_err().in_its_file();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
