//! Codes integers of variable length: seven bits per byte, least significant first. The top bit says that more follow.
//!
//! Only the shortest form of a number is well formed, so that equal nodes have equal bytes.

/// The destination of encoded bytes: a buffer, or a counter if only their number is of interest.
pub(super) trait Sink {
    fn byte(&mut self, byte: u8);
    fn bytes(&mut self, bytes: &[u8]);

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte((value as u8) | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }
}

impl Sink for Vec<u8> {
    fn byte(&mut self, byte: u8) {
        self.push(byte);
    }
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts bytes instead of keeping them.
#[derive(Default)]
pub(super) struct Counter(pub usize);

impl Sink for Counter {
    fn byte(&mut self, _: u8) {
        self.0 += 1;
    }
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
    fn varint(&mut self, value: u64) {
        // This is the number of significant bits / 7, rounded up, and at least one byte.
        self.0 += ((63 - (value | 1).leading_zeros() as usize) / 7) + 1;
    }
}

/// Maps small differences of either sign to small numbers. The difference is taken modulo 2^64.
pub(super) const fn zigzag(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from) as i64;
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// Inverse of [`zigzag`].
pub(super) const fn unzigzag(from: u64, coded: u64) -> u64 {
    from.wrapping_add((coded >> 1) ^ (coded & 1).wrapping_neg())
}

/// A reader of untrusted bytes. Every method fails with a reason if they end or are malformed.
pub(super) struct NodeReader<'a> {
    rest: &'a [u8],
}

impl<'a> NodeReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn byte(&mut self) -> Result<u8, &'static str> {
        let (&first, rest) = self.rest.split_first().ok_or("ends too early")?;
        self.rest = rest;
        Ok(first)
    }

    pub(super) fn bytes(&mut self, len: u64) -> Result<&'a [u8], &'static str> {
        let len = usize::try_from(len).map_err(|_| "length beyond its end")?;
        let (taken, rest) = self.rest.split_at_checked(len).ok_or("length beyond its end")?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, &'static str> {
        // Most numbers are small differences, so one byte is tried first.
        if let Some((&first, rest)) = self.rest.split_first()
            && first < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(first));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, &'static str> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return Err("number over 64 bits");
            }
            value |= bits << shift;
            if byte < 0x80 {
                return if byte == 0 && shift > 0 { Err("number not in shortest form") } else { Ok(value) };
            }
        }
        Err("number over 64 bits")
    }
}
