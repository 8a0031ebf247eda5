//! Logging of a server: structured lines on standard error, and a ring of the last events. The ring is written to
//! files, and later servers of the pool continue it ([`crate::event_log`]). Commands have warnings told to their user.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event as Traced, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use super::limits;
use crate::control::Event;
use crate::event_log::EventLog;
use crate::failure::{Context as _, Result};
use crate::raw;
use crate::stderr::write_line;

/// Largest number of events in the ring.
const RING_EVENTS: usize = 4096;
/// Longest text of one event in the ring, in bytes.
const TEXT_BYTES_MAX: usize = 2048;
/// Longest wait that a client may ask for.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The last events of all servers of the pool, numbered from 1.
#[derive(Default)]
pub struct Ring {
    events: Mutex<VecDeque<Event>>,
    more: Condvar,
    writing: Mutex<Option<JoinHandle<()>>>,
    /// True if no more events come.
    finished: AtomicBool,
}

impl Ring {
    /// Returns the events after number `after`, oldest first, and the number of events lost since `after`; waits up to
    /// `wait` for one.
    pub(crate) fn after(&self, after: u64, wait: Duration) -> (Vec<Event>, u64) {
        let mut events = self.events.lock();
        let waits = !wait.is_zero() && !self.finished.load(Ordering::Acquire);
        if events.back().is_none_or(|last| last.number <= after) && waits {
            self.more.wait_for(&mut events, wait.min(WAIT_MAX));
        }
        let first = events.front().map_or(0, |event| event.number);
        let lost = first.saturating_sub(after.saturating_add(1));
        (events.iter().filter(|event| event.number > after).cloned().collect(), lost)
    }

    /// Continues the events that earlier servers have kept, and writes new ones to `log` in a thread of its own, so
    /// that no logging thread waits for a file system.
    pub(crate) fn keep(self: &Arc<Self>, log: EventLog, kept: Vec<Event>) -> Result<()> {
        let mut events = self.events.lock();
        let own = std::mem::take(&mut *events);
        let before = kept.last().map_or(0, |last| last.number);
        let first = kept.len().saturating_sub(RING_EVENTS - RING_EVENTS / 4);
        events.extend(kept.into_iter().skip(first));
        events.extend(
            own.into_iter().map(|event| Event { number: before.saturating_add(event.number), ..event }),
        );
        while events.len() > RING_EVENTS {
            events.pop_front();
        }
        drop(events);
        let ring = Arc::clone(self);
        let writing = thread::Builder::new().name("events".into()).spawn(move || ring.write_to(log, before));
        *self.writing.lock() = Some(writing.context(|| "cannot start a thread".into())?);
        Ok(())
    }

    /// Writes the events after number `written`, to the end. A failure is reported once, on standard error only: as an
    /// event it would come back here.
    fn write_to(&self, mut log: EventLog, mut written: u64) {
        let mut refused = false;
        loop {
            // The flag is read first, so that everything logged before it was set is written.
            let finished = self.finished.load(Ordering::Acquire);
            let (events, _) = self.after(written, if finished { Duration::ZERO } else { WAIT_MAX });
            for event in &events {
                written = event.number;
                let failed = log.append(event).err().filter(|_| !std::mem::replace(&mut refused, true));
                if let Some(error) = failed {
                    write_line(&format!("events are not kept: {error}"));
                }
            }
            if finished {
                return;
            }
        }
    }

    /// Waits until all logged events are written.
    pub(crate) fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        // The lock is taken so that a thread that is about to wait does not miss the signal.
        drop(self.events.lock());
        self.more.notify_all();
        if self.writing.lock().take().is_some_and(|writing| writing.join().is_err()) {
            write_line("the thread that keeps events panicked");
        }
    }

    fn push(&self, mut event: Event) {
        let mut events = self.events.lock();
        event.number = events.back().map_or(1, |last| last.number + 1);
        if events.len() == RING_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
        drop(events);
        self.more.notify_all();
    }
}

/// The layer that fills a ring.
struct RingLayer(Arc<Ring>);

impl<S: Subscriber> Layer<S> for RingLayer {
    fn on_event(&self, traced: &Traced<'_>, _: Context<'_, S>) {
        let mut collector = Collector::default();
        traced.record(&mut collector);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.push(Event {
            number: 0,
            time_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            level: traced.metadata().level().to_string(),
            target: traced.metadata().target().to_owned(),
            message: collector.message,
            fields: collector.fields,
        });
    }
}

#[derive(Default)]
struct Collector {
    message: String,
    fields: Vec<(String, String)>,
}

impl Visit for Collector {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let mut text = String::new();
        // Writing to a String fails only where a Debug implementation does; what it wrote so far is kept.
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let mut end = value.len().min(TEXT_BYTES_MAX);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        let value = value[..end].to_owned();
        if field.name() == "message" {
            self.message = value;
        } else {
            self.fields.push((field.name().to_owned(), value));
        }
    }
}

/// Starts logging to standard error, without times if the journal adds them, and to the ring.
pub fn start() -> Arc<Ring> {
    let ring = Arc::new(Ring::default());
    let filter = EnvFilter::try_from_env("PAGEFOLD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Its report of a line that could not be written would be an eprintln!, which panics where that fails, too.
    let lines = tracing_subscriber::fmt::layer().log_internal_errors(false);
    let lines = lines.with_writer(std::io::stderr).with_ansi(false);
    let to_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let lines = if to_journal { lines.without_time().boxed() } else { lines.boxed() };
    let started = tracing_subscriber::registry().with(filter).with(lines).with(RingLayer(Arc::clone(&ring)));
    let started = started.with(limits::layer()).try_init();
    if let Err(error) = started {
        write_line(&format!("logging does not work: {error}"));
    }
    ring
}

/// The layer that tells the user of a command.
struct TellLayer(fn(&str));

impl<S: Subscriber> Layer<S> for TellLayer {
    fn on_event(&self, traced: &Traced<'_>, _: Context<'_, S>) {
        let mut collector = Collector::default();
        traced.record(&mut collector);
        let mut line = collector.message;
        for (name, value) in collector.fields {
            // Errors say themselves what they are.
            let follows = if name == "error" { format!(": {value}") } else { format!(", {name} {value}") };
            line.push_str(&follows);
        }
        (self.0)(&raw::printable(&line));
    }
}

/// Has each warning and error that Pagefold's crates log told by `tell`, as one line: for a command, whose user would
/// not learn of them otherwise. A process that calls [`start`] does not call this.
pub fn tell_warnings(tell: fn(&str)) {
    let own = Targets::new().with_target("pagefold", LevelFilter::WARN);
    let started = tracing_subscriber::registry().with(TellLayer(tell).with_filter(own)).try_init();
    if let Err(error) = started {
        tell(&format!("warnings are not told: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_told_as_one_line() {
        static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let layer = TellLayer(|line| TOLD.lock().push(line.to_owned()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(path = %"/a\nb", error = %"no such file", "a file stays");
        });
        assert_eq!(*TOLD.lock(), [r"a file stays, path /a\nb: no such file"]);
    }

    #[test]
    fn the_ring_keeps_the_last_and_counts_the_lost() {
        let ring = Arc::new(Ring::default());
        let subscriber = tracing_subscriber::registry().with(RingLayer(Arc::clone(&ring)));
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..RING_EVENTS + 10 {
                tracing::warn!(n, path = %"/x", "event {n}");
            }
        });
        let (events, lost) = ring.after(0, Duration::ZERO);
        assert_eq!((events.len(), lost), (RING_EVENTS, 10));
        assert_eq!(events[0].number, 11);
        assert_eq!(events[0].message, "event 10");
        assert_eq!(events[0].fields, [("n".into(), "10".into()), ("path".into(), "/x".into())]);
        assert_eq!(events[0].level, "WARN");
        let (events, lost) = ring.after(RING_EVENTS as u64 + 8, Duration::ZERO);
        assert_eq!((events.len(), lost), (2, 0));
        assert!(ring.after(u64::MAX, Duration::from_millis(5)).0.is_empty());
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let ring = Arc::new(Ring::default());
        let subscriber = tracing_subscriber::registry().with(RingLayer(Arc::clone(&ring)));
        let long = "ä".repeat(TEXT_BYTES_MAX);
        tracing::subscriber::with_default(subscriber, || tracing::info!(x = long.as_str(), "a"));
        assert!(ring.after(0, Duration::ZERO).0[0].fields[0].1.len() <= TEXT_BYTES_MAX);
    }
}
