use std::sync::Arc;

use super::{Scrub, ScrubState, ScrubStatus};
use crate::device::{Device, InjectedFault, SimDevice, SimOp};
use crate::pool::testing::{PAGE, fresh, open, write};
use crate::pool::{CreateOptions, DeviceState, Guid, OpenOptions, Pool, create_groups_on};
use crate::{Addr, Error};

const PAGES: u64 = 1400;

/// Makes a pool with incompressible pages, a snapshot of them, and half of them written again after it.
fn filled() -> (Arc<SimDevice>, Arc<Pool>) {
    let (device, pool) = fresh();
    write(&pool, 0..PAGES, 1);
    pool.snapshot(&[""], "before", 1).unwrap();
    write(&pool, (0..PAGES).filter(|at| at % 2 == 0), 2);
    (device, pool)
}

fn to_the_end(pool: &Pool) -> ScrubStatus {
    while pool.scrub_step(9).unwrap().is_some() {}
    pool.scrub_status()
}

/// Returns a record of a page that only the snapshot has: its address, and an offset within it.
fn held_by_snapshot(pool: &Pool, at: u64) -> (Addr, u64) {
    let version = pool.version("@before").unwrap();
    let mut ptrs = [None];
    version.tree.pages(4, at, &mut ptrs).unwrap();
    let addr = ptrs[0].unwrap().addr;
    let located = pool.shared.segments.locate(&pool.shared.devices, addr).unwrap();
    (addr, located.offset + 100)
}

#[test]
fn a_sound_pool_is_read_as_a_whole_what_snapshots_hold_included() {
    let (device, pool) = filled();
    assert_eq!(pool.scrub_status(), ScrubStatus::default());
    pool.scrub_start(7, 0).unwrap();
    assert!(matches!(pool.scrub_start(7, 0), Err(Error::Busy(_))));
    let before = device.stats().counts().read_bytes;
    let status = to_the_end(&pool);
    assert_eq!((status.state, status.started, status.finished), (ScrubState::Finished, 7, 9));
    assert_eq!((status.damaged, status.unreadable), (0, 0));
    assert!(status.sound > PAGES + PAGES / 2, "{status:?}");
    assert!(status.done_bytes >= status.total_bytes / 2, "{status:?}");
    let read = device.stats().counts().read_bytes - before;
    assert!(
        read > (PAGES + PAGES / 2) * u64::from(PAGE),
        "{read} bytes were read: the rest came from memory"
    );
    pool.sync().unwrap();
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

#[test]
fn damage_is_found_and_counted_where_only_a_snapshot_refers_to_it() {
    let (device, pool) = filled();
    let (_, offset) = held_by_snapshot(&pool, 2);
    device.flip_bit(offset, 4);
    pool.scrub_start(7, 0).unwrap();
    let status = to_the_end(&pool);
    assert_eq!((status.damaged, status.unreadable), (1, 0));
    assert_eq!(pool.faults().devices[0].checksums, 1);
    // The next scrub begins anew, and finds the same damage.
    pool.scrub_start(8, 0).unwrap();
    assert_eq!(pool.scrub_status().damaged, 0);
    assert_eq!(to_the_end(&pool).damaged, 1);
}

#[test]
fn what_a_device_cannot_read_is_counted_apart() {
    let (device, pool) = filled();
    let (_, offset) = held_by_snapshot(&pool, 4);
    device.inject(InjectedFault { op: SimOp::Read, range: offset..offset + 1, skip: 0, times: u64::MAX });
    pool.scrub_start(7, 0).unwrap();
    let status = to_the_end(&pool);
    // A block of 4 KiB has parts of two or three records.
    assert!(status.damaged == 0 && (1..4).contains(&status.unreadable), "{status:?}");
}

#[test]
fn a_label_that_a_device_cannot_read_is_written_again() {
    let (device, pool) = filled();
    // The drive replaces a bad sector when it is written.
    device.inject(InjectedFault { op: SimOp::Read, range: 0..1, skip: 0, times: 4 });
    pool.scrub_start(7, 0).unwrap();
    let status = to_the_end(&pool);
    assert_eq!((status.unreadable, status.repaired), (1, 1), "{status:?}");
}

#[test]
fn a_damaged_directory_is_found_though_memory_has_a_copy() {
    let (device, pool) = filled();
    let (addr, _) = held_by_snapshot(&pool, 2);
    let segment = pool.shared.segments.get(addr.segment()).unwrap().unwrap();
    let (part, dir) = segment.parts.iter().find_map(|part| Some((part, part.directory?))).unwrap();
    device.flip_bit(part.extent.offset() + u64::from(dir.start) + 3, 1);
    pool.scrub_start(7, 0).unwrap();
    let status = to_the_end(&pool);
    assert_eq!((status.damaged, status.repaired), (1, 1), "{status:?}");
    pool.scrub_start(8, 0).unwrap();
    assert_eq!(to_the_end(&pool).damaged, 0);
}

#[test]
fn a_scrub_that_was_stopped_goes_on_after_the_pool_was_opened_again() {
    let (device, pool) = filled();
    let (_, early) = held_by_snapshot(&pool, 0);
    device.flip_bit(early, 4);
    pool.scrub_start(7, 5000).unwrap();
    assert!(pool.scrub_step(7).unwrap().is_some() && pool.scrub_step(7).unwrap().is_some());
    assert!(pool.scrub_stop().unwrap() && !pool.scrub_stop().unwrap());
    assert_eq!(pool.scrub_step(7).unwrap(), None, "it is stopped");
    let stopped = pool.scrub_status();
    assert!(stopped.state == ScrubState::Stopped && stopped.done_bytes > 0 && stopped.rate == 5000);
    assert!(stopped.damaged == 1, "{stopped:?}");
    pool.export().unwrap();
    drop(pool);
    device.flip_bit(early, 4);

    let pool = open(&device);
    assert_eq!(pool.scrub_status(), stopped);
    pool.scrub_start(100, 0).unwrap();
    assert_eq!(pool.scrub_status().started, 7, "it goes on");
    let status = to_the_end(&pool);
    assert_eq!((status.state, status.damaged), (ScrubState::Finished, 1));
    assert!(status.done_bytes > stopped.done_bytes && status.sound > stopped.sound);
}

#[test]
fn cleaning_writing_and_freeing_meanwhile_are_no_damage() {
    let (_device, pool) = filled();
    pool.scrub_start(7, 0).unwrap();
    let mut generation = 3;
    while pool.scrub_step(9).unwrap().is_some() {
        write(&pool, (0..PAGES).filter(|at| at % 5 == generation % 5), generation);
        if generation == 4 {
            pool.destroy_snapshots(&["@before"]).unwrap();
        }
        pool.clean().unwrap();
        generation += 1;
    }
    let status = pool.scrub_status();
    assert!(status.state == ScrubState::Finished && generation > 5, "{generation}");
    assert_eq!((status.damaged, status.unreadable), (0, 0));
}

#[test]
fn what_is_stored_is_read_back_and_nonsense_is_refused() {
    let status = ScrubStatus {
        state: ScrubState::Stopped,
        started: 1,
        finished: 2,
        total_bytes: 3,
        done_bytes: 4,
        sound: 5,
        damaged: 6,
        unreadable: 7,
        repaired: 8,
        rate: 9,
    };
    let scrub = Scrub { status, next: 10, until: u64::MAX };
    assert_eq!(Scrub::decode(&scrub.encode()), Some(scrub));
    for text in
        ["", "1", "9 1 2 3 4 5 6 7 8 9 10 11", "2 1 2 3 4 5 6 7 8 9 10 -1", "2 1 2 3 4 5 6 7 8 9 10 11 12"]
    {
        assert_eq!(Scrub::decode(text), None, "{text}");
    }
}

#[test]
fn a_copy_that_cannot_be_written_again_is_not_repaired() {
    let sims: Vec<_> = (1..3).map(|seed| Arc::new(SimDevice::new(192 << 20, seed))).collect();
    let devices: Vec<_> = sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect();
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"wrong on one one") };
    create_groups_on("tank", std::slice::from_ref(&devices), &options).unwrap();
    let pool =
        Pool::open_on(devices, &OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() }).unwrap();
    write(&pool, 0..10, 1);
    let mut ptrs = [None];
    pool.version("").unwrap().tree.pages(4, 2, &mut ptrs).unwrap();
    let place = pool.shared.segments.locate(&pool.shared.devices, ptrs[0].unwrap().addr).unwrap();
    let range = place.offset..place.offset + u64::from(place.len_bytes);
    // A write that fails may mend some of them.
    range.clone().step_by(512).for_each(|offset| sims[1].flip_bit(offset, 1));
    sims[1].inject(InjectedFault { op: SimOp::Write, range, skip: 0, times: u64::MAX });
    pool.scrub_start(7, 0).unwrap();
    let status = to_the_end(&pool);
    assert_eq!((status.damaged, status.repaired), (1, 0), "{status:?}");
    assert!(pool.device_status().iter().all(|device| device.state == DeviceState::Online));
}
