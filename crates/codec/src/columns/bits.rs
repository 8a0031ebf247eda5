//! Writes and reads numbers of a few bits, one after the other, the first lowest, among the bytes that are stored as
//! they are.

use crate::Corrupt;

/// Appends numbers to bytes.
#[derive(Debug, Default)]
pub(crate) struct BitWriter {
    word: u64,
    bits: u32,
}

impl BitWriter {
    /// Appends the low `n` bits of `number`, which has no others; `n` is at most 25.
    #[inline(always)]
    pub(crate) fn put(&mut self, out: &mut Vec<u8>, number: u32, n: u32) {
        self.word |= u64::from(number) << self.bits;
        self.bits += n;
        while self.bits >= 8 {
            out.push(self.word as u8);
            (self.word, self.bits) = (self.word >> 8, self.bits - 8);
        }
    }

    /// Fills the last byte with zeros.
    pub(crate) fn finish(self, out: &mut Vec<u8>) {
        if self.bits > 0 {
            out.push(self.word as u8);
        }
    }
}

/// Reads numbers that [`BitWriter`] wrote. Behind the end of the bytes it reads zeros, and [`BitReader::finish`] fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Reads the next `n` bits; `n` is at most 25.
    #[inline(always)]
    pub(crate) fn get(&mut self, n: u32) -> u32 {
        let at = self.at / 8;
        let word = match self.bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk()) {
            Some(word) => u32::from_le_bytes(*word),
            None => self.bytes.iter().skip(at).rev().fold(0, |word, &byte| word << 8 | u32::from(byte)),
        };
        let number = word >> (self.at % 8) & ((1 << n) - 1);
        self.at += n as usize;
        number
    }

    /// Returns the bytes behind the last number.
    pub(crate) fn finish(self) -> Result<&'a [u8], Corrupt> {
        self.bytes.get(self.at.div_ceil(8)..).ok_or(Corrupt("bytes are missing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let numbers: Vec<(u32, u32)> =
            (0..200).map(|i| ((i * 7919) & ((1 << (i % 26)) - 1), i % 26)).collect();
        let mut out = vec![];
        let mut writer = BitWriter::default();
        numbers.iter().for_each(|&(number, n)| writer.put(&mut out, number, n));
        writer.finish(&mut out);
        out.push(99);
        let mut reader = BitReader::new(&out);
        for (number, n) in numbers {
            assert_eq!(reader.get(n), number);
        }
        assert_eq!(reader.finish(), Ok(&[99][..]));
        let mut reader = BitReader::new(&out[..3]);
        for _ in 0..100 {
            reader.get(3);
        }
        assert!(reader.finish().is_err());
    }
}
