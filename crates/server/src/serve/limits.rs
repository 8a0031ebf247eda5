//! Limits the log: one user who does one thing again and again must not push everything else out of the log and of the
//! events.
//!
//! Events are counted by **kind** (the place in the program that they come from) and by **object** (the file, device,
//! dataset or user that they are about). Each object of a kind may log a few events at once and then ever fewer
//! ([`Bucket`]); a kind may log more, over all of its objects. Events that are held back are counted, and a thread
//! reports the counts: "4,629 more like this in 3 s". Debugging is not limited.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, LazyLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context as LayerContext;

use crate::failure::{Context, Result};

/// Number of events that pass at once, for one object and for all objects of a kind.
const OBJECT_BURST: u32 = 5;
const KIND_BURST: u32 = 200;
/// Pause after which one more event passes; it doubles whenever a bucket is used up.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Shortest time from the first held-back event to the report of their count.
const SUMMARY_AFTER: Duration = Duration::from_secs(3);
/// Largest number of objects that are remembered; beyond that only the limit of the kind holds.
const OBJECTS_MAX: usize = 1024;
/// Longest name of an object, in bytes.
const OBJECT_BYTES_MAX: usize = 256;
/// Fields that name the object of an event, the most exact first.
const OBJECT_FIELDS: [&str; 11] =
    ["path", "file", "inode", "device", "uid", "snapshot", "dataset", "name", "dir", "pool", "request"];
/// Text that precedes a number in the text of a request; the number is different each time.
const UNIQUE: &str = ", unique ";
/// Target of the reports of counts, which are never held back themselves.
const SUMMARY_TARGET: &str = "pagefold::limits";

/// A token bucket for events: some pass at once, then one after each pause. The pause doubles whenever the bucket is
/// used up, and is short again once the bucket is full.
#[derive(Clone, Debug)]
struct Bucket {
    burst: u32,
    left: u32,
    pause: Duration,
    counted: Instant,
}

impl Bucket {
    fn new(burst: u32, now: Instant) -> Self {
        Self { burst, left: burst, pause: PAUSE_MIN, counted: now }
    }

    fn refill(&mut self, now: Instant) {
        let pauses = now.saturating_duration_since(self.counted).as_millis() / self.pause.as_millis();
        let more = u32::try_from(pauses).unwrap_or(u32::MAX).min(self.burst - self.left);
        self.left += more;
        if self.left == self.burst {
            self.pause = PAUSE_MIN;
            self.counted = now;
        } else {
            self.counted += self.pause * more;
        }
    }

    fn has_one(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left > 0
    }

    fn take(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    fn is_full(&self) -> bool {
        self.left == self.burst
    }
}

/// Count of events that were held back, of one object or of many objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Summary {
    level: Level,
    message: String,
    object: String,
    count: u64,
    time: Duration,
}

/// Events that were held back and are not reported yet.
#[derive(Debug)]
struct HeldBack {
    level: Level,
    message: String,
    count: u64,
    since: Instant,
    tell_at: Instant,
}

type Key = (Identifier, String);

/// The buckets and counts. It has no clock of its own: callers tell the time.
#[derive(Default)]
struct Limits {
    kinds: HashMap<Identifier, Bucket>,
    objects: HashMap<Key, Bucket>,
    held_back: HashMap<Key, HeldBack>,
}

impl Limits {
    /// Returns true if an event may pass.
    fn pass(&mut self, now: Instant, kind: &Identifier, object: &str) -> bool {
        let key = (kind.clone(), object.to_owned());
        if self.objects.len() >= OBJECTS_MAX && !self.objects.contains_key(&key) {
            self.forget(now);
        }
        let kind = self.kinds.entry(kind.clone()).or_insert_with(|| Bucket::new(KIND_BURST, now));
        if !kind.has_one(now) {
            return false;
        }
        if self.objects.contains_key(&key) || self.objects.len() < OBJECTS_MAX {
            let object = self.objects.entry(key).or_insert_with(|| Bucket::new(OBJECT_BURST, now));
            if !object.has_one(now) {
                return false;
            }
            object.take();
        }
        kind.take();
        true
    }

    /// Forgets objects that had no events for so long that their buckets are full.
    fn forget(&mut self, now: Instant) {
        self.objects.retain(|_, bucket| {
            bucket.refill(now);
            !bucket.is_full()
        });
    }

    /// Counts an event that may not pass. Returns true if it is the first one of a new count.
    fn hold_back(
        &mut self,
        now: Instant,
        kind: &Identifier,
        object: &str,
        level: Level,
        message: &str,
    ) -> bool {
        let known = self.objects.contains_key(&(kind.clone(), object.to_owned()));
        // Objects that are not remembered share one count.
        let key = (kind.clone(), if known { object.to_owned() } else { String::new() });
        if let Some(held) = self.held_back.get_mut(&key) {
            held.count += 1;
            return false;
        }
        let pause = self.objects.get(&key).map_or(PAUSE_MIN, |bucket| bucket.pause);
        let after = if pause <= PAUSE_MIN * 2 { SUMMARY_AFTER } else { pause };
        let held =
            HeldBack { level, message: message.to_owned(), count: 1, since: now, tell_at: now + after };
        self.held_back.insert(key, held);
        true
    }

    /// Returns the counts that are due, and the time at which the next ones are.
    fn due(&mut self, now: Instant) -> (Vec<Summary>, Option<Instant>) {
        let due: Vec<Key> = self
            .held_back
            .iter()
            .filter(|(_, held)| held.tell_at <= now)
            .map(|(key, _)| key.clone())
            .collect();
        let mut summaries: Vec<Summary> = due
            .into_iter()
            .filter_map(|key| {
                let held = self.held_back.remove(&key)?;
                let HeldBack { level, message, count, since, .. } = held;
                Some(Summary { level, message, object: key.1, count, time: now - since })
            })
            .collect();
        summaries.sort_by(|a, b| (&a.message, &a.object).cmp(&(&b.message, &b.object)));
        (summaries, self.held_back.values().map(|held| held.tell_at).min())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, seconds) = (grouped(self.count), self.time.as_secs().max(1));
        write!(f, "{}: {count} more like this in {seconds} s", self.message)
    }
}

/// Formats a number with its digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[derive(Default)]
struct SharedLimits {
    limits: Mutex<Limits>,
    /// Signalled when a new count has begun.
    more: Condvar,
}

/// The layer that holds events back, from all layers of the subscriber.
#[derive(Clone, Default)]
pub(crate) struct LimitLayer(Arc<SharedLimits>);

/// The layer of this process.
static LAYER: LazyLock<LimitLayer> = LazyLock::new(LimitLayer::default);

/// Returns the layer, which has to be registered.
pub(crate) fn layer() -> LimitLayer {
    LAYER.clone()
}

/// Starts to report what [`layer`] has held back.
pub(crate) fn start_logging_counts() -> Result<()> {
    LAYER.start_logging()
}

impl LimitLayer {
    /// Reports counts from now on, in a thread of its own, as long as the layer exists. Events that were held back
    /// before are included. To be called after this process has confined itself.
    fn start_logging(&self) -> Result<()> {
        let shared = Arc::downgrade(&self.0);
        let thread = thread::Builder::new().name("log-limits".into()).spawn(move || log_counts(&shared));
        thread.map(drop).context(|| "cannot start a thread".into())
    }
}

/// Longest interval at which the reporting thread checks that its layer still exists.
const LOOK: Duration = Duration::from_secs(60);

fn log_counts(shared: &Weak<SharedLimits>) {
    while let Some(shared) = shared.upgrade() {
        let mut limits = shared.limits.lock();
        let (summaries, next) = limits.due(Instant::now());
        if summaries.is_empty() {
            let until = next.unwrap_or_else(|| Instant::now() + LOOK).min(Instant::now() + LOOK);
            shared.more.wait_until(&mut limits, until);
            continue;
        }
        drop(limits);
        for summary in summaries {
            let object = summary.object.as_str();
            match summary.level {
                Level::ERROR => tracing::error!(target: SUMMARY_TARGET, object, "{summary}"),
                Level::WARN => tracing::warn!(target: SUMMARY_TARGET, object, "{summary}"),
                _ => tracing::info!(target: SUMMARY_TARGET, object, "{summary}"),
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for LimitLayer {
    fn event_enabled(&self, event: &Event<'_>, _: LayerContext<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == SUMMARY_TARGET {
            return true;
        }
        let mut about = About::default();
        event.record(&mut about);
        let (kind, now) = (metadata.callsite(), Instant::now());
        let mut limits = self.0.limits.lock();
        if limits.pass(now, &kind, &about.object) {
            return true;
        }
        let is_new = limits.hold_back(now, &kind, &about.object, *metadata.level(), &about.message);
        drop(limits);
        if is_new {
            self.0.more.notify_all();
        }
        false
    }
}

/// The message and the object of an event.
#[derive(Default)]
struct About {
    message: String,
    object: String,
    rank: Option<usize>,
}

impl Visit for About {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let rank = OBJECT_FIELDS.iter().position(|name| *name == field.name());
        let is_message = field.name() == "message";
        if !is_message && rank.is_none_or(|rank| self.rank.is_some_and(|known| known <= rank)) {
            return;
        }
        let mut text = Short::default();
        // Writing stops where the text gets too long, and what was written so far is kept.
        let _ = write!(text, "{value:?}");
        if is_message {
            self.message = text.0;
        } else {
            if let Some(at) = text.0.find(UNIQUE) {
                text.0.truncate(at);
            }
            (self.object, self.rank) = (text.0, rank);
        }
    }
}

/// A text of bounded length.
#[derive(Default)]
struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = OBJECT_BYTES_MAX - self.0.len();
        let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= room).last();
        self.0.push_str(&text[..end.unwrap_or_default()]);
        if end.unwrap_or_default() == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests;
