use super::*;
use crate::limits::{DEVICE_BYTES_MIN, RESERVED_BYTES};

#[test]
fn a_released_chunk_is_not_reused_before_the_next_checkpoint() {
    let chunks = Chunks::new(&[DEVICE_BYTES_MIN]);
    let total = chunks.total();
    assert_eq!(total, 32);
    let chunk = chunks.allocate().unwrap();
    chunks.release(chunk);
    assert_eq!(chunks.free(), total - 1);
    let pending = chunks.take_pending_free();
    assert_eq!(pending, vec![chunk]);
    chunks.recycle(pending);
    assert_eq!(chunks.free(), total);
}

#[test]
fn a_chunk_with_several_users_is_freed_by_the_last() {
    let chunks = Chunks::new(&[DEVICE_BYTES_MIN]);
    let chunk = chunks.allocate().unwrap();
    chunks.retain(chunk);
    chunks.release(chunk);
    assert_eq!(chunks.pending_free(), 0);
    chunks.release(chunk);
    assert_eq!(chunks.pending_free(), 1);
}

#[test]
fn allocation_spreads_over_devices_and_ends_with_no_space() {
    let chunks = Chunks::new(&[DEVICE_BYTES_MIN, DEVICE_BYTES_MIN]);
    let mut per_device = [0; 2];
    for _ in 0..64 {
        per_device[usize::from(chunks.allocate().unwrap().device)] += 1;
    }
    assert_eq!(per_device, [32, 32]);
    assert!(matches!(chunks.allocate(), Err(Error::NoSpace(_))));
}

#[test]
fn devices_of_different_size_are_filled_alike() {
    let chunks = Chunks::new(&[DEVICE_BYTES_MIN, 4 * DEVICE_BYTES_MIN]);
    let counts = [0, 1].map(|device| chunks.count_of(device));
    let halves = counts.map(|count| count / 2);
    for _ in 0..halves.iter().sum::<u64>() {
        chunks.allocate().unwrap();
    }
    for (device, half) in (0..).zip(halves) {
        assert!(chunks.used_count(device).abs_diff(half) <= 1, "device {device}");
    }
    while chunks.allocate().is_ok() {}
    assert_eq!(chunks.free(), 0);
}

#[test]
fn a_chunk_of_one_device_is_given_out_while_it_has_one() {
    let chunks = Chunks::new(&[DEVICE_BYTES_MIN, DEVICE_BYTES_MIN]);
    for _ in 0..32 {
        assert_eq!(chunks.allocate_on(1).unwrap().device, 1);
    }
    assert!(matches!(chunks.allocate_on(1), Err(Error::NoSpace(_))));
    assert!(matches!(chunks.allocate_on(2), Err(Error::NoSpace(_))));
    chunks.close_device(0);
    assert!(matches!(chunks.allocate_on(0), Err(Error::NoSpace(_))), "nothing is put on it any more");
}

#[test]
fn offsets_stay_clear_of_the_reserved_ends() {
    let last = Chunk { device: 0, index: Chunk::count(DEVICE_BYTES_MIN) - 1 };
    assert_eq!(Chunk { device: 0, index: 0 }.offset(), RESERVED_BYTES);
    assert!(last.offset() + CHUNK_BYTES <= DEVICE_BYTES_MIN - RESERVED_BYTES);
    assert_eq!(Chunk::count(0), 0);
}
