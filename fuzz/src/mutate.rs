//! Damages inputs, as a seed decides.

use pagefold_sim::random::Random;

use crate::INPUT_MAX;

/// Numbers at which arithmetic goes wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Makes an input: one of `seeds`, damaged a few times, or noise.
pub fn input(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = pick(random, seeds);
    if random.percent(1) {
        return (0..random.skewed(4096)).map(|_| random.bits() as u8).collect();
    }
    again(random, &mut bytes, seeds);
    bytes
}

/// Damages an input a few times; parts may come from `seeds`.
pub fn again(random: &mut Random, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    for _ in 0..1 + random.skewed(12) {
        damage(random, bytes, seeds);
    }
    bytes.truncate(INPUT_MAX);
}

fn pick(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    seeds.get(random.below(seeds.len() as u64) as usize).cloned().unwrap_or_default()
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    // Headers decide most, so half of the damage is near the start.
    let at = |random: &mut Random, len: usize| {
        let whole = random.below(len as u64 + 1) as usize;
        if random.percent(50) { whole.min(random.below(64) as usize) } else { whole }
    };
    let place = at(random, bytes.len());
    match random.below(9) {
        0 => bytes.truncate(place),
        1 => {
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= 1 << random.below(8);
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = random.bits() as u8;
            }
        }
        3 => {
            let edge = EDGES[random.below(EDGES.len() as u64) as usize].to_le_bytes();
            let width = 1 << random.below(4);
            for (byte, value) in bytes.iter_mut().skip(place).zip(&edge[..width]) {
                *byte = *value;
            }
        }
        4 => {
            let edge = EDGES[random.below(EDGES.len() as u64) as usize];
            let mut varint = Vec::new();
            pagefold_engine::wire::put_varint(&mut varint, edge.wrapping_sub(random.below(3)));
            bytes.splice(place..place, varint);
        }
        5 => {
            let end = at(random, bytes.len()).max(place).min(place + 64);
            bytes.drain(place..end);
        }
        6 => {
            let end = at(random, bytes.len()).max(place).min(place + 64);
            let copy = bytes[place..end].to_vec();
            let to = at(random, bytes.len());
            bytes.splice(to..to, copy);
        }
        7 => {
            let other = pick(random, seeds);
            let from = at(random, other.len());
            bytes.truncate(place);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            let noise = (0..random.below(16)).map(|_| random.bits() as u8);
            bytes.splice(place..place, noise.collect::<Vec<_>>());
        }
    }
}
