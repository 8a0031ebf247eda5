use tracing::callsite::Identifier;
use tracing_subscriber::layer::SubscriberExt;

use super::*;

struct Seen(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Seen {
    fn on_event(&self, event: &Event<'_>, _: LayerContext<'_, S>) {
        let mut about = About::default();
        event.record(&mut about);
        self.0.lock().push(about.message);
    }
}

/// Returns two kinds.
fn kinds() -> [Identifier; 2] {
    struct Site(u8);
    impl tracing::Callsite for Site {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}
        fn metadata(&self) -> &tracing::Metadata<'_> {
            unreachable!("kind {} is never looked at", self.0)
        }
    }
    static ONE: Site = Site(1);
    static TWO: Site = Site(2);
    [Identifier(&ONE), Identifier(&TWO)]
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn one_object_gets_a_few_and_then_ever_fewer() {
    let ([kind, _], start) = (kinds(), Instant::now());
    let mut limits = Limits::default();
    let mut passed = Vec::new();
    // 10 a second for two hours.
    for tenth in 0..72_000_u64 {
        let now = start + Duration::from_millis(tenth * 100);
        if limits.pass(now, &kind, "/srv/tank/file") {
            passed.push(tenth / 10);
        }
    }
    assert_eq!(passed[..OBJECT_BURST as usize], [0; OBJECT_BURST as usize]);
    assert!(passed.len() < 30, "{passed:?}");
    let last = passed[passed.len() - 1] - passed[passed.len() - 2];
    assert_eq!(last, PAUSE_MAX.as_secs(), "{passed:?}");
    // Another object of the same kind still passes, and so does the first one after a quiet time.
    assert!(limits.pass(start + seconds(7_200), &kind, "/srv/tank/other"));
    let later = start + seconds(7_200) + PAUSE_MAX * OBJECT_BURST;
    for n in 0..OBJECT_BURST {
        assert!(limits.pass(later, &kind, "/srv/tank/file"), "{n}");
    }
    assert!(!limits.pass(later, &kind, "/srv/tank/file"));
}

#[test]
fn what_comes_now_and_then_is_never_held_back() {
    let ([kind, _], start) = (kinds(), Instant::now());
    let mut limits = Limits::default();
    for minute in 0..10_000 {
        assert!(limits.pass(start + seconds(60) * minute, &kind, "snapshot"), "{minute}");
    }
}

#[test]
fn many_objects_are_one_kind_and_take_bounded_memory() {
    let ([kind, other], start) = (kinds(), Instant::now());
    let mut limits = Limits::default();
    let passed = (0..100_000).filter(|n| limits.pass(start, &kind, &n.to_string())).count();
    assert_eq!(passed, KIND_BURST as usize);
    assert!(limits.objects.len() <= OBJECTS_MAX && limits.held_back.len() <= OBJECTS_MAX);
    assert!(limits.pass(start, &other, "1"), "another kind is heard");
    for n in 0..50_000_u32 {
        if !limits.pass(start, &kind, &n.to_string()) {
            limits.hold_back(start, &kind, &n.to_string(), Level::WARN, "damaged");
        }
    }
    assert!(limits.held_back.len() <= KIND_BURST as usize + 1, "{}", limits.held_back.len());
    // Objects that were quiet for long are forgotten when new ones come.
    for n in 0..3 * OBJECTS_MAX {
        limits.pass(start + PAUSE_MAX * (KIND_BURST * n as u32 / 8), &other, &format!("x{n}"));
        assert!(limits.objects.len() <= OBJECTS_MAX);
    }
}

#[test]
fn what_is_held_back_is_counted_and_told_with_its_time() {
    let ([kind, other], start) = (kinds(), Instant::now());
    let mut limits = Limits::default();
    for n in 0..4_634_u32 {
        let now = start + Duration::from_micros(u64::from(n) * 640);
        if !limits.pass(now, &kind, "17") {
            let is_new = limits.hold_back(now, &kind, "17", Level::WARN, "a page is damaged");
            assert_eq!(is_new, n == OBJECT_BURST);
        }
    }
    limits.hold_back(start, &other, "5", Level::ERROR, "cannot write");
    let (none, next) = limits.due(start + seconds(1));
    assert_eq!((none.len(), next), (0, Some(start + SUMMARY_AFTER)));
    let (told, next) = limits.due(start + seconds(4));
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(told[0], "a page is damaged: 4,629 more like this in 3 s");
    assert_eq!(told[1], "cannot write: 1 more like this in 4 s");
    assert_eq!((told.len(), next), (2, None));
}

#[test]
fn all_layers_are_spared_and_hear_the_count() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let layer = LimitLayer::default();
    let subscriber = tracing_subscriber::registry().with(Seen(Arc::clone(&seen))).with(layer.clone());
    tracing::subscriber::with_default(subscriber, || {
        for page in 0..1_000 {
            tracing::warn!(inode = 17, page, "a page is damaged");
            tracing::debug!(page, "debugging is not limited");
        }
        tracing::warn!(inode = 18, "a page is damaged");
    });
    let heard = |text: &str| seen.lock().iter().filter(|message| *message == text).count();
    assert_eq!(heard("a page is damaged"), OBJECT_BURST as usize + 1);
    assert_eq!(heard("debugging is not limited"), 1_000);
    let (told, _) = layer.0.limits.lock().due(Instant::now() + seconds(60));
    assert_eq!((told[0].count, told[0].object.as_str()), (995, "17"));
}

#[test]
fn objects_are_named_by_the_most_exact_field_and_not_at_length() {
    let seen = LimitLayer::default();
    let subscriber = tracing_subscriber::registry().with(seen.clone());
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..7 {
            tracing::warn!(pool = "tank", path = "x".repeat(10_000), count = 3, "{}", "m".repeat(10_000));
        }
    });
    let (told, _) = seen.0.limits.lock().due(Instant::now() + seconds(60));
    assert!(told[0].object.contains("xxx") && told[0].object.len() <= OBJECT_BYTES_MAX);
    assert!(told[0].message.len() <= OBJECT_BYTES_MAX);
}
