//! Files that are written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Writes `text` to `file` atomically, so that a full disk leaves the old content. A file that is
/// not regular, such as `/dev/stdout`, is written to directly.
///
/// # Errors
/// When it cannot be written; the error names it.
pub fn write_whole(file: &Path, text: &str) -> anyhow::Result<()> {
    let written = OutputTarget::open(file).and_then(|place| place.fill(text));
    written.with_context(|| file.display().to_string())
}

/// Checks that [`write_whole`] could write, and leaves nothing behind.
///
/// # Errors
/// When it could not; the error names the file.
pub fn ensure_writable(file: &Path) -> anyhow::Result<()> {
    OutputTarget::open(file).map(drop).with_context(|| file.display().to_string())
}

/// The format of an output file, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Charts as SVG.
    Svg,
    /// A page with everything.
    Html,
    /// Data.
    Json,
}

impl Form {
    /// Returns the format of `--out`'s file.
    ///
    /// # Errors
    /// A line with the formats, for another ending.
    pub fn of(file: &Path) -> Result<Self, String> {
        match file.extension().and_then(|end| end.to_str()) {
            Some("svg") => Ok(Self::Svg),
            Some("html") => Ok(Self::Html),
            Some("json") => Ok(Self::Json),
            _ => {
                let name = file.display();
                Err(format!("--out: a name that ends in .svg, .html or .json, not `{name}`"))
            }
        }
    }
}

/// The destination of a result.
enum OutputTarget {
    /// A pipe or device.
    Special(File),
    /// A regular file, replaced once the new one is complete.
    Draft(Draft),
}

impl OutputTarget {
    fn open(file: &Path) -> io::Result<Self> {
        let Ok(found) = fs::metadata(file) else {
            return Draft::new(file.to_owned()).map(Self::Draft);
        };
        // A file that may not be written is not replaced either.
        let out = OpenOptions::new().append(true).open(file)?;
        // A shell's `> file` behind `/dev/stdout` would not follow a rename.
        let of_the_system = ["/dev", "/proc"].iter().any(|system| file.starts_with(system));
        if of_the_system || !found.is_file() {
            return Ok(Self::Special(out));
        }
        // A symbolic link stays a symbolic link.
        Draft::new(fs::canonicalize(file)?).map(Self::Draft)
    }

    fn fill(self, text: &str) -> io::Result<()> {
        match self {
            Self::Special(mut out) => out.write_all(text.as_bytes()),
            Self::Draft(draft) => draft.fill(text),
        }
    }
}

/// A new file beside the one that it is to replace; removed when dropped before that.
struct Draft {
    out: File,
    path: PathBuf,
    target: PathBuf,
}

impl Draft {
    fn new(target: PathBuf) -> io::Result<Self> {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".new-{}", std::process::id()));
        let path = target.with_file_name(name);
        let out = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let draft = Self { out, path, target };
        if let Ok(replaced) = fs::metadata(&draft.target) {
            draft.out.set_permissions(replaced.permissions())?;
        }
        Ok(draft)
    }

    fn fill(mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        // Some file systems report only now that they are full.
        self.out.sync_all()?;
        fs::rename(&self.path, &self.target)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After the rename no file has this name.
        let _ = fs::remove_file(&self.path);
    }
}
