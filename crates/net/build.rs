//! Compiles the programs of `bpf/` for the kernel's virtual machine.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of `bpf/`, without their extension.
const PROGRAMS: [&str; 2] = ["initial_window", "jumpstart"];

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo sets it"));
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed=../../bpf/helpers.h");
    for program in PROGRAMS {
        let source = Path::new("../../bpf").join(program).with_extension("c");
        println!("cargo::rerun-if-changed={}", source.display());
        if let Err(problem) = compile(&source, &out.join(program).with_extension("o")) {
            println!("cargo::error={problem}");
            std::process::exit(1);
        }
    }
}

fn compile(source: &Path, object: &Path) -> Result<(), String> {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let mut command = Command::new(&clang);
    // Debian keeps the kernel's `asm/` headers in a folder of the architecture, which clang does
    // not search for another target. Those of this machine do: programs of other ones differ in
    // nothing that they declare.
    let machine = std::env::consts::ARCH;
    command.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-c"]);
    // What is shipped names no folder of the machine that built it.
    command.arg("-fdebug-compilation-dir=.");
    command.arg(format!("-I/usr/include/{machine}-linux-gnu")).arg(source).arg("-o").arg(object);
    let output = command.output().map_err(|error| {
        format!(
            "cannot run `{clang}`, which compiles {}: {error}. Install it (Debian: clang, or \
             scripts/setup.sh) or name another by the environment variable CLANG",
            source.display()
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(format!("{clang} refused {}: {}", source.display(), words.replace('\n', " | ")))
}
