use super::*;
use crate::limits::DEVICE_BYTES_MAX;

const MIB: u64 = 1 << 20;

#[test]
fn chunks_and_reserved_places_share_a_device_without_overlap() {
    for size in [DEVICE_BYTES_MIN, DEVICE_BYTES_MIN + 4096, 300 * MIB + 8192, 1 << 30, (1 << 32) - 4096] {
        let mut used: Vec<(u64, u64)> =
            reserved_places(size).iter().map(|at| (*at, at + RESERVED_BYTES)).collect();
        let count = chunk_count(size);
        used.extend((0..count).map(|index| (chunk_offset(index), chunk_offset(index) + CHUNK_BYTES)));
        used.sort_unstable();
        // There are no gaps, and what is left at the end is too short for another chunk.
        assert!(used[0].0 == 0 && used.windows(2).all(|pair| pair[0].1 == pair[1].0), "{size}");
        let end = used[used.len() - 1].1;
        assert!(end <= size && size - end < CHUNK_BYTES + RESERVED_BYTES, "{size}");
        assert!(reserved_places(size).len() >= 2, "{size}");
        for index in 0..count {
            let offset = chunk_offset(index);
            assert_eq!([chunk_at(offset), chunk_at(offset + CHUNK_BYTES - 1)], [index; 2]);
        }
    }
}

#[test]
fn reserved_places_stay_where_they_are_when_a_device_grows() {
    let (small, large) = (reserved_places(DEVICE_BYTES_MIN), reserved_places(DEVICE_BYTES_MAX));
    assert_eq!(small, [0, 129 * MIB]);
    assert!(large.starts_with(&small) && large.len() == 28, "{}", large.len());
}

#[test]
fn sizes_and_offsets_that_cannot_be_are_no_more_than_wrong() {
    assert_eq!((chunk_count(0), chunk_at(0), chunk_at(u64::MAX)), (0, 0, u32::MAX));
    assert_eq!(chunk_count(u64::MAX), u32::MAX);
    assert!(chunk_count(DEVICE_BYTES_MAX) < u32::MAX);
    assert!(chunk_offset(chunk_count(DEVICE_BYTES_MAX)) <= DEVICE_BYTES_MAX);
}

#[test]
fn stretches_are_the_chunks_without_what_is_reserved_between_them() {
    for (start, end) in
        [(0, 1), (0, 32), (0, 33), (5, 300), (31, 33), (32, 33), (63, 65), (64, 64), (100, 1025)]
    {
        let mut expected: Vec<(u64, u64)> = Vec::new();
        for index in start..end {
            let offset = chunk_offset(index as u32);
            match expected.last_mut() {
                Some((first, len)) if *first + *len == offset => *len += CHUNK_BYTES,
                _ => expected.push((offset, CHUNK_BYTES)),
            }
        }
        assert_eq!(stretches(start..end), expected, "{start}..{end}");
    }
    assert_eq!(stretches(0..chunk_count(DEVICE_BYTES_MAX).into()).len(), 28);
}
