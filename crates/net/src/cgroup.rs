//! Control groups: the one of this process, the top of the hierarchy, and the kernel's ids of a
//! group and those below it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::error::{NetError, Result};

/// Opens the top of the version 2 hierarchy, as far as this process sees it: every socket of the
/// machine belongs to it.
///
/// # Errors
/// As [`open_own`].
pub fn open_top() -> Result<File> {
    open(&mount_of(&read("/proc/self/mountinfo")?).ok_or(NO_HIERARCHY)?)
}

/// Opens the control group of version 2 whose directory is `path`.
///
/// # Errors
/// When `path` cannot be opened.
pub fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| NetError::system(format!("open {}", path.display()), source))
}

const NO_HIERARCHY: NetError = NetError::Unsupported {
    kernel_feature: "control group of version 2",
    needs: "a mounted cgroup2 file system",
};

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|source| NetError::system(format!("read {path}"), source))
}

/// Opens the directory of this process's control group (version 2), to which its sockets belong
/// from their creation on.
///
/// # Errors
/// When no hierarchy of version 2 is mounted, or its directory cannot be opened.
pub fn open_own() -> Result<File> {
    open(&own()?)
}

/// Returns the directory of this process's control group (version 2).
///
/// # Errors
/// When no hierarchy of version 2 is mounted.
pub fn own() -> Result<PathBuf> {
    path_of(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?).ok_or(NO_HIERARCHY)
}

/// Returns the kernel's ids of the control group (version 2) whose directory is `path` and of all
/// groups below it, as `sock_diag` reports them of sockets: the inodes of their directories.
///
/// # Errors
/// When `path` is no control group of version 2, or cannot be read.
///
/// # Cost
/// Reads each directory.
pub fn numbers_below(path: &Path) -> Result<BTreeSet<u64>> {
    let refused =
        |source| NetError::system(format!("read the control group {}", path.display()), source);
    // Only groups of version 2 have this file.
    if !path.join("cgroup.controllers").is_file() {
        return Err(refused(io::Error::other("no directory of a control group of version 2")));
    }
    let mut numbers = BTreeSet::from([fs::metadata(path).map_err(refused)?.ino()]);
    let mut left = vec![path.to_owned()];
    while let Some(directory) = left.pop() {
        // A group below may be removed while it is read.
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                numbers.insert(entry.ino());
                left.push(entry.path());
            }
        }
    }
    Ok(numbers)
}

/// Returns the mount point of the hierarchy.
fn mount_of(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        back.starts_with("cgroup2 ").then(|| front.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// Returns the group's directory. In a container the mount may show only a part of the hierarchy;
/// then its top is the best available.
fn path_of(mountinfo: &str, cgroup: &str) -> Option<PathBuf> {
    let mount = mount_of(mountinfo)?;
    let group = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let own = mount.join(group.trim_start_matches('/'));
    Some(if own.is_dir() { own } else { mount })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_of_version_2_are_accepted() {
        for path in ["/proc", "/no/such/group"] {
            let error = numbers_below(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains("version 2"), "{error}");
        }
    }

    #[test]
    fn group_path_joins_mount_and_group() {
        let mounts = "24 1 0:22 / /proc rw - proc proc rw\n\
                      30 25 0:27 / /tmp rw,nosuid shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(path_of(mounts, "3:cpu:/x\n0::/\n"), Some("/tmp/".into()));
        assert_eq!(path_of(mounts, "0::/not/shown/here\n"), Some("/tmp".into()));
        assert_eq!(path_of("24 1 0:22 / /proc rw - proc proc rw", "0::/\n"), None);
        assert_eq!(path_of(mounts, "3:cpu:/x\n"), None);
    }
}
