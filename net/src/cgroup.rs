//! The control group that this process is in.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{NetError, Result};

/// Opens the directory of this process's control group (version 2): sockets belong to it from
/// their creation on.
///
/// # Errors
/// When no hierarchy of version 2 is mounted, or its directory cannot be opened.
pub fn open_own() -> Result<File> {
    let read = |path: &str| {
        fs::read_to_string(path).map_err(|source| NetError::system(format!("read {path}"), source))
    };
    let path = path_of(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?).ok_or(
        NetError::Unsupported {
            ability: "control group of version 2",
            needs: "a mounted cgroup2 file system",
        },
    )?;
    File::open(&path).map_err(|source| NetError::system(format!("open {}", path.display()), source))
}

/// The group's directory. In a container the mount may show less than the whole hierarchy; then
/// its top is the best that can be had.
fn path_of(mountinfo: &str, cgroup: &str) -> Option<PathBuf> {
    let mount = mountinfo.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        back.starts_with("cgroup2 ").then(|| front.split(' ').nth(4))?
    })?;
    let group = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let own = Path::new(mount).join(group.trim_start_matches('/'));
    Some(if own.is_dir() { own } else { PathBuf::from(mount) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_and_the_group_make_the_path() {
        let mounts = "24 1 0:22 / /proc rw - proc proc rw\n\
                      30 25 0:27 / /tmp rw,nosuid shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(path_of(mounts, "3:cpu:/x\n0::/\n"), Some("/tmp/".into()));
        assert_eq!(path_of(mounts, "0::/not/shown/here\n"), Some("/tmp".into()));
        assert_eq!(path_of("24 1 0:22 / /proc rw - proc proc rw", "0::/\n"), None);
        assert_eq!(path_of(mounts, "3:cpu:/x\n"), None);
    }
}
