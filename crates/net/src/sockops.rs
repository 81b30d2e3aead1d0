//! Loading of a `sockops` program of `bpf/` into the kernel, with errors of one line.

use std::fs::File;
use std::io;

use aya::Ebpf;
use aya::programs::{CgroupAttachMode, SockOps};

use crate::error::{NetError, Result};

/// Returns the error of a failed `action` in our words.
pub(crate) fn refused(action: &str, error: &dyn std::error::Error) -> NetError {
    match root_cause(error) {
        // EACCES comes from the verifier, whatever the capabilities.
        cause if cause.raw_os_error() == Some(libc::EPERM) => NetError::NotPermitted {
            action: "put a sockops program into the kernel",
            needs: "it takes the capabilities CAP_BPF and CAP_NET_ADMIN \
                    outside every user namespace",
        },
        cause => NetError::system(format!("{action} the sockops program"), cause),
    }
}

/// Loads `program` of a parsed file, and attaches it to a control group until the file is dropped
/// or the process dies.
///
/// # Errors
/// Without CAP_BPF and CAP_NET_ADMIN, and where the kernel's verifier refuses it.
pub(crate) fn attach(file: &mut Ebpf, program: &str, group: File) -> Result<()> {
    let sockops: &mut SockOps = file
        .program_mut(program)
        .expect("the object file has this program")
        .try_into()
        .expect("it is a sockops program");
    sockops.load().map_err(|error| refused("load", &error))?;
    // A link coexists with others by itself, and is refused when it asks for that.
    sockops.attach(group, CgroupAttachMode::Single).map_err(|error| refused("attach", &error))?;
    Ok(())
}

/// Returns the kernel's error at the end of a chain of causes, or the whole chain as text.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> io::Error {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(system) = error.downcast_ref::<io::Error>() {
            return match system.raw_os_error() {
                Some(number) => io::Error::from_raw_os_error(number),
                None => io::Error::new(system.kind(), system.to_string()),
            };
        }
        words = format!("{words}: {error}");
        cause = error.source();
    }
    io::Error::other(words.split_whitespace().collect::<Vec<_>>().join(" "))
}
