//! The sandbox of a daemon, from before it serves on: system calls that it never makes are refused
//! (by seccomp), programs that it starts gain no rights, and other processes of its user cannot
//! read it.
//!
//! The list holds refused calls, not allowed ones: an allow-list that misses a call which a library
//! makes once a month would end honest sessions. Refused calls fail with `EPERM`. Threads that read
//! untrusted bytes also start no programs, and keep no capability except those that their sockets
//! need; threads that upgrade the process or run `nft` must start programs.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::OnceLock;

use libc::SECCOMP_RET_ERRNO;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use crate::error::Result;
use crate::privileges::{Capability, keep_in_thread, of_sockets, prctl};
use crate::{NetError, handover};

/// The environment variable that names the filters of the previous process for its successor.
pub(crate) const BOUND_BY: &str = "TRADEWIND_BOUND_BY";

/// `kexec_file_load(2)`, which `libc` lacks for musl on ARM (include/uapi/asm-generic/unistd.h).
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: libc::c_long = 294;
#[cfg(not(target_arch = "aarch64"))]
const KEXEC_FILE_LOAD: libc::c_long = libc::SYS_kexec_file_load;

/// System calls that no daemon of ours makes: they debug others, change the host, or start
/// processes that escape.
const NEVER: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_personality,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_mknodat,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
];

/// System calls that start programs.
const PROGRAMS: &[i64] = &[libc::SYS_execve, libc::SYS_execveat];

/// Flags of `clone` that create namespaces, as `unshare` does.
const NAMESPACES: &[i32] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Requests that inject input into a terminal, which may be root's shell.
const TYPING: &[libc::Ioctl] = &[libc::TIOCSTI, libc::TIOCLINUX];

/// The first number of the x32 system calls on x86.
const FIRST_OF_X32: u32 = 0x4000_0000;

/// The restrictions of this process, once it is restricted.
static BOUND: OnceLock<Bound> = OnceLock::new();

struct Bound {
    /// The name of the filters.
    by: String,
    /// The further filter of threads that read untrusted bytes.
    exposed: BpfProgram,
    /// The capabilities that workers keep.
    of_workers: Vec<Capability>,
}

/// Lets only root read this process's memory, and the kernel write none of it to core files, until
/// the next program is executed.
///
/// # Errors
/// When the kernel refuses.
pub fn hide() -> Result<()> {
    prctl(libc::PR_SET_DUMPABLE, 0, 0).map(drop)
}

/// Reverts [`hide`].
///
/// # Errors
/// When the kernel refuses.
pub fn unhide() -> Result<()> {
    prctl(libc::PR_SET_DUMPABLE, 1, 0).map(drop)
}

/// Restricts this process and all that it starts: its memory is hidden, programs that it starts
/// gain no rights, and the calls above fail. Programs for the kernel may be loaded only with
/// [`Capability::Bpf`] in `keep`. Workers will keep `of_workers` of these capabilities, as far as
/// their sockets need them. To be called before any thread is started.
///
/// A successor that the same filters restrict already gets no second ones: each call passes all
/// filters, and the kernel limits their number.
///
/// # Errors
/// When the kernel refuses a step.
pub fn enter(keep: &[Capability], of_workers: &[Capability]) -> Result<()> {
    hide()?;
    let of_workers = of_sockets(of_workers);
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    let filters = [filter(never(keep)?)?, other_numbers()];
    let by = name_of(&filters);
    if !is_bound_by(&by) {
        filters.iter().try_for_each(|filter| seccompiler::apply_filter(filter).map_err(refused))?;
    }
    let exposed = filter(always(PROGRAMS))?;
    let _again = BOUND.set(Bound { by, exposed, of_workers });
    Ok(())
}

/// Forbids the calling thread, and those that it starts, to start programs, and drops all
/// capabilities except those that workers' sockets need. Nothing changes in a process that is not
/// restricted.
///
/// # Errors
/// When the kernel refuses.
pub fn bind_worker() -> Result<()> {
    BOUND.get().map_or(Ok(()), |bound| bound.bind_thread(&bound.of_workers))
}

/// Restricts a thread as [`bind_worker`] does, without any capability.
///
/// # Errors
/// When the kernel refuses.
pub fn bind_reader() -> Result<()> {
    BOUND.get().map_or(Ok(()), |bound| bound.bind_thread(&[]))
}

/// Runs `start` on a thread that is restricted as by [`bind_reader`], as are those that it starts.
///
/// # Errors
/// When the kernel refuses, or the thread ends by a panic.
pub fn as_reader<T: Send>(start: impl FnOnce() -> T + Send) -> Result<T> {
    let started =
        std::thread::scope(|scope| scope.spawn(|| bind_reader().map(|()| start())).join());
    started.unwrap_or_else(|_| Err(refused(std::io::Error::other("ended by a bug"))))
}

impl Bound {
    fn bind_thread(&self, keep: &[Capability]) -> Result<()> {
        keep_in_thread(keep)?;
        seccompiler::apply_filter(&self.exposed).map_err(refused)
    }
}

/// Returns whether this process is restricted.
#[must_use]
pub fn is_bound() -> bool {
    BOUND.get().is_some()
}

/// Returns whether the previous process has restricted this one, by any filters.
#[must_use]
pub fn is_inherited() -> bool {
    handover::is_successor() && std::env::var_os(BOUND_BY).is_some()
}

/// Returns the name of this process's filters, for its successor.
pub(crate) fn bound_by() -> Option<&'static str> {
    BOUND.get().map(|bound| bound.by.as_str())
}

/// Returns whether the previous process was restricted by these filters, and so this one is.
fn is_bound_by(filters: &str) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let has_filters = status.lines().any(|line| line == "Seccomp:\t2");
    has_filters && is_inherited() && std::env::var(BOUND_BY).is_ok_and(|by| by == filters)
}

/// Returns a name that identifies these filters.
fn name_of(filters: &[BpfProgram]) -> String {
    let mut hasher = DefaultHasher::new();
    for step in filters.iter().flatten() {
        (step.code, step.jt, step.jf, step.k).hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn always(calls: &[i64]) -> Rules {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

/// Returns the rules for system calls that a process with these capabilities never makes.
fn never(keep: &[Capability]) -> Result<Rules> {
    let mut rules = always(NEVER);
    if !keep.contains(&Capability::Bpf) {
        rules.insert(libc::SYS_bpf, Vec::new());
    }
    let with = |argument, operator, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
        condition.and_then(|condition| SeccompRule::new(vec![condition])).map_err(refused)
    };
    let has = |flag: &i32| {
        let flag = u64::from(flag.unsigned_abs());
        with(0, SeccompCmpOp::MaskedEq(flag), flag)
    };
    rules.insert(libc::SYS_clone, NAMESPACES.iter().map(has).collect::<Result<_>>()?);
    let asks = |request: &libc::Ioctl| with(1, SeccompCmpOp::Eq, *request as _);
    rules.insert(libc::SYS_ioctl, TYPING.iter().map(asks).collect::<Result<_>>()?);
    Ok(rules)
}

/// Creates a filter under which these calls fail with `EPERM`.
fn filter(rules: Rules) -> Result<BpfProgram> {
    let not_allowed = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(refused)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, not_allowed, arch);
    filter.and_then(BpfProgram::try_from).map_err(refused)
}

/// Creates a filter for calls that the other one cannot examine. `clone3`, whose flags are in
/// memory, fails as if this kernel did not have it (`ENOSYS`), so that libraries use `clone`; and
/// on x86 the second set of numbers for the same calls (x32) is refused.
fn other_numbers() -> BpfProgram {
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let jump = libc::BPF_JMP | libc::BPF_K;
    let fails = |error: i32| step(libc::BPF_RET, 0, 0, SECCOMP_RET_ERRNO | error.unsigned_abs());
    vec![
        // The call's number is the first field.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(jump | libc::BPF_JGE, 0, 1, FIRST_OF_X32),
        fails(libc::EPERM),
        step(jump | libc::BPF_JEQ, 0, 1, libc::SYS_clone3 as u32),
        fails(libc::ENOSYS),
        step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> NetError {
    NetError::system("seccomp".to_owned(), std::io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::process::Command;

    /// Runs `test` on a thread of its own, so that only that thread is restricted.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    fn no_new_privileges() {
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).unwrap();
    }

    /// Restricts this thread like a process that keeps these capabilities.
    fn bind(keep: &[Capability]) {
        no_new_privileges();
        for filter in [filter(never(keep).unwrap()).unwrap(), other_numbers()] {
            seccompiler::apply_filter(&filter).unwrap();
        }
    }

    /// Makes a system call with these arguments, and returns its error; `None` on success.
    fn call(number: i64, [first, second, third]: [usize; 3]) -> Option<nix::Error> {
        // SAFETY: no test passes an address, and none of the calls that it makes acts without one.
        match unsafe { libc::syscall(number, first, second, third) } {
            0.. => None,
            _ => Some(nix::Error::last()),
        }
    }

    #[test]
    fn unused_calls_are_refused() {
        on_a_thread(|| {
            bind(&[]);
            let unshared = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER);
            assert_eq!(unshared, Err(nix::Error::EPERM));
            let traced = call(libc::SYS_ptrace, [libc::PTRACE_TRACEME as usize, 0, 0]);
            assert_eq!(traced, Some(nix::Error::EPERM));
            assert_eq!(call(libc::SYS_bpf, [9999, 0, 0]), Some(nix::Error::EPERM));
            let by_the_other_number = libc::SYS_getpid | i64::from(FIRST_OF_X32);
            assert_eq!(call(by_the_other_number, [0; 3]), Some(nix::Error::EPERM));
            assert!(Command::new("true").status().unwrap().success());
            assert!(std::net::TcpListener::bind("127.0.0.1:0").is_ok());
        });
    }

    #[test]
    fn loading_programs_needs_the_capability() {
        on_a_thread(|| {
            bind(&[Capability::Bpf]);
            assert_eq!(call(libc::SYS_bpf, [9999, 0, 0]), Some(nix::Error::EINVAL));
        });
    }

    #[test]
    fn clone_makes_no_namespaces_and_threads_go_on() {
        on_a_thread(|| {
            bind(&[]);
            for flag in NAMESPACES {
                // A thread that shares no signal handlers: there is none in any case.
                let flags = (flag | libc::CLONE_VM | libc::CLONE_THREAD).unsigned_abs() as usize;
                assert_eq!(
                    call(libc::SYS_clone, [flags, 0, 0]),
                    Some(nix::Error::EPERM),
                    "{flag:x}"
                );
            }
            assert_eq!(call(libc::SYS_clone3, [0; 3]), Some(nix::Error::ENOSYS));
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
            assert!(Command::new("true").status().unwrap().success());
        });
    }

    #[test]
    fn terminal_injection_is_refused() {
        on_a_thread(|| {
            bind(&[]);
            for request in TYPING {
                // Without a descriptor: the filter is checked first.
                let refused = call(libc::SYS_ioctl, [usize::MAX, *request as usize, 0]);
                assert_eq!(refused, Some(nix::Error::EPERM));
            }
            let other = call(libc::SYS_ioctl, [usize::MAX, libc::FIONREAD as usize, 0]);
            assert_eq!(other, Some(nix::Error::EBADF));
        });
    }

    #[test]
    fn filter_names_are_distinct() {
        let named = |keep: &[Capability]| {
            name_of(&[filter(never(keep).unwrap()).unwrap(), other_numbers()])
        };
        assert_eq!(named(&[]), named(&[Capability::NetAdmin]));
        assert_ne!(named(&[]), named(&[Capability::Bpf]));
        assert!(!is_bound_by(&named(&[])), "no process before this one has told");
    }

    #[test]
    fn worker_starts_no_programs() {
        on_a_thread(|| {
            no_new_privileges();
            seccompiler::apply_filter(&filter(always(PROGRAMS)).unwrap()).unwrap();
            let error = Command::new("true").status().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            // A thread started by a worker is restricted like it.
            let further = std::thread::spawn(|| Command::new("true").status().is_err());
            assert!(further.join().unwrap());
        });
        assert!(Command::new("true").status().unwrap().success(), "others may");
    }
}
