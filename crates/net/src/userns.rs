//! A user namespace in which an ordinary user is root over networks created inside.
//!
//! [`become_root_inside`] must run before any thread is started: the kernel refuses it afterwards.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getegid, geteuid};

use crate::error::{NetError, Result};

const FORBIDDEN: &str = "without the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN (which root \
                         outside a container has) \
    it needs one, and the kernel or the container forbids it \
    (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
    kernel.apparmor_restrict_unprivileged_userns)";
const DENIED: &str = "its rights are denied by this system's policy \
    (kernel.apparmor_restrict_unprivileged_userns); without it the process needs the capabilities \
    CAP_NET_ADMIN and CAP_SYS_ADMIN, which root outside a container has";

/// Moves this process, and all its later children, into a new user and network namespace in which
/// its user is root. Files and processes outside keep their owners.
///
/// # Errors
/// When the kernel or its administrator forbids it, or threads are already running.
pub fn become_root_inside() -> Result<()> {
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        Errno::EINVAL => NetError::NotPermitted {
            action: "make a user namespace",
            needs: "it must happen before this process starts threads",
        },
        Errno::EPERM | Errno::ENOSPC | Errno::EACCES => {
            NetError::NotPermitted { action: "make a user namespace", needs: FORBIDDEN }
        }
        other => NetError::system("make a user namespace", other),
    })?;
    // An unprivileged process may map its group only after giving up setgroups(2).
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("0 {user} 1"))?;
    write("/proc/self/gid_map", &format!("0 {group} 1"))
}

/// Returns the user namespace of this process, as a descriptor that another process can [`enter`].
///
/// # Errors
/// When `/proc` is not mounted.
pub fn of_this_process() -> Result<OwnedFd> {
    let path = "/proc/self/ns/user";
    let file = fs::File::open(path).map_err(|e| NetError::system(format!("open {path}"), e))?;
    Ok(file.into())
}

/// Moves this process into the user namespace that `descriptor` holds; without effect if it is in
/// it already.
///
/// # Errors
/// When threads are running, or the namespace belongs to another user.
pub fn enter(descriptor: &OwnedFd) -> Result<()> {
    let identity = |path: &str| fs::read_link(path).ok();
    let wanted = identity(&format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    if wanted.is_some() && wanted == identity("/proc/self/ns/user") {
        return Ok(());
    }
    setns(descriptor, CloneFlags::CLONE_NEWUSER)
        .map_err(|errno| NetError::system("enter a user namespace", errno))
}

fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|source| match source.kind() {
        // Ubuntu's AppArmor lets the namespace be created and then denies every right inside.
        std::io::ErrorKind::PermissionDenied => {
            NetError::NotPermitted { action: "become root in a user namespace", needs: DENIED }
        }
        _ => NetError::system(format!("write {path}"), source),
    })
}
