//! The kill switch: a file beside the control socket. While it is there, nothing is given out, across restarts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::TunerError;
use crate::control::make_directory_of;

/// What its name ends in.
const ENDING: &str = "off";

/// The switch of the daemon whose control socket it was made from.
#[derive(Debug, Clone)]
pub struct Switch(PathBuf);

impl Switch {
    /// That of the daemon with this control socket: its name, with the ending `.off`.
    ///
    /// # Errors
    /// When the socket itself has a switch's name, and so would turn everything off.
    pub fn beside(socket: &Path) -> Result<Self, TunerError> {
        let switch = socket.with_extension(ENDING);
        if switch == socket {
            return Err(TunerError::SwitchName(switch));
        }
        Ok(Self(switch))
    }

    /// Whether everything is to start by default.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.0.exists()
    }

    /// Turns it, whether or not there ever was a daemon; a running daemon finds it within a round, or at once by [`crate::Request::Switch`].
    ///
    /// # Errors
    /// When the file cannot be made or removed.
    pub fn turn(&self, off: bool) -> Result<(), TunerError> {
        let turned = if off {
            make_directory_of(&self.0)
                .and_then(|()| fs::write(&self.0, "tradewind jumpstart: off\n"))
        } else {
            match fs::remove_file(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            }
        };
        turned.map_err(|source| TunerError::Switch { path: self.0.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_can_be_turned_before_there_ever_was_a_daemon() {
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
    fn a_socket_is_not_its_own_switch() {
        let error = Switch::beside(Path::new("/run/x.off")).unwrap_err().to_string();
        assert!(
            error.starts_with("control socket /run/x.off: ") && !error.contains('\n'),
            "{error}"
        );
        assert!(Switch::beside(Path::new("off")).is_ok());
    }
}
