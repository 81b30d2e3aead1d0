//! The file of revocations: operators' signed lists as `tradewind grant revoke` writes them, one a
//! line.

use std::path::Path;

use tradewind_grant::SignedRevocations;
use tradewind_net::text_file;

use crate::StreamError;
use crate::failure::plain;

/// Longest file. Chosen: lists of several operators, each as long as it may be.
const MAX_MIB: u64 = 16;

/// Reads the lists in `file`. Empty lines, and lines that begin with `#`, are skipped.
///
/// # Errors
/// [`StreamError::Revocations`] with the line that is invalid, or when the file cannot be read.
pub fn read(file: &Path) -> Result<Vec<SignedRevocations>, StreamError> {
    let refused = |problem| StreamError::Revocations { path: file.to_owned(), problem };
    let text = read_text(file).map_err(refused)?;
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let entries = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    entries
        .map(|(at, line)| line.parse().map_err(|error| refused(format!("line {at}: {error}"))))
        .collect()
}

/// Reads a file of [`MAX_MIB`] at most.
pub(crate) fn read_text(file: &Path) -> Result<String, String> {
    text_file::read(file, MAX_MIB).map_err(|error| plain(&error))
}
