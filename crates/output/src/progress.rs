//! Progress on standard error: bars on a terminal, a line per step elsewhere; and lines between.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// A receiver of a run's progress.
pub trait Observer {
    /// Reports that a step of `total` units begins; the previous one has ended.
    fn begin(&mut self, step: &str, total: u64);
    /// Reports that `done` units of the step are finished.
    fn advance_to(&mut self, done: u64);
    /// Reports a message in one line. Ignored by default.
    fn report(&mut self, _line: &str) {}
}

/// The progress display of a long command.
#[derive(Default)]
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Creates an empty display.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the step and leaves its line.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }
}

impl Observer for Progress {
    fn begin(&mut self, step: &str, total: u64) {
        self.end();
        if !std::io::stderr().is_terminal() {
            super::note(format_args!("{step} ..."));
            return;
        }
        let bar = ProgressBar::new(total.max(1));
        let template = "{msg:44!} [{bar:30}] {percent:>3} % {elapsed:>4}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(step.to_owned());
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        self.bar = Some(bar);
    }

    fn advance_to(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }

    fn report(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => super::note(line),
        }
    }
}
