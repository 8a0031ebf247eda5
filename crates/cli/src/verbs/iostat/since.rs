//! Counters between two instants.

use pagefold_server::control::{
    Activity, Counter, DeviceActivity, LatencyFigures, LengthFigures, RequestFigures, RewriteFigures,
};

/// Returns the difference between two instants; a counter that is new, or was reset by a new server, counts from zero.
pub(super) fn difference(before: &Activity, now: &Activity) -> Activity {
    let restarted = now.age_ms < before.age_ms;
    let counters = now.counters.iter().map(|counter| {
        let old = before.counters.iter().find(|old| old.name == counter.name && !restarted);
        Counter {
            name: counter.name.clone(),
            operations: counter.operations.saturating_sub(old.map_or(0, |old| old.operations)),
            bytes: counter.bytes.saturating_sub(old.map_or(0, |old| old.bytes)),
        }
    });
    let rewrites = now.rewrites.iter().map(|rewrites| {
        let old = before.rewrites.iter().find(|old| old.name == rewrites.name && !restarted);
        rewrites_since(old, rewrites)
    });
    let devices = now.devices.iter().map(|device| {
        let is_same = |old: &&DeviceActivity| (old.number, &old.path) == (device.number, &device.path);
        let old = before.devices.iter().find(|old| is_same(old) && !restarted);
        device_since(old, device)
    });
    let age_ms = if restarted { now.age_ms } else { now.age_ms - before.age_ms };
    Activity {
        age_ms,
        counters: counters.collect(),
        rewrites: rewrites.collect(),
        devices: devices.collect(),
        ..*now
    }
}

fn rewrites_since(old: Option<&RewriteFigures>, now: &RewriteFigures) -> RewriteFigures {
    let Some(old) = old else { return now.clone() };
    let lengths = now.lengths.iter().map(|length| {
        let was = old.lengths.iter().find(|was| was.at_most_bytes == length.at_most_bytes);
        let operations = length.operations.saturating_sub(was.map_or(0, |was| was.operations));
        LengthFigures { operations, ..*length }
    });
    RewriteFigures {
        name: now.name.clone(),
        operations: now.operations.saturating_sub(old.operations),
        bytes: now.bytes.saturating_sub(old.bytes),
        lengths: lengths.filter(|length| length.operations > 0).collect(),
    }
}

/// Returns what a device did between two instants. One that was opened anew has done less than before, in one of its
/// figures at least, and counts from zero.
fn device_since(old: Option<&DeviceActivity>, now: &DeviceActivity) -> DeviceActivity {
    fn of<'a>(device: &'a DeviceActivity, wanted: &RequestFigures) -> Option<&'a RequestFigures> {
        device.requests.iter().find(|of| (&of.class, &of.kind) == (&wanted.class, &wanted.kind))
    }
    let goes_on = |old: &DeviceActivity| {
        let has_grown = |was: &RequestFigures| {
            of(now, was).map_or(0, |now| now.operations + now.errors) >= was.operations + was.errors
        };
        old.requests.iter().all(has_grown)
    };
    let old = old.filter(|old| goes_on(old));
    let requests = now.requests.iter().map(|now| match old.and_then(|old| of(old, now)) {
        Some(old) => requests_since(old, now),
        None => now.clone(),
    });
    let (hedged, won) = old.map_or((0, 0), |old| (old.hedged_reads, old.hedges_won));
    DeviceActivity {
        requests: requests.collect(),
        hedged_reads: now.hedged_reads.saturating_sub(hedged),
        hedges_won: now.hedges_won.saturating_sub(won),
        ..now.clone()
    }
}

fn requests_since(old: &RequestFigures, now: &RequestFigures) -> RequestFigures {
    let latencies = now.latencies.iter().map(|latency| {
        let was = old.latencies.iter().find(|was| was.below_ns == latency.below_ns);
        let operations = latency.operations.saturating_sub(was.map_or(0, |was| was.operations));
        LatencyFigures { operations, ..*latency }
    });
    RequestFigures {
        class: now.class.clone(),
        kind: now.kind.clone(),
        waiting: now.waiting,
        in_flight: now.in_flight,
        operations: now.operations.saturating_sub(old.operations),
        bytes: now.bytes.saturating_sub(old.bytes),
        errors: now.errors.saturating_sub(old.errors),
        total_ns: now.total_ns.saturating_sub(old.total_ns),
        latencies: latencies.filter(|latency| latency.operations > 0).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(age_ms: u64, operations: u64) -> Activity {
        Activity {
            age_ms,
            counters: vec![Counter { name: "a".into(), operations, bytes: operations * 10 }],
            rewrites: vec![RewriteFigures {
                name: "a".into(),
                operations: 10 + operations,
                bytes: 0,
                lengths: vec![
                    LengthFigures { at_most_bytes: 99, operations: 10 },
                    LengthFigures { at_most_bytes: 200, operations },
                ],
            }],
            devices: vec![device(operations)],
            ..Activity::default()
        }
    }

    fn device(operations: u64) -> DeviceActivity {
        let latencies = [(1024, 2), (4096, operations)];
        let latencies = latencies.map(|(below_ns, operations)| LatencyFigures { below_ns, operations });
        let requests = RequestFigures {
            class: "log".into(),
            kind: "write".into(),
            waiting: 3,
            in_flight: 1,
            operations: 2 + operations,
            bytes: operations * 4096,
            errors: 0,
            total_ns: operations * 3000,
            latencies: latencies.to_vec(),
        };
        let (number, group, state, path) = (0, 0, "ONLINE".into(), "/dev/sdb".into());
        DeviceActivity {
            number,
            group,
            log: false,
            state,
            path,
            allocated_bytes: 0,
            free_bytes: 0,
            requests: vec![requests],
            hedged_reads: 2 * operations,
            hedges_won: operations,
        }
    }

    #[test]
    fn differences_survive_a_new_server() {
        let delta = difference(&at(1000, 5), &at(3000, 8));
        assert_eq!((delta.age_ms, delta.counters[0].operations, delta.counters[0].bytes), (2000, 3, 30));
        assert_eq!(delta.rewrites[0].operations, 3);
        assert_eq!(delta.rewrites[0].lengths, [LengthFigures { at_most_bytes: 200, operations: 3 }]);
        assert_eq!(delta.devices[0].requests[0].operations, 3);
        let delta = difference(&at(9000, 50), &at(100, 2));
        assert_eq!((delta.age_ms, delta.counters[0].operations), (100, 2));
        assert_eq!(delta.rewrites[0].operations, 12);
        assert_eq!(delta.devices[0].requests[0].operations, 4);
    }

    #[test]
    fn what_is_in_flight_is_no_difference() {
        let delta = device_since(Some(&device(5)), &device(9));
        let [of] = &delta.requests[..] else { panic!("{delta:?}") };
        assert_eq!((of.waiting, of.in_flight), (3, 1));
        assert_eq!((of.operations, of.bytes, of.total_ns), (4, 4 * 4096, 12_000));
        assert_eq!(of.latencies, [LatencyFigures { below_ns: 4096, operations: 4 }]);
        assert_eq!((delta.hedged_reads, delta.hedges_won), (8, 4));
    }

    #[test]
    fn a_device_that_was_opened_anew_counts_from_zero() {
        assert_eq!(device_since(Some(&device(9)), &device(5)), device(5));
        let mut other = device(50);
        other.requests[0].class = "scrub".into();
        assert_eq!(device_since(Some(&device(9)), &other), other);
    }
}
