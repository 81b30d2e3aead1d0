//! Successors that processes ask for, which are started with the agent's own rights.

use std::time::Instant;

use tradewind_control::message::{Document, STARTER_SOCKET};
use tradewind_net::handover::starter::Starter;

use super::{Supervisor, Unit, command};
use crate::AgentError;
use crate::home::PendingSignal;
use crate::sessions::{place, run_as};

impl Supervisor {
    /// Listens for processes that ask for their successors, as the user of the first process of the
    /// document. They start them themselves where there is no socket, or it is another user's.
    pub(super) fn listen_for_requests(&mut self, document: &Document) {
        let user = document.processes.first().map(run_as);
        let is_new = |user: &String| self.starter.as_ref().is_none_or(|(of, _)| of != user);
        let Some(user) = user.filter(is_new) else { return };
        match place(&self.home.data().join(STARTER_SOCKET), &user, Starter::bind) {
            Ok(starter) => self.starter = Some((user, starter)),
            Err(error) => tracing::warn!("{STARTER_SOCKET}: {error}"),
        }
    }

    /// Starts the successors that processes ask for which were told to start them: one at each
    /// upgrade, and none for a process that others have taken over.
    pub(super) fn start_successors(&mut self) {
        let Some((_, starter)) = &mut self.starter else { return };
        let units = &self.units;
        let requests = starter.requests(|process| units.values().any(|it| it.may_ask(process)));
        for request in requests {
            let asks = |(_, unit): &(&String, &mut Unit)| unit.may_ask(request.process());
            let Some((name, unit)) = self.units.iter_mut().find(asks) else { continue };
            let started =
                command(&self.home, &self.program, (name, unit.kind)).and_then(|mut command| {
                    let started = request.start(&mut command);
                    started.map_err(|error| AgentError::file(&self.program, error))
                });
            match started {
                Ok(child) => {
                    tracing::info!("process `{name}` has its successor started: {}", child.id());
                    unit.successor = Some(child.id());
                    self.children.push(child);
                }
                Err(error) => tracing::warn!("successor of process `{name}`: {error}"),
            }
        }
    }

    /// Kills the successor of a process if it has not become ready in time: nobody waits for it any
    /// more. Its ready line must have been looked for before.
    pub(super) fn kill_late_successor(&mut self, unit: &mut Unit, now: Instant) {
        if unit.upgrading.is_some_and(|until| until <= now) {
            let late = unit.successor.take();
            let child = self.children.iter_mut().find(|child| Some(child.id()) == late);
            // It may have ended by itself.
            let _gone = child.map(std::process::Child::kill);
        }
    }

    /// Ends the upgrade of a process whose successor, the running one by now, is ready. One that
    /// the process has started itself lacks the rights that this has given up: it is upgraded
    /// again, once.
    pub(super) fn end_upgrade(&self, unit: &mut Unit) {
        let is_ours = unit.running.map(|running| running.process) == unit.successor;
        let could_ask = unit.upgrading.is_some() && self.starter.is_some();
        unit.is_repeated = could_ask && !is_ours && !unit.is_repeated;
        if unit.is_repeated {
            unit.due = PendingSignal::Upgrade;
        }
        (unit.upgrading, unit.successor) = (None, None);
    }
}

impl Unit {
    /// Returns whether its process is this one, and may have a successor started.
    fn may_ask(&self, process: u32) -> bool {
        self.upgrading.is_some()
            && self.successor.is_none()
            && self.running.is_some_and(|running| running.process == process)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use tradewind_config::Kind;
    use tradewind_net::descriptor;
    use tradewind_net::processes::Running;
    use tradewind_units::Duration;

    use super::super::tests::{document, script};
    use super::*;
    use crate::Home;

    /// A supervisor in a folder of its own, which goes with it.
    struct Trial(Supervisor);

    impl Trial {
        fn new(name: &str) -> Self {
            let name = format!("tradewind-{name}-{}", std::process::id());
            let place = std::env::temp_dir().join(name);
            let _none = fs::remove_dir_all(&place);
            let home = Home::at(&place).unwrap();
            drop(home.lock().unwrap());
            home.data_key().unwrap();
            Self(Supervisor::new(home, "/bin/sh".into()).unwrap())
        }

        fn apply(&mut self, config: &str) {
            // Told to start anew, it says that it is ready again, as a successor does that it has
            // started itself.
            let relay = script("echo told >>told; echo {}");
            self.0.apply(&document(config, &relay), Instant::now()).unwrap();
        }

        fn unit(&mut self) -> &mut Unit {
            self.0.units.get_mut("relay").unwrap()
        }

        /// Looks until the relay has printed so many lines.
        fn until_lines(&mut self, lines: usize) {
            let begun = Instant::now();
            while self.unit().lines < lines {
                self.0.look(Instant::now());
                assert!(begun.elapsed() < Duration::from_secs(60), "never");
                std::thread::sleep(Duration::from_millis(5));
            }
        }

        /// Adds a successor that was started for the process, whose time is over.
        fn add_late(&mut self, command: &mut Command) -> Running {
            let child = command.spawn().unwrap();
            let running = Running::of(child.id()).unwrap();
            self.unit().successor = Some(child.id());
            self.unit().upgrading = Some(Instant::now());
            self.0.children.push(child);
            running
        }
    }

    impl Drop for Trial {
        fn drop(&mut self) {
            for child in &mut self.0.children {
                let _gone = child.kill().and_then(|()| child.wait());
            }
            let _gone = fs::remove_dir_all(self.0.home.path());
        }
    }

    #[test]
    fn successor_of_the_process_itself_is_replaced_once() {
        let mut trial = Trial::new("replaced");
        trial.apply("workers = 1");
        trial.until_lines(1);
        trial.apply("workers = 2");
        trial.until_lines(3);
        trial.0.look(Instant::now());
        assert_eq!((trial.unit().due, trial.unit().upgrading), (PendingSignal::Nothing, None));
        let told = fs::read_to_string(trial.0.home.data().join("told")).unwrap();
        assert_eq!(told, "told\ntold\n");
    }

    #[test]
    fn successor_is_killed_unless_it_has_become_ready() {
        let mut trial = Trial::new("late");
        trial.apply("workers = 1");
        trial.until_lines(1);
        // The agent has not looked since, and it is ready.
        let mut next = command(&trial.0.home, &trial.0.program, ("relay", Kind::Relay)).unwrap();
        let next = trial.add_late(&mut next);
        let ready = trial.0.home.ready("relay");
        while fs::read_to_string(&ready).unwrap().matches('\n').count() < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        trial.0.look(Instant::now());
        assert_eq!(trial.unit().running, Some(next));
        let unit = trial.unit();
        assert_eq!((&unit.failure, unit.due), (&None, PendingSignal::Nothing));
        assert!(next.is_running());

        let hangs = trial.add_late(Command::new("sleep").arg("60"));
        trial.0.look(Instant::now());
        assert!(trial.unit().failure.is_some());
        let begun = Instant::now();
        while hangs.is_running() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it goes on");
        }
        assert!(next.is_running());
    }

    #[test]
    fn process_has_one_successor_when_it_was_told_to() {
        let mut trial = Trial::new("asks");
        trial.apply("workers = 1");
        let socket = trial.0.home.data().join(STARTER_SOCKET);
        drop(File::create(trial.0.home.ready("relay")).unwrap());
        trial.unit().running = Running::of(std::process::id());
        let (_here, there) = UnixStream::pair().unwrap();
        // Returns the number of the successor.
        let ask = |trial: &mut Trial| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            descriptor::send(&stream, &[there.as_fd()]).unwrap();
            trial.0.start_successors();
            stream.set_nonblocking(true).unwrap();
            let mut number = [0; 4];
            stream.read_exact(&mut number).ok().map(|()| u32::from_be_bytes(number))
        };
        assert_eq!(ask(&mut trial), None, "nobody has told it");
        trial.unit().upgrading = Some(Instant::now());
        let started = ask(&mut trial);
        assert_eq!(started, trial.0.children.first().map(std::process::Child::id));
        assert!(started.is_some());
        assert_eq!(ask(&mut trial), None);
        assert_eq!(trial.0.children.len(), 1);
    }

    #[test]
    fn socket_is_placed_anew_for_another_user() {
        let mut trial = Trial::new("users");
        let mut inode = |config: &str| {
            trial.apply(config);
            fs::metadata(trial.0.home.data().join(STARTER_SOCKET)).unwrap().ino()
        };
        let first = inode("workers = 1");
        assert_eq!(inode("workers = 2"), first);
        let other = inode("run_as = 'nobody'");
        assert_ne!(other, first);
        assert_eq!(inode("run_as = 'nobody'\nworkers = 2"), other);
    }
}
