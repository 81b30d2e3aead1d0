//! Log files of daemons.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Writable by the owner, readable by its group.
const MODE: u32 = 0o640;

/// Opens the file at `path` for appending, and creates it if it is missing. It must be a regular
/// file: nothing is written through a symbolic link, nor to a pipe or device.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub fn open_append(path: &Path) -> io::Result<File> {
    // Without blocking: opening a pipe without a reader would hang.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = File::options();
    let file = options.append(true).create(true).mode(MODE).custom_flags(flags).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("is a symbolic link; expected a file"),
        Some(libc::ENXIO) => io::Error::other("is no file"),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("is no file")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn log_is_written_only_to_regular_files() {
        let name = format!("tradewind-log-file-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        open_append(&file).unwrap().write_all(b"one\n").unwrap();
        open_append(&file).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(open_append(&link).unwrap_err().to_string().contains("symbolic link"));
        assert!(open_append(Path::new("/dev/null")).is_err());
        assert!(open_append(&folder).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
