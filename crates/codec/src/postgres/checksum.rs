//! Computes PostgreSQL's checksum of pages: 32 interleaved FNV-1a sums with a shift, joined by exclusive or, mixed with the block
//! number.
//!
//! The algorithm is that of `src/include/storage/checksum_impl.h`.

use super::page::CHECKSUM_AT;
use crate::format::Checksum;
use crate::wire::le16;

const SUMS: usize = 32;
const PRIME: u32 = 16_777_619;
const OFFSETS: [u32; SUMS] = [
    0x5B1F_36E9,
    0xB852_5960,
    0x02AB_50AA,
    0x1DE6_6D2A,
    0x79FF_467A,
    0x9BB9_F8A3,
    0x217E_7CD2,
    0x83E1_3D2C,
    0xF8D4_474F,
    0xE39E_B970,
    0x42C6_AE16,
    0x9932_16FA,
    0x7B09_3B5D,
    0x98DA_FF3C,
    0xF718_902A,
    0x0B1C_9CDB,
    0xE58F_764B,
    0x1876_36BC,
    0x5D7B_3BB1,
    0xE73D_E7DE,
    0x92BE_C979,
    0xCCA6_C0B2,
    0x304A_0979,
    0x85AA_43D4,
    0x7831_25BB,
    0x6CA8_EAA2,
    0xE407_EAC6,
    0x4B5C_FC3E,
    0x9FBF_8C76,
    0x15CA_20BE,
    0xF2CA_9FD3,
    0x959B_D756,
];

/// Returns the checksum of PostgreSQL's `page` as block `block` of its relation's fork, as if its checksum field were
/// zero.
pub fn checksum(page: &[u8], block: u32) -> u16 {
    let mut sums = OFFSETS;
    for (i, row) in page.as_chunks::<{ 4 * SUMS }>().0.iter().enumerate() {
        let words: [u32; SUMS] = std::array::from_fn(|s| {
            u32::from_le_bytes([row[4 * s], row[4 * s + 1], row[4 * s + 2], row[4 * s + 3]])
        });
        mix_row(&mut sums, &if i == 0 { without_checksum(words) } else { words });
    }
    for _ in 0..2 {
        mix_row(&mut sums, &[0; SUMS]);
    }
    let joined = sums.iter().fold(0, |all, sum| all ^ sum) ^ block;
    (joined % 65535 + 1) as u16
}

#[inline(always)]
fn mix_row(sums: &mut [u32; SUMS], words: &[u32; SUMS]) {
    for (sum, word) in sums.iter_mut().zip(words) {
        let mixed = *sum ^ word;
        *sum = mixed.wrapping_mul(PRIME) ^ mixed >> 17;
    }
}

fn without_checksum(mut words: [u32; SUMS]) -> [u32; SUMS] {
    words[CHECKSUM_AT / 4] &= 0xFFFF_0000;
    words
}

/// Compares a page's checksum with its content. A page of a cluster without checksums has zeros in its place, which no
/// checksum is.
pub(crate) fn check(page: &[u8], block: Option<u32>) -> Checksum {
    match (le16(page, CHECKSUM_AT), block) {
        (0, _) => Checksum::Absent,
        (_, None) => Checksum::Unknown,
        (sum, Some(block)) if sum == checksum(page, block) => Checksum::Right,
        _ => Checksum::Wrong,
    }
}

/// Clears the checksum in a page.
pub(crate) fn clear(page: &mut [u8]) {
    page[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
}
