//! Shows progress of work that can take longer than a second: on standard error, if that is a terminal, and only after
//! a delay.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagefold_server::discovery::{self, Search, SearchEvent};
use pagefold_server::failure::Result;
use pagefold_server::{raw, stderr};
use parking_lot::Mutex;

/// Delay before anything is drawn.
const DELAY: Duration = Duration::from_millis(700);

/// A progress bar or counter that appears late.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: Mutex<bool>,
}

impl Progress {
    /// Creates a counter without a known end.
    pub fn counter(what: &'static str) -> Self {
        Self::new(
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()),
            "{spinner} {human_pos} {msg}",
            what,
        )
    }

    /// Creates a bar for bytes; the total may become known later.
    pub fn bytes(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        Self::new(bar, "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} eta {eta}", what)
    }

    /// Creates a counter of bytes without a known end.
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

    /// Adds `more` to what has been done.
    pub fn step(&self, more: u64) {
        self.appear();
        self.bar.inc(more);
    }

    /// Sets what has been done, and the total.
    pub fn at(&self, done: u64, total: u64) {
        self.appear();
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Removes the progress from the screen.
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

/// Finds pools as [`discovery::scan`] does, shows how many devices were looked at, and tells which it waits for.
pub fn scan(paths: &[PathBuf]) -> Result<Search> {
    let progress = Progress::counter("devices looked at");
    let found = discovery::scan(paths, &mut |event| match event {
        SearchEvent::Looked => progress.step(1),
        SearchEvent::Waiting(device) => stderr::write_line(&format!(
            "waiting for {}, which does not answer; without an answer it is left out",
            raw::shown(device)
        )),
    })?;
    progress.finish();
    Ok(found)
}
