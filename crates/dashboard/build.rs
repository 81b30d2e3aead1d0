//! Lists the files of `web/dist`, which `make web` builds; without them one page that says so.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let variable = |name: &str| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let package = variable("CARGO_MANIFEST_DIR");
    let dist = package.join("../../web/dist");
    println!("cargo::rerun-if-changed=build.rs");
    // The folder is always there, as it holds a file of the repository.
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    if dist.join("index.html").exists() {
        collect(&dist, "", &mut files)?;
    } else {
        files.push(("/index.html".to_owned(), package.join("src/absent.html")));
    }
    files.sort();
    let mut list = String::from("&[\n");
    for (name, path) in files {
        let path = path.canonicalize()?;
        let _ = writeln!(list, "({name:?}, include_bytes!({path:?})),");
    }
    list.push(']');
    fs::write(variable("OUT_DIR").join("files.rs"), list)
}

/// Adds the files of a folder, and of those in it, by the paths at which they are served.
fn collect(folder: &Path, at: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{at}/{name}");
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &name, files)?;
        } else {
            files.push((name, entry.path()));
        }
    }
    Ok(())
}
