//! Helpers that tests of this crate share.

use std::path::{Path, PathBuf};

/// A folder for one test, removed at its end.
pub(crate) struct TestFolder(PathBuf);

impl TestFolder {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("tradewind-controller-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _none = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _none = std::fs::remove_dir_all(&self.0);
    }
}
