//! Memory files without a name: nothing is left behind, even if this process is killed.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Context;

/// Creates a file that holds `content`, positioned at its beginning.
pub(crate) fn file(content: &[u8]) -> anyhow::Result<File> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = MADE.fetch_add(1, Relaxed);
    let path = format!("/dev/shm/tradewind-bench-{}-{number}", std::process::id());
    let open = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
    let mut file = open.with_context(|| format!("make {path}"))?;
    std::fs::remove_file(&path).with_context(|| format!("remove {path}"))?;
    file.write_all(content).with_context(|| format!("write {path}"))?;
    file.rewind().with_context(|| format!("rewind {path}"))?;
    Ok(file)
}
