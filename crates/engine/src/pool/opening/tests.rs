//! Tests which of two copies is the older one.

use super::*;

fn standing(opening: Opening, generation: u64) -> Standing {
    Standing { opening, generation, open: false }
}

/// Makes openings of a pool with these nonces, each after checkpoint 5 of the one before, and returns the last.
fn opened(first: Opening, nonces: impl IntoIterator<Item = u64>) -> Opening {
    nonces.into_iter().fold(first, |last, nonce| last.next(5, 0, nonce, nonce).unwrap())
}

#[test]
fn copies_are_older_newer_or_went_apart() {
    let first = Opening::first(7, 1);
    let (two, three) = (opened(first, [8]), opened(first, [8, 9]));
    let other = opened(first, [8, 10, 11, 12]);
    let cases = [
        ((first, 1), (first, 1), Relation::Same),
        ((first, 1), (first, 2), Relation::Before),
        ((first, 5), (two, 5), Relation::Before),
        ((first, 4), (three, 5), Relation::Before),
        // The copy was made within the opening, and the pool went on in it.
        ((first, 6), (two, 5), Relation::Apart),
        ((two, 9), (three, 5), Relation::Apart),
        ((three, 6), (other, 6), Relation::Apart),
        ((two, 5), (other, 6), Relation::Before),
    ];
    for ((one, one_generation), (two, two_generation), relation) in cases {
        let (one, two) = (standing(one, one_generation), standing(two, two_generation));
        assert_eq!(one.relation(&two), relation);
        let back = match relation {
            Relation::Before => Relation::After,
            other => other,
        };
        assert_eq!(two.relation(&one), back);
    }
}

#[test]
fn a_copy_made_after_a_crash_may_have_gone_on() {
    let first = Opening::first(7, 1);
    let next = standing(opened(first, [8]), 5);
    for (generation, relation) in [(4, Relation::Before), (5, Relation::Apart), (6, Relation::Apart)] {
        assert_eq!(Standing { open: true, ..standing(first, generation) }.relation(&next), relation);
    }
    assert_eq!(standing(first, 5).relation(&next), Relation::Before);
}

#[test]
fn what_was_opened_more_often_than_it_tells_is_the_newer_one() {
    let first = Opening::first(7, 1);
    let far = opened(first, 100..100 + EARLIER_OPENINGS as u64 + 2);
    assert_eq!(standing(first, 1).relation(&standing(far, 1)), Relation::Before);
    let near = opened(first, 100..100 + EARLIER_OPENINGS as u64);
    assert_eq!(near.earlier[EARLIER_OPENINGS - 1].id, first.id);
    let stranger = Opening::first(8, 1);
    assert_eq!(standing(stranger, 1).relation(&standing(near, 1)), Relation::Apart);
}

#[test]
fn a_number_that_was_claimed_is_not_claimed_again() {
    let first = Opening::first(7, 1);
    assert_eq!(first.next(1, 5, 1, 1).unwrap().id.number, 6);
    assert!(first.next(1, NUMBER_MAX, 1, 1).is_err());
}

#[test]
fn stored_openings_have_numbers_that_fall() {
    let decode = |bytes: &[u8]| Opening::decode(&mut Reader::new(bytes, "opening"));
    let opening = opened(Opening::first(7, 1), 1..140);
    let mut bytes = Vec::new();
    opening.encode(&mut bytes);
    assert_eq!(decode(&bytes).unwrap(), opening);
    assert!(decode(&bytes[..bytes.len() - 1]).is_err());
    // The opening before gets the number of this one.
    let mut same = bytes.clone();
    same.copy_within(0..8, 24);
    assert!(decode(&same).is_err());
    for number in [0, NUMBER_MAX + 1] {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        assert!(decode(&bytes).is_err());
    }
}
