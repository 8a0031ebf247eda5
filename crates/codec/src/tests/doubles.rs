//! Arrays of numbers come back, whatever they are; arrays of samples become short.

use proptest::prelude::*;

use super::cases;
use crate::doubles::{decode, encode, plausible};
use crate::testing::Random;

const NAN: u64 = 0xFFF8 << 48;

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Makes a swinging load as RRDtool stores it, of sources that take turns: digits are cut to hundredths, and an update
/// between two steps is divided among both.
fn samples(random: &mut Random, count: usize, lanes: usize) -> Vec<u64> {
    let mut levels = vec![500.0; lanes];
    let sample = |at: usize| {
        let level: &mut f64 = &mut levels[at % lanes];
        let before = *level;
        *level = ((*level + random.below(1000) as f64 / 100.0 - 5.0) * 100.0).round() / 100.0;
        ((before * 200.0 + *level * 100.0) / 300.0).to_bits()
    };
    (0..count).map(sample).collect()
}

/// Makes any words: samples, NaN, integers, noise, in turns.
fn any_words(random: &mut Random) -> Vec<u64> {
    let mut words = vec![];
    for _ in 0..1 + random.below(5) {
        let count = 1 + random.below(200);
        let lanes = 1 + random.below(9);
        match random.below(6) {
            0 => words.extend(samples(random, count, lanes)),
            1 => words.extend(vec![NAN; count]),
            2 => words.extend((0..count as u64).map(|n| n * 1000)),
            3 => words.extend((0..count).map(|_| random.next() << 8 | random.next() & 0xFF)),
            4 => words.extend((0..count).map(|n| (n as f64 / -7.0).to_bits())),
            _ => {
                let odd =
                    [f64::NAN, -f64::NAN, f64::INFINITY, -0.0, 0.0, 5e-324, f64::MAX, 4503599627370496.5];
                words.extend((0..count).map(|_| odd[random.below(odd.len())].to_bits()));
            }
        }
    }
    words
}

fn round_trip(bytes: &[u8]) -> usize {
    let mut record = b"before".to_vec();
    assert!(encode(bytes, &mut record));
    assert_eq!(&record[..6], b"before");
    let mut again = vec![0xAA; bytes.len()];
    decode(&record[6..], &mut again).unwrap();
    assert_eq!(again, bytes);
    record.len() - 6
}

#[test]
fn samples_take_little_more_than_what_they_tell() {
    let mut random = Random::new(1);
    for lanes in [1, 2, 3, 8] {
        let page = bytes(&samples(&mut random, 512, lanes));
        assert!(plausible(&page));
        // A sample takes 1.5 bytes, since it is one of about a thousand; to that comes its rounding.
        let coded = round_trip(&page);
        assert!(coded < 512 * 2, "{lanes} lanes: {coded} bytes");
    }
    let empty = bytes(&[NAN; 512]);
    assert!(plausible(&empty));
    assert!(round_trip(&empty) < 8);
}

#[test]
fn samples_of_a_known_step_have_no_rounding_and_scatter_around_a_mean() {
    let mut random = Random::new(3);
    // Samples as collectd gives them to RRDtool, which multiplies by the seconds and divides by the step.
    let mut of_step = |step: f64, count: usize| -> Vec<u64> {
        let mut sample =
            |at: usize| 40.0 + 20.0 * (at as f64 / 900.0).sin() + random.below(1000) as f64 / 250.0;
        (0..count).map(|at| ((sample(at) * 1e4).round() / 1e4 * step / step).to_bits()).collect()
    };
    for step in [10.0, 60.0, 300.0] {
        let coded = round_trip(&bytes(&of_step(step, 512)));
        // log2 of 40,000 bits, by a mean of four, and what the coder learns.
        assert!(coded * 8 < 512 * 17, "step {step}: {coded} bytes");
        assert!(coded * 8 > 512 * 15, "step {step}: {coded} bytes");
    }
}

#[test]
fn other_pages_are_not_taken_for_numbers() {
    let mut random = Random::new(2);
    let text = b"the sampled numbers of a day, and of the one before".repeat(100);
    for other in [vec![], vec![0; 4096], random.bytes(4096), text, bytes(&(0..512).collect::<Vec<_>>())] {
        assert!(!plausible(&other));
        round_trip(&other);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4 * cases()))]

    #[test]
    fn numbers_come_back(seed in any::<u64>(), cut in 0..8usize) {
        let mut random = Random::new(seed);
        let bytes = bytes(&any_words(&mut random));
        round_trip(&bytes[..bytes.len() - cut]);
    }

    #[test]
    fn damaged_numbers_do_no_harm(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let bytes = bytes(&any_words(&mut random));
        let mut record = vec![];
        prop_assert!(encode(&bytes, &mut record));
        let mut page = vec![0; bytes.len()];
        for _ in 0..20 {
            let mut damaged = record.clone();
            let at = random.below(damaged.len());
            damaged[at] ^= 1 << random.below(8);
            damaged.truncate(damaged.len() - random.below(3).min(damaged.len()));
            let _ = decode(&damaged, &mut page);
            let _ = decode(&random.bytes(at), &mut page);
        }
    }
}

/// Records that were written are read by every later version.
#[test]
fn a_stored_record_of_numbers() {
    let page = bytes(&[NAN, 0x4077_2147_AE14_7AE1, 0x4077_2333_3333_3333, 0x4077_2333_3333_3333, 7, NAN]);
    let mut record = vec![];
    assert!(encode(&page, &mut record));
    let hex: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "0419d70e123f4dc46cc900f707");
}
