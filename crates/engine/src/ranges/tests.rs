use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn indexes(ranges: &Ranges) -> BTreeSet<u32> {
    ranges.iter().flatten().map(|index| index as u32).collect()
}

fn set(of: &[(u8, u8)]) -> (Ranges, BTreeSet<u32>) {
    let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
    for (start, len) in of {
        let (start, end) = (u32::from(*start), u32::from(*start) + u32::from(*len % 9));
        ranges.insert_range(start.into()..end.into());
        model.extend(start..end);
    }
    (ranges, model)
}

proptest! {
    #[test]
    fn ranges_are_sets(begun: Vec<(u8, u8)>, steps: Vec<(u8, u8, u8)>) {
        let (mut ranges, mut model) = set(&begun);
        for (what, at, len) in steps {
            let (at, len) = (u32::from(at), u32::from(len % 20));
            match what % 5 {
                0 => prop_assert_eq!(ranges.insert(at), model.insert(at)),
                1 => prop_assert_eq!(ranges.remove(at), model.remove(&at)),
                2 => prop_assert_eq!(ranges.pop_first(), model.pop_first()),
                3 => {
                    ranges.insert_range(at.into()..(at + len).into());
                    model.extend(at..at + len);
                }
                _ => {
                    ranges.remove_range(at.into()..(at + len).into());
                    model.retain(|index| !(at..at + len).contains(index));
                }
            }
            prop_assert_eq!(ranges.len(), model.len() as u64);
            prop_assert_eq!(ranges.is_empty(), model.is_empty());
            prop_assert_eq!(ranges.has(at.into()), model.contains(&at));
            prop_assert_eq!(&indexes(&ranges), &model);
            let list: Vec<Range<u64>> = ranges.iter().collect();
            prop_assert!(list.windows(2).all(|pair| pair[0].end < pair[1].start), "they do not touch: {:?}", list);
        }
    }

    #[test]
    fn what_one_has_and_another_has_not(ours: Vec<(u8, u8)>, theirs: Vec<(u8, u8)>, most in 1_u64..12) {
        let ((ours, our_model), (theirs, their_model)) = (set(&ours), set(&theirs));
        let without: BTreeSet<u32> = our_model.difference(&their_model).copied().collect();
        prop_assert_eq!(ours.count_without(&theirs), without.len() as u64);
        let mut expected: Option<Range<u64>> = None;
        for index in without.iter().rev() {
            let index = u64::from(*index);
            match &mut expected {
                None => expected = Some(index..index + 1),
                Some(range) if range.start == index + 1 && range.end - range.start < most => range.start -= 1,
                Some(_) => break,
            }
        }
        prop_assert_eq!(ours.last_without(&theirs, most), expected);
    }
}

#[test]
fn a_set_of_all_chunks_of_the_largest_device_is_one_range() {
    let mut all = Ranges::below(u32::MAX);
    assert_eq!((all.len(), all.iter().count()), (u64::from(u32::MAX), 1));
    assert_eq!(all.pop_first(), Some(0));
    assert!(all.remove(u32::MAX - 1) && !all.has(u64::from(u32::MAX - 1)));
    assert!(all.remove(1000) && all.insert(1000));
    assert_eq!((all.len(), all.iter().count()), (u64::from(u32::MAX) - 2, 1));
}

#[test]
fn ranges_with_small_gaps_become_one() {
    let mut set = Ranges::default();
    [0..1, 3..4, 5..6, 20..30, 31..32].into_iter().for_each(|range| set.insert_range(range));
    let ranges = |most| set.merged(most).iter().map(|range| (range.start, range.end)).collect::<Vec<_>>();
    assert_eq!(ranges(9), [(0, 1), (3, 4), (5, 6), (20, 30), (31, 32)]);
    assert_eq!(ranges(3), [(0, 1), (3, 6), (20, 32)]);
    assert_eq!(ranges(1), [(0, 32)]);
    assert_eq!(ranges(0), [(0, 32)]);
    assert_eq!(Ranges::default().merged(0), Ranges::default());
}
