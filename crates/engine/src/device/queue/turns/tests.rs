use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const ALL: Limit = Limit { requests: 16, from_ns: 0 };
const ONE: Limit = Limit { requests: 1, from_ns: 0 };

fn waiting_classes() -> Vec<IoClass> {
    IoClass::ALL.into_iter().filter(|class| class.waits()).collect()
}

/// Begins what goes next; returns its number.
fn go(order: &mut TurnOrder, now_ns: u64, limit: Limit) -> Option<u64> {
    let number = order.next(now_ns, limit)?;
    assert_eq!(order.begin(number, (1, 4096), limit), 1);
    Some(number)
}

#[test]
fn reads_that_somebody_waits_for_commits_and_checkpoints_never_wait() {
    let never: Vec<IoClass> = IoClass::ALL.into_iter().filter(|class| !class.waits()).collect();
    assert_eq!(never, [IoClass::SyncRead, IoClass::Log, IoClass::AsyncWrite]);
}

#[test]
fn no_class_has_more_in_flight_than_it_may() {
    for class in waiting_classes() {
        let mut order = TurnOrder::default();
        for at in 0..40 {
            order.arrive(class, at, 0);
        }
        let most = class.terms().unwrap().most;
        // Not even if their deadlines have passed.
        for now_ns in [0, 100_000 * MS] {
            while go(&mut order, now_ns, Limit { requests: 1000, from_ns: 0 }).is_some() {}
            assert_eq!(order.in_flight(), most, "{class:?}");
        }
        order.end(class, 1);
        assert!(go(&mut order, 0, Limit { requests: 1000, from_ns: 0 }).is_some());
    }
}

#[test]
fn a_request_goes_at_its_deadline_whatever_the_others_take() {
    let mut order = TurnOrder::default();
    let scrub = order.arrive(IoClass::Scrub, 0, 0);
    order.arrive(IoClass::AsyncRead, 0, 0);
    assert!(go(&mut order, 0, ONE).is_some_and(|first| first != scrub), "the larger share");
    assert_eq!(order.next(999 * MS, ONE), None, "one is in flight");
    assert_eq!(order.changes_ns(ONE), Some(1000 * MS));
    assert_eq!(order.next(1000 * MS, Limit { requests: 0, from_ns: 0 }), None, "the queue listens");
    assert_eq!(go(&mut order, 1000 * MS, ONE), Some(scrub));
}

#[test]
fn requests_of_a_group_of_deadlines_go_by_address() {
    let mut order = TurnOrder::default();
    for offset in [70, 10, 90, 30] {
        order.arrive(IoClass::Cleaning, offset, 0);
    }
    let later = order.arrive(IoClass::Cleaning, 0, 50 * MS);
    let mut gone = Vec::new();
    while let Some(number) = go(&mut order, 60 * MS, ALL) {
        gone.push(number);
        order.end(IoClass::Cleaning, 1);
    }
    assert_eq!(gone, [2, 4, 1, 3, later]);
}

#[test]
fn nobody_begins_before_the_allowance_lets_it() {
    let mut order = TurnOrder::default();
    order.arrive(IoClass::Filling, 0, 0);
    let limit = Limit { requests: 1, from_ns: 20 * MS };
    assert_eq!((order.next(19 * MS, limit), order.changes_ns(limit)), (None, Some(20 * MS)));
    assert!(go(&mut order, 20 * MS, limit).is_some());
}

#[test]
fn what_is_hurried_goes_whatever_the_allowance() {
    let mut order = TurnOrder::default();
    order.arrive(IoClass::AsyncRead, 0, 0);
    let cleaning = order.arrive(IoClass::Cleaning, 0, 0);
    order.hurry(IoClass::Cleaning, true);
    assert_eq!(go(&mut order, 0, Limit { requests: 0, from_ns: 0 }), Some(cleaning));
    let cleaning = order.arrive(IoClass::Cleaning, 0, 0);
    order.hurry(IoClass::Cleaning, false);
    assert_ne!(go(&mut order, 0, Limit { requests: 4, from_ns: 0 }), Some(cleaning));
}

#[test]
fn many_begin_at_once_only_if_nobody_else_waits() {
    let mut order = TurnOrder::default();
    let scrub = order.arrive(IoClass::Scrub, 0, 0);
    assert_eq!(order.begin(scrub, (40, 4096), ALL), 16);
    order.end(IoClass::Scrub, 16);
    let scrub = order.arrive(IoClass::Scrub, 0, 0);
    assert_eq!(order.begin(scrub, (3, 4096), ALL), 3);
    let scrub = order.arrive(IoClass::Scrub, 0, 0);
    order.arrive(IoClass::Filling, 0, 0);
    assert_eq!(order.begin(scrub, (40, 4096), ALL), 1);
}

/// Serves requests of all classes, of which there are always some, one at a time, each in less than its deadline; returns
/// the number of each class.
fn serve(classes: &[IoClass], rounds: u64) -> BTreeMap<u8, u64> {
    let (mut order, mut of) = (TurnOrder::default(), BTreeMap::new());
    for class in classes {
        of.insert(order.arrive(*class, 0, 0), *class);
    }
    let mut served: BTreeMap<u8, u64> = BTreeMap::new();
    for _ in 0..rounds {
        let number = go(&mut order, 0, ONE).unwrap();
        let class = of.remove(&number).unwrap();
        *served.entry(class as u8).or_default() += 1;
        order.end(class, 1);
        of.insert(order.arrive(class, 0, 0), class);
    }
    served
}

#[test]
fn classes_go_by_their_shares() {
    let classes = waiting_classes();
    let served = serve(&classes, 2300);
    for class in classes {
        let (share, served) = (class.terms().unwrap().share, served[&(class as u8)]);
        assert!(served.abs_diff(share * 100) < 20, "{class:?}: {served}");
    }
}

#[test]
fn a_class_that_comes_back_has_no_claim_on_the_time_before() {
    let mut order = TurnOrder::default();
    for _ in 0..100 {
        let number = order.arrive(IoClass::Scrub, 0, 0);
        order.begin(number, (1, 1 << 20), ALL);
        order.end(IoClass::Scrub, 1);
    }
    order.arrive(IoClass::Scrub, 0, 0);
    let mut scrubs = 0;
    for _ in 0..20 {
        let filling = order.arrive(IoClass::Filling, 0, 0);
        if go(&mut order, 0, ONE) != Some(filling) {
            scrubs += 1;
            order.end(IoClass::Scrub, 1);
            order.arrive(IoClass::Scrub, 0, 0);
            assert_eq!(go(&mut order, 0, ONE), Some(filling));
        }
        order.end(IoClass::Filling, 1);
    }
    assert!(scrubs > 3, "{scrubs}");
}

proptest! {
    /// Requests of any class come at any time; the device serves up to `requests` of them, each in `took`. Whoever waits
    /// longer than its deadline does so only because as many as that are before it.
    #[test]
    fn nobody_starves(
        arrivals in prop::collection::vec((0_usize..6, 0_u64..1 << 30, 0_u64..40), 1..200),
        requests in 1_u32..5,
        took_ms in 1_u64..20,
    ) {
        let classes = waiting_classes();
        let mut order = TurnOrder::default();
        let limit = Limit { requests, from_ns: 0 };
        let mut coming: Vec<(u64, IoClass, u64)> = Vec::new();
        let mut at_ns = 0;
        for (class, offset, after_ms) in &arrivals {
            at_ns += after_ms * MS;
            coming.push((at_ns, classes[*class % classes.len()], *offset));
        }
        coming.reverse();
        let mut waiting: BTreeMap<u64, (IoClass, u64)> = BTreeMap::new();
        let mut at_device: Vec<(u64, IoClass)> = Vec::new();
        let (mut now_ns, mut gone) = (0, 0);
        while gone < arrivals.len() {
            while let Some((at_ns, class, offset)) = coming.pop_if(|(at_ns, ..)| *at_ns <= now_ns) {
                waiting.insert(order.arrive(class, offset, at_ns), (class, at_ns));
            }
            at_device.retain(|(end_ns, class)| {
                let ended = *end_ns <= now_ns;
                if ended {
                    order.end(*class, 1);
                }
                !ended
            });
            while let Some(number) = go(&mut order, now_ns, limit) {
                let (class, _) = waiting.remove(&number).unwrap();
                at_device.push((now_ns + took_ms * MS, class));
                gone += 1;
            }
            for (class, since_ns) in waiting.values() {
                let terms = class.terms().unwrap();
                let of_class = at_device.iter().filter(|(_, of)| of == class).count();
                let overdue = now_ns > since_ns + terms.deadline_ns;
                prop_assert!(!overdue || of_class == terms.most as usize, "{class:?} starves");
            }
            for class in &classes {
                let of_class = at_device.iter().filter(|(_, of)| of == class).count();
                prop_assert!(of_class <= class.terms().unwrap().most as usize);
            }
            // Either something ends, or comes, or falls due.
            let ends = at_device.iter().map(|(end_ns, _)| *end_ns);
            let comes = coming.last().map(|(at_ns, ..)| *at_ns);
            let next = ends.chain(comes).chain(order.changes_ns(limit)).filter(|at_ns| *at_ns > now_ns).min();
            match next {
                Some(at_ns) => now_ns = at_ns,
                None => prop_assert!(waiting.is_empty(), "nobody would wake {waiting:?}"),
            }
        }
    }
}
