//! Lets fuzz targets make streams.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Returns the bytes with correct checksums in all frames that they have, as an attacker can compute them.
pub fn checksummed(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let (mut at, mut chain) = (8, 0);
    while let Some(head) = out.get(at..at + 4) {
        let len = head.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
        let end = at + 5 + len;
        let Some(frame) = out.get(at..end) else { break };
        chain = xxh3_64_with_seed(frame, chain);
        let Some(checksum) = out.get_mut(end..end + 8) else { break };
        checksum.copy_from_slice(&chain.to_le_bytes());
        at = end + 8;
    }
    out
}
