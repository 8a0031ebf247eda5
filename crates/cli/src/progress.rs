//! Progress of what can take longer than a second: on standard error, if it is a terminal, and only once it does.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

/// Nothing is drawn before this.
const DELAY: Duration = Duration::from_millis(700);

/// A progress bar or counter that appears late.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: Mutex<bool>,
}

impl Progress {
    /// Something counted, with no known end.
    pub fn counter(what: &'static str) -> Self {
        Self::new(
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()),
            "{spinner} {human_pos} {msg}",
            what,
        )
    }

    /// Bytes out of a total that may become known later.
    pub fn bytes(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        Self::new(bar, "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} eta {eta}", what)
    }

    /// Bytes with no known end.
    pub fn flow(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self::new(bar, "{spinner} {msg} {bytes} {binary_bytes_per_sec}", what)
    }

    fn new(bar: ProgressBar, template: &str, what: &'static str) -> Self {
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        Self { bar, started: Instant::now(), shown: Mutex::new(false) }
    }

    /// `more` have been done.
    pub fn step(&self, more: u64) {
        self.appear();
        self.bar.inc(more);
    }

    /// `done` of `total` have been done.
    pub fn at(&self, done: u64, total: u64) {
        self.appear();
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Takes it off the screen.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn appear(&self) {
        let mut shown = self.shown.lock();
        if !*shown && self.started.elapsed() > DELAY && std::io::stderr().is_terminal() {
            *shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}
