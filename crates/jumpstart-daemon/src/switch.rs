//! The kill switch: a file beside the control socket. While it exists, nothing is set, across
//! restarts.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use tradewind_net::private_directory::PrivateDirectory;

use crate::DaemonError;
use crate::control::directory_of;

/// Extension of its name.
const ENDING: &str = "off";

/// The switch of the daemon whose control socket it was made from.
#[derive(Debug, Clone)]
pub struct Switch(PathBuf);

impl Switch {
    /// Returns the switch of the daemon with this control socket: its name with the extension
    /// `.off`.
    ///
    /// # Errors
    /// When the socket itself has a switch's name, and so would turn everything off.
    pub fn beside(socket: &Path) -> Result<Self, DaemonError> {
        let switch = socket.with_extension(ENDING);
        if switch == socket {
            return Err(DaemonError::SwitchName(switch));
        }
        Ok(Self(switch))
    }

    /// Returns whether everything is to start by default.
    #[must_use]
    pub fn is_off(&self) -> bool {
        // A link counts whatever it points to: to start by default does no harm.
        self.0.symlink_metadata().is_ok()
    }

    /// Turns it, whether or not there ever was a daemon; a running daemon reads it within a round,
    /// or at once by [`crate::Request::Switch`].
    ///
    /// # Errors
    /// When the file cannot be made or removed, or when others could have put something else in its
    /// place: its directory is another user's, or open to others, or a link.
    pub fn turn(&self, off: bool) -> Result<(), DaemonError> {
        self.write(off).map_err(|source| DaemonError::Switch { path: self.0.clone(), source })
    }

    fn write(&self, off: bool) -> io::Result<()> {
        let name = self.0.file_name().unwrap_or(OsStr::new(ENDING));
        if off {
            let directory = PrivateDirectory::make(directory_of(&self.0))?;
            return directory.write(name, b"tradewind jumpstart: off\n");
        }
        match PrivateDirectory::open(directory_of(&self.0)) {
            Ok(directory) => directory.remove(name),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn switch_works_before_any_daemon() {
        let directory = std::env::temp_dir().join(format!("tw-switch-{}", std::process::id()));
        let switch = Switch::beside(&directory.join("deep").join("jumpstart.sock")).unwrap();
        assert!(!switch.is_off());
        switch.turn(false).unwrap();
        switch.turn(true).unwrap();
        assert!(switch.is_off());
        switch.turn(false).unwrap();
        assert!(!switch.is_off());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn symbolic_link_is_not_followed() {
        let name = format!("tw-switch-link-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let victim = directory.join("victim");
        fs::write(&victim, "precious").unwrap();
        let socket = directory.join("jumpstart.sock");
        std::os::unix::fs::symlink(&victim, socket.with_extension("off")).unwrap();
        let switch = Switch::beside(&socket).unwrap();
        assert!(switch.is_off());
        assert!(switch.turn(true).is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        switch.turn(false).unwrap();
        assert!(!switch.is_off() && victim.exists());
        let link = directory.join("link");
        fs::create_dir(directory.join("real")).unwrap();
        std::os::unix::fs::symlink(directory.join("real"), &link).unwrap();
        let error = Switch::beside(&link.join("a.sock")).unwrap().turn(true).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        assert!(!directory.join("real").join("a.off").exists());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn socket_is_not_its_own_switch() {
        let error = Switch::beside(Path::new("/run/x.off")).unwrap_err().to_string();
        assert!(
            error.starts_with("control socket /run/x.off: ") && !error.contains('\n'),
            "{error}"
        );
        assert!(Switch::beside(Path::new("off")).is_ok());
    }
}
