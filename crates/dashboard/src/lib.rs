//! The files of the dashboard, built from `web/`, as a part of the binary.
//!
//! `make web` builds them. A binary that was built before has one page, which says so.

/// The files, by the paths at which they are served.
static FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// A file of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its content.
    pub bytes: &'static [u8],
    /// The type of its content.
    pub content_type: &'static str,
    /// True if its name holds a hash of its content: it never changes.
    pub is_hashed: bool,
}

/// Returns whether the binary holds the dashboard, and not only a page that says how to build it.
#[must_use]
pub fn is_built() -> bool {
    FILES.len() > 1
}

/// Returns the file that is served at a path; `/` is the page itself.
#[must_use]
pub fn file(path: &str) -> Option<File> {
    let path = if path == "/" { "/index.html" } else { path };
    let (name, bytes) = FILES.iter().find(|(name, _)| *name == path)?;
    let is_hashed = name.starts_with("/assets/");
    Some(File { bytes, content_type: content_type(name), is_hashed })
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_there_and_no_other_path() {
        let page = file("/").unwrap();
        assert_eq!(Some(page), file("/index.html"));
        assert_eq!((page.content_type, page.is_hashed), ("text/html; charset=utf-8", false));
        assert!(page.bytes.starts_with(b"<!doctype html>"));
        for path in ["", "/index", "/index.html/", "//index.html", "/../Cargo.toml", "/.gitignore"]
        {
            assert_eq!(file(path), None, "{path}");
        }
    }

    #[test]
    fn each_file_has_a_type() {
        for (name, _) in FILES {
            assert_ne!(content_type(name), "application/octet-stream", "{name}");
        }
    }
}
