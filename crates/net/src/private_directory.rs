//! Directories in which daemons keep their sockets and switches, and where other users with write
//! permission could redirect a privileged process to foreign files.
//!
//! Root acts in the directory of a service with the rights of that service's user, and never in
//! those of people.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, geteuid, setfsgid, setfsuid, unlinkat};

/// Write permissions for a file's group and for others, and the sticky bit, by which everybody
/// removes only their own files.
const WRITABLE_FOR_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// User ids of services: those created by the system's packages, and those that systemd assigns to
/// a service while it runs (`DynamicUser=`).
const OF_PACKAGES: std::ops::Range<u32> = 1..1000;
const OF_SYSTEMD: std::ops::RangeInclusive<u32> = 61_184..=65_519;

/// A directory that only this user and root can change, or that separates users' files as `/tmp`
/// does. All actions take place in this very directory, even if its path changes.
#[derive(Debug)]
pub struct PrivateDirectory {
    directory: OwnedFd,
    /// The user whose rights are used there; absent for this process's own.
    service: Option<(Uid, Gid)>,
}

impl PrivateDirectory {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// When it belongs to another user (for root: another person), when others may write there, or
    /// when it is a symbolic link or no directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let user = geteuid();
        let (directory, found) = open_directory(path)?;
        let owner = found.st_uid;
        if owner == user.as_raw() || owner == 0 {
            return Ok(Self { directory, service: None });
        }
        let is_service = OF_PACKAGES.contains(&owner) || OF_SYSTEMD.contains(&owner);
        if user.is_root() && is_service {
            let service = Some((Uid::from_raw(owner), Gid::from_raw(found.st_gid)));
            return Ok(Self { directory, service });
        }
        let problem = format!("the directory belongs to user {owner}; act as that user there");
        Err(io::Error::new(ErrorKind::PermissionDenied, problem))
    }

    /// Opens the directory at `path`, and creates it before, accessible only to its owner, if it is
    /// missing.
    ///
    /// # Errors
    /// As [`PrivateDirectory::open`], and when it cannot be created.
    pub fn make(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).or_else(|error| {
            // A link to a directory is refused below, with its own message.
            if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
        })?;
        Self::open(path)
    }

    /// Writes the file `name`. An existing file is overwritten only if it is a regular file of this
    /// user.
    ///
    /// # Errors
    /// When something else is there, or the file cannot be written.
    pub fn write(&self, name: &OsStr, contents: &[u8]) -> io::Result<()> {
        let acting = Acting::as_of(self.service);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mode = Mode::from_bits_truncate(0o644);
        let file = openat(&self.directory, name, flags | OFlag::O_CLOEXEC, mode).map_err(named)?;
        let found = fstat(&file)?;
        if kind(&found) != SFlag::S_IFREG || found.st_uid != acting.user.as_raw() {
            let problem = "something else is there, or a file of another user";
            return Err(io::Error::new(ErrorKind::PermissionDenied, problem));
        }
        let mut file = File::from(file);
        file.set_len(0)?;
        file.write_all(contents)
    }

    /// Removes the file `name`, if it exists.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        let _acting = Acting::as_of(self.service);
        match unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(nix::Error::ENOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether `name` exists, even as a dangling link.
    #[must_use]
    pub fn has(&self, name: &OsStr) -> bool {
        fstatat(self.directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }
}

/// The file system user and group of this thread, restored when dropped.
struct Acting {
    user: Uid,
    own: Option<(Uid, Gid)>,
}

impl Acting {
    fn as_of(service: Option<(Uid, Gid)>) -> Self {
        let Some((user, group)) = service else { return Self { user: geteuid(), own: None } };
        // The group first: the right to change it is lost with root's user id.
        let own_group = setfsgid(group);
        let own_user = setfsuid(user);
        Self { user, own: Some((own_user, own_group)) }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        if let Some((user, group)) = self.own {
            setfsuid(user);
            setfsgid(group);
        }
    }
}

/// Refuses a path whose directory is a symbolic link, or writable for others than its owner: any
/// user might answer there. The owner of the directory does not matter.
///
/// # Errors
/// The problem with it.
pub fn check_place_of(path: &Path) -> io::Result<()> {
    match path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        Some(directory) => open_directory(directory).map(drop),
        None => Ok(()),
    }
}

fn open_directory(path: &Path) -> io::Result<(OwnedFd, FileStat)> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_PATH;
    let directory = open(path, flags, Mode::empty()).map_err(named)?;
    let found = fstat(&directory)?;
    if found.st_mode & WRITABLE_FOR_OTHERS != 0 && found.st_mode & STICKY == 0 {
        let problem = format!("others may write there (mode {:o})", found.st_mode & 0o7777);
        return Err(io::Error::new(ErrorKind::PermissionDenied, problem));
    }
    Ok((directory, found))
}

fn kind(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT
}

/// Returns the kernel's error about a link that is not followed, in words.
fn named(error: nix::Error) -> io::Error {
    match error {
        nix::Error::ELOOP | nix::Error::ENOTDIR => {
            io::Error::new(ErrorKind::PermissionDenied, "is a symbolic link, or no directory")
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let name = format!("tradewind-private-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _none = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn private_file_is_written_and_removed() {
        let folder = folder("own");
        let directory = PrivateDirectory::make(&folder.join("deep").join("er")).unwrap();
        let name = OsStr::new("switch");
        assert!(!directory.has(name));
        directory.write(name, b"a longer text").unwrap();
        directory.write(name, b"off\n").unwrap();
        assert!(directory.has(name));
        let file = folder.join("deep/er/switch");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "off\n");
        directory.remove(name).unwrap();
        directory.remove(name).unwrap();
        assert!(!directory.has(name));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn symbolic_link_is_not_followed() {
        let folder = folder("link");
        let (real, link, victim) =
            (folder.join("real"), folder.join("link"), folder.join("victim"));
        std::fs::create_dir(&real).unwrap();
        std::fs::write(&victim, "precious").unwrap();
        symlink(&real, &link).unwrap();
        assert!(PrivateDirectory::make(&link).unwrap_err().to_string().contains("symbolic link"));
        assert!(check_place_of(&link.join("x.sock")).is_err());
        symlink(&victim, real.join("switch")).unwrap();
        let directory = PrivateDirectory::open(&real).unwrap();
        assert!(directory.write(OsStr::new("switch"), b"off\n").is_err());
        assert!(directory.has(OsStr::new("switch")));
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn shared_directory_is_refused() {
        let folder = folder("other");
        let open = folder.join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o770)).unwrap();
        let problem = PrivateDirectory::open(&open).unwrap_err().to_string();
        assert!(problem.contains("others may write there (mode 770)"), "{problem}");
        assert!(check_place_of(&open.join("x.sock")).is_err());
        if !geteuid().is_root() {
            return crate::skipped("only root gives a directory away");
        }
        let theirs = folder.join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(12345), None).unwrap();
        let problem = PrivateDirectory::open(&theirs).unwrap_err().to_string();
        assert!(problem.contains("belongs to user 12345"), "{problem}");
        check_place_of(&theirs.join("x.sock")).unwrap();
        // For a service's directory root acts with the service's rights.
        chown(&theirs, Some(999), Some(999)).unwrap();
        let name = OsStr::new("switch");
        let directory = PrivateDirectory::open(&theirs).unwrap();
        directory.write(name, b"off\n").unwrap();
        let written = std::fs::metadata(theirs.join("switch")).unwrap();
        assert_eq!((written.uid(), written.gid()), (999, 999));
        std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o500)).unwrap();
        assert!(directory.remove(name).is_err(), "root may, the service may not");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
