use proptest::prelude::*;

use super::*;

fn place() -> impl Strategy<Value = Option<(u16, u64)>> {
    proptest::option::of((0..u16::MAX, any::<u64>()))
}

fn subject() -> impl Strategy<Value = Subject> {
    prop_oneof![
        (any::<u64>(), any::<u64>()).prop_map(|(dataset, object)| Subject::Object { dataset, object }),
        (1..u64::MAX).prop_map(|raw| Subject::Record(Addr::from_raw(raw).unwrap())),
        any::<u64>().prop_map(Subject::Directory),
        Just(Subject::Fixed),
        Just(Subject::Log),
    ]
}

fn counts() -> impl Strategy<Value = FaultCounts> {
    any::<[u64; 5]>().prop_map(|[reads, writes, checksums, corrected, repaired]| FaultCounts {
        reads,
        writes,
        checksums,
        corrected,
        repaired,
    })
}

proptest! {
    #[test]
    fn what_is_stored_is_read_again(
        cleared: u64,
        unlisted: u64,
        devices in proptest::collection::vec(counts(), 0..5),
        struck in proptest::collection::vec((subject(), counts(), place(), any::<u64>()), 0..9),
    ) {
        let struck = struck.into_iter().map(|(subject, counts, place, offset)| Struck { subject, counts, place, offset });
        let report = FaultReport { cleared, devices, struck: struck.collect(), unlisted };
        prop_assert_eq!(FaultReport::decode(&report.encode()).unwrap(), report);
    }

    #[test]
    fn hostile_bytes_are_errors(bytes: Vec<u8>) {
        if let Ok(report) = FaultReport::decode(&bytes) {
            prop_assert!(report.devices.len() <= bytes.len() && report.struck.len() <= STRUCK_MAX);
        }
    }
}

#[test]
fn a_count_is_news_when_it_has_doubled() {
    let mut count = 0;
    let news = (0..1024).filter(|_| add(&mut count, 1)).count();
    assert_eq!((count, news), (1024, 11));
    assert!(!add(&mut u64::MAX.clone(), 1));
}

#[test]
fn what_opening_met_before_it_had_read_the_counts_is_added_to_them() {
    let faults = Faults::default();
    let at = DamagedAt::new(1, 4096, None);
    faults.count(FaultKind::Checksum, Subject::Fixed, Some(at), 0);
    let one = FaultCounts { checksums: 1, ..FaultCounts::default() };
    let struck = vec![Struck { subject: Subject::Fixed, counts: one, place: Some((0, 0)), offset: 0 }];
    faults.load(FaultReport { cleared: 3, devices: vec![one], struck, unlisted: 2 });
    let report = faults.report();
    assert_eq!((report.cleared, report.unlisted), (3, 2));
    assert_eq!(report.devices, [one, one]);
    assert_eq!((report.struck[0].counts.checksums, report.struck[0].place), (2, Some((1, 4096))));
    assert!(faults.wants_store());
}

#[test]
fn an_error_that_is_passed_on_is_counted_once_by_device() {
    let faults = Faults::default();
    let error = Error::corrupt_at(DamagedAt::new(0, 0, None), "record", "damaged");
    faults.count_error(&error, Subject::Fixed);
    faults.count_error(&error.counted(), Subject::Directory(5));
    let report = faults.report();
    assert_eq!((report.devices[0].checksums, report.struck.len()), (1, 2));
}
