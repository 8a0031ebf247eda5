use super::*;

fn groups(of: &[(u64, u64)]) -> Vec<GroupFill> {
    (0..).zip(of).map(|(group, (used, total))| GroupFill { group, used: *used, total: *total }).collect()
}

/// Returns the chunks in use of each group after all shifts.
fn shifted(of: &[(u64, u64)]) -> Vec<u64> {
    let mut used: Vec<u64> = of.iter().map(|(used, _)| *used).collect();
    for Shift { from, onto, chunks } in all_shifts(groups(of)) {
        assert!(from != onto && chunks > 0);
        used[usize::from(from)] -= chunks;
        used[usize::from(onto)] += chunks;
    }
    used
}

#[test]
fn groups_of_any_size_become_equally_full() {
    assert_eq!(shifted(&[(600, 1000), (0, 1000)]), [300, 300]);
    assert_eq!(shifted(&[(600, 1000), (0, 2000)]), [200, 400]);
    assert_eq!(shifted(&[(100, 1000), (900, 1000), (500, 1000)]), [500, 500, 500]);
    assert_eq!(shifted(&[(0, 0), (10, 32)]), [0, 10]);
    assert_eq!(shifted(&[]), []);
}

#[test]
fn what_is_nearly_even_stays() {
    for even in [[(500, 1000), (520, 1000)], [(16, 32), (20, 32)], [(0, 32), (3, 32)], [(7, 7), (9, 9)]] {
        assert_eq!(next_shift(&groups(&even)), None, "{even:?}");
    }
}

#[test]
fn an_empty_device_among_many_is_seen() {
    let mut all = vec![(600, 1000); 200];
    all.push((0, 1000));
    let used = shifted(&all);
    assert!(used.iter().all(|used| used.abs_diff(597) <= 11), "{used:?}");
    let moved: u64 = all_shifts(groups(&all)).iter().map(|shift| shift.chunks).sum();
    assert!(moved <= 600, "no more than what the empty one lacks: {moved}");
}

/// Nothing is moved to and fro, whatever the sizes are: at most a chunk of each group goes on.
#[test]
fn no_more_is_moved_than_lies_beyond_the_parts() {
    let mut random = 7_u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..5000 {
        let of: Vec<(u64, u64)> = (0..=draw(6))
            .map(|_| {
                let total = 1 + draw(2000);
                (draw(total + 1), total)
            })
            .collect();
        let all = groups(&of);
        let moved: u64 = all_shifts(all.clone()).iter().map(|shift| shift.chunks).sum();
        assert!(moved <= uneven_chunks(&all) + of.len() as u64, "{of:?}: {moved}");
        let after: Vec<(u64, u64)> =
            shifted(&of).iter().zip(&of).map(|(used, (_, total))| (*used, *total)).collect();
        assert_eq!(next_shift(&groups(&after)), None, "{of:?}");
    }
}

#[test]
fn windows_cover_all_positions_once() {
    for (first, end) in [(0, 0), (0, 1), (5000, 12_000), (4096, 8192), (0, 8193), (9, 5)] {
        let mut all: Vec<u32> = windows(first, end).flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (0..end).collect::<Vec<_>>());
    }
}
