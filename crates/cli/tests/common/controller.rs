//! A controller that runs in a test's folder.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Files, command};

/// A controller that runs in the folder `net` of a test.
pub(crate) struct Controller {
    pub(crate) files: Files,
    pub(crate) process: Child,
}

impl Controller {
    /// Makes the folder, and starts the controller.
    pub(crate) fn start(test: &str) -> Self {
        let files = Files::new(test);
        let made = files.prints(
            "controller init net --agents 127.0.0.1:0 --api 127.0.0.1:0 \
             --advertise 192.0.2.1:7440",
        );
        assert!(made.contains("tradewind controller run net"), "{made}");
        let process = Self::run(&files);
        Self { files, process }
    }

    /// Starts the process, and writes the port that it got where commands look.
    pub(crate) fn run(files: &Files) -> Child {
        Self::begin(files, &mut command("controller run net", &files.0)).0
    }

    /// Starts the process by a command that logs to the file `log`, and returns it with its
    /// ready message.
    pub(crate) fn begin(files: &Files, command: &mut Command) -> (Child, Value) {
        let log = File::options().create(true).append(true).open(files.0.join("log")).unwrap();
        let mut process = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["ready"], "controller");
        let access = files.read("net/admin.toml");
        let (_, token) = access.split_once('\n').unwrap();
        let api = ready["api"].as_str().unwrap();
        files.write("net/admin.toml", format!("api = \"http://{api}\"\n{token}"));
        (process, ready)
    }

    /// Ends the process by SIGTERM, in order.
    pub(crate) fn end(&mut self) {
        let id = self.process.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _ = self.process.wait();
    }
}
