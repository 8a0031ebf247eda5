//! Pages that examples write.

/// Bytes of a page.
pub(crate) const PAGE: usize = 8192;

/// The same numbers each time (xorshift).
pub(crate) struct XorShift(u64);

impl XorShift {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A page of a table: an id, a few words and a random number in each row. Compresses to about a third.
pub(crate) fn rows(id: u64) -> Vec<u8> {
    let mut random = XorShift::new(id);
    let mut out = Vec::with_capacity(PAGE);
    while out.len() < PAGE {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&random.next().to_le_bytes());
        out.extend_from_slice(b"delivered in person     AIR    ");
    }
    out.truncate(PAGE);
    out
}
