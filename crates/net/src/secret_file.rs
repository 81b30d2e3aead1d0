//! Files that hold secrets.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use zeroize::Zeroizing;

/// Permissions of the group and of others.
const OF_OTHERS: u32 = 0o007;
const OF_GROUP: u32 = 0o070;
/// The group's write permission.
const WRITE_OF_GROUP: u32 = 0o020;

/// Reads the secret text in the file at `path`, at most `most_bytes` of it; it is wiped when
/// dropped.
///
/// As with ssh's keys, others may not have any right to a file of this user. A file of another
/// user, such as one that root lends to this user's group, may be readable to the group.
///
/// # Errors
/// When it cannot be read, when others may, or when it is no text.
pub fn read(path: &Path, most_bytes: usize) -> io::Result<Zeroizing<String>> {
    read_open(&File::open(path)?, most_bytes)
}

/// Writes a secret, with a line end, to a new file that only this user may read.
///
/// # Errors
/// When the file exists, or cannot be written; nothing is left behind then.
pub fn write_new(path: &Path, secret: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut out = options.open(path)?;
    let written = writeln!(out, "{secret}").and_then(|()| out.sync_all());
    if written.is_err() {
        // Half a key is useless, and would block the next attempt.
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Reads an open file like [`read`], from its beginning.
///
/// # Errors
/// As [`read`].
pub fn read_open(file: &File, most_bytes: usize) -> io::Result<Zeroizing<String>> {
    let found = file.metadata()?;
    check(&found)?;
    // A buffer for all of it, as a growing one leaves copies behind.
    let mut bytes = Zeroizing::new(vec![0; most_bytes]);
    let mut filled = 0;
    let mut file = file;
    if found.is_file() {
        io::Seek::rewind(&mut file)?;
    }
    while filled < bytes.len() {
        match file.read(&mut bytes[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    let text = std::str::from_utf8(&bytes[..filled]);
    let text = text.map_err(|_| io::Error::other("not a text file (UTF-8)"))?;
    let mut secret = Zeroizing::new(String::with_capacity(filled));
    secret.push_str(text);
    Ok(secret)
}

/// Checks that others have no right to a file that holds a secret, as [`read`] does.
///
/// # Errors
/// When they have.
pub fn check(found: &Metadata) -> io::Result<()> {
    let is_ours = found.uid() == crate::capability::user_id();
    let rights =
        found.mode() & if is_ours { OF_GROUP | OF_OTHERS } else { OF_OTHERS | WRITE_OF_GROUP };
    if found.is_file() && rights != 0 {
        let mode = found.mode() & 0o7777;
        let problem = format!("others may read or change it (mode {mode:o}); `chmod 600` it");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn readable_secret_is_refused() {
        let name = format!("tradewind-secret-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "secret\n").unwrap();
        for (mode, is_read) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match read(&path, 100) {
                Ok(secret) => assert!(is_read && *secret == "secret\n", "{mode:o}"),
                Err(error) => {
                    let words = format!("(mode {mode:o}); `chmod 600` it");
                    assert!(!is_read && error.to_string().ends_with(&words), "{error}");
                }
            }
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(*read(&path, 3).unwrap(), "sec", "no more than was asked for");
        assert!(write_new(&path, "other").is_err(), "nothing is overwritten");
        std::fs::remove_file(&path).unwrap();
        write_new(&path, "other").unwrap();
        assert_eq!(*read(&path, 100).unwrap(), "other\n", "of mode 600");
        std::fs::remove_file(&path).unwrap();
    }
}
