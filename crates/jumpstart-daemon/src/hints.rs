//! Standing hints: a file that an operator's own tools write, read again when it changes.
//!
//! ```toml
//! [[hint]]
//! within = "10.0.0.0/8"
//! freeze = true            # or at_most = 20, or scale = 0.5
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use tradewind_config::{ConfigError, document};
use tradewind_jumpstart::{Hint, Order, prefix};
use tradewind_units::{Ratio, Segments, Timestamp};

/// State of a file: its inode number, length, and time of change, of its permissions as well.
type State = (u64, u64, i64, i64);

/// The file, and its state when it was last checked.
#[derive(Debug)]
pub(crate) struct HintFile {
    path: PathBuf,
    found: Found,
    problem: Option<String>,
}

/// Result of the last check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// There was no check yet.
    Nothing,
    NoFile,
    Unreadable,
    File(State),
}

impl HintFile {
    /// Creates one for `path`, which need not exist: without a file there are no hints, which is
    /// logged.
    pub(crate) const fn at(path: PathBuf) -> Self {
        Self { path, found: Found::Nothing, problem: None }
    }

    /// Returns the file's hints, if it has changed since the last check and can be read; an error
    /// is reported by [`HintFile::problem`], and the hints before it stay in force.
    pub(crate) fn changed(&mut self) -> Option<Vec<Hint>> {
        let (found, unreadable) = match fs::metadata(&self.path) {
            Ok(data) => {
                let state = (data.ino(), data.size(), data.ctime(), data.ctime_nsec());
                (Found::File(state), None)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Found::NoFile, None),
            Err(error) => (Found::Unreadable, Some(error.to_string())),
        };
        let before = std::mem::replace(&mut self.found, found);
        if before == found {
            return None;
        }
        let read = || fs::read_to_string(&self.path).map_err(|error| error.to_string());
        let hints = match (found, unreadable) {
            (Found::Nothing | Found::NoFile, _) => {
                self.tell(Some("no such file, so there are no standing hints"));
                return (before != Found::Nothing).then(Vec::new);
            }
            (_, Some(error)) => Err(error),
            (_, None) => read().and_then(|text| parse(&text).map_err(|error| error.in_its_file())),
        };
        let problem = hints.as_ref().err().map(|error| format!("{error}; those before it stand"));
        self.tell(problem.as_deref());
        hints.ok()
    }

    /// Logs a problem once, if there is any.
    fn tell(&mut self, problem: Option<&str>) {
        let problem = problem.map(|problem| format!("hints, {}: {problem}", self.path.display()));
        if problem != self.problem {
            problem.iter().for_each(|problem| tracing::warn!("{problem}"));
        }
        self.problem = problem;
    }

    /// Returns in one line why the file's hints are not those in force.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    hint: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(deserialize_with = "prefix::one")]
    within: IpNet,
    #[serde(default)]
    freeze: bool,
    at_most: Option<Segments>,
    scale: Option<Ratio>,
}

fn parse(text: &str) -> Result<Vec<Hint>, ConfigError> {
    let file: File = document::parse(text)?;
    let entries = file.hint.iter().enumerate();
    let hints: Result<_, ConfigError> =
        entries.map(|(number, entry)| hint_of(number, entry)).collect();
    hints.map_err(|error| error.located(text))
}

fn hint_of(number: usize, entry: &Entry) -> Result<Hint, ConfigError> {
    let order = match (entry.freeze, entry.at_most, entry.scale) {
        (true, None, None) => Order::Freeze,
        (false, Some(most), None) => Order::AtMost(most),
        (false, None, Some(share)) => Order::Scale(share),
        _ => {
            let problem = "expected one of `freeze = true`, `at_most` and `scale`";
            return Err(ConfigError::new(format!("hint[{number}]"), problem));
        }
    };
    // It holds for as long as it is in the file.
    Ok(Hint { within: entry.within, order, until: Timestamp::FAR_FUTURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hint_is_one_order() {
        let text = "[[hint]]\nwithin = \"10.0.0.0/8\"\nfreeze = true\n\
                    [[hint]]\nwithin = \"2001:db8::/32\"\nat_most = 20\n\
                    [[hint]]\nwithin = \"192.0.2.0/24\"\nscale = 0.5\n";
        let shown = |hint: Hint| format!("{}: {}", hint.within, hint.order);
        let parsed: Vec<String> = parse(text).unwrap().into_iter().map(shown).collect();
        let expected = ["10.0.0.0/8: freeze", "2001:db8::/32: at most 20 segments"];
        assert_eq!(parsed[..2], expected);
        assert_eq!(parsed.len(), 3);
        assert!(parse("").unwrap().is_empty());
        for (text, expected) in [
            ("[[hint]]\nwithin = \"10.0.0.0/8\"", "`hint[0]` (line 1): expected one of"),
            (
                "[[hint]]\nwithin = \"10.0.0.0/8\"\nfreeze = true\nscale = 0.5",
                "`hint[0]` (line 1): expected one of",
            ),
            ("[[hint]]\nfreeze = true", "`within`"),
            ("[[hint]]\nwithin = \"10.0.0.0\"\nfreeze = true", "`hint[0].within`"),
            ("[[hint]]\nwithin = \"10.0.0.1/8\"\nfreeze = true", "`hint[0].within` (line 2): exp"),
            ("[[hints]]", "unknown field `hints`"),
        ] {
            let error = parse(text).unwrap_err().in_its_file();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn bad_hints_leave_the_last_in_force() {
        let path = std::env::temp_dir().join(format!("tw-hints-{}.toml", std::process::id()));
        let mut file = HintFile::at(path.clone());
        assert_eq!(file.changed(), None, "no file, no hints");
        let missing =
            format!("hints, {}: no such file, so there are no standing hints", path.display());
        assert_eq!((file.changed(), file.problem()), (None, Some(missing.as_str())));
        fs::write(&path, "[[hint]]\nwithin = \"10.0.0.0/8\"\nfreeze = true\n").unwrap();
        assert_eq!(file.changed().map(|hints| hints.len()), Some(1));
        assert_eq!((file.changed(), file.problem()), (None, None));
        fs::write(&path, "[[hint]]\nwithin = \"10.0.0.0/8\"\nfreeze = maybe, or not\n").unwrap();
        assert_eq!(file.changed(), None);
        let problem = file.problem().unwrap().to_owned();
        assert!(problem.contains("line 3") && !problem.contains('\n'), "{problem}");
        assert_eq!((file.changed(), file.problem()), (None, Some(problem.as_str())));
        fs::write(&path, "").unwrap();
        assert_eq!((file.changed(), file.problem()), (Some(Vec::new()), None));
        fs::write(&path, "[[hint]]\nwithin = \"10.0.0.0/8\"\nscale = 0.5\n").unwrap();
        assert_eq!(file.changed().map(|hints| hints.len()), Some(1));
        fs::remove_file(&path).unwrap();
        assert_eq!(file.changed(), Some(Vec::new()), "no file, no hints");
        assert_eq!((file.changed(), file.problem()), (None, Some(missing.as_str())));
    }
}
