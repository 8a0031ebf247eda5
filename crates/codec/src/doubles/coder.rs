//! An adaptive binary range coder. A record of a few hundred numbers is too short to carry tables of its own.
//!
//! Each decision has a probability that follows earlier decisions ([`Bit`]). The encoder adds carries to the bytes that
//! it has already written, and leaves out zero bytes at the end.

/// Least range: a range as large as this can still be divided by 16 bits of probability, and by 32 plain bits.
const LEAST: u64 = 1 << 48;

/// Probability that a decision is `true`, in parts of 65,536.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bit {
    one: u16,
    /// Number of times that the decision was met, up to a limit: the first times teach most.
    seen: u16,
}

impl Bit {
    pub(super) const NEW: Self = Self { one: 1 << 15, seen: 0 };
    const SEEN_MAX: u16 = 60;
    /// Least probability of either outcome: none becomes impossible.
    const MARGIN: i32 = 48;

    fn learn(&mut self, bit: bool) {
        let target = if bit { (1 << 16) - Self::MARGIN } else { Self::MARGIN };
        let step = (target - i32::from(self.one)) * 2 / (2 * i32::from(self.seen) + 3);
        self.one = (i32::from(self.one) + step) as u16;
        self.seen = (self.seen + 1).min(Self::SEEN_MAX);
    }
}

/// Writes decisions and plain bits.
pub(super) struct BitEncoder<'o> {
    low: u64,
    range: u64,
    out: &'o mut Vec<u8>,
    begin: usize,
}

impl<'o> BitEncoder<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>) -> Self {
        let begin = out.len();
        Self { low: 0, range: u64::MAX, out, begin }
    }

    fn advance(&mut self, by: u64) {
        let (low, carry) = self.low.overflowing_add(by);
        self.low = low;
        if carry {
            // The bytes are a number below one, so the carry ends among them.
            for byte in self.out[self.begin..].iter_mut().rev() {
                *byte = byte.wrapping_add(1);
                if *byte != 0 {
                    break;
                }
            }
        }
    }

    fn narrow(&mut self) {
        while self.range < LEAST {
            self.out.push((self.low >> 56) as u8);
            self.low <<= 8;
            self.range <<= 8;
        }
    }

    /// Writes up to 32 bits that are as good as random.
    fn plain(&mut self, value: u64, bits: u32) {
        self.range >>= bits;
        self.advance(self.range * value);
        self.narrow();
    }

    /// Writes the end of the code, so that a decoder cannot take it for anything else.
    pub(super) fn finish(mut self) {
        // Any number in the range that is left will do; the one with most zero bytes at its end is the shortest.
        let end = self.low.saturating_add(self.range - 1);
        let shift = (0..=56).rev().step_by(8).find(|&shift| {
            let rounded = self.low.div_ceil(1 << shift).checked_mul(1 << shift);
            rounded.is_some_and(|rounded| rounded <= end)
        });
        let shift = shift.unwrap_or(0);
        let rounded = self.low.div_ceil(1 << shift) << shift;
        self.advance(rounded - self.low);
        let bytes = self.low.to_be_bytes();
        self.out.extend_from_slice(&bytes);
        while self.out.len() > self.begin && self.out.last() == Some(&0) {
            self.out.pop();
        }
    }
}

/// Reads decisions and plain bits. Behind its end the record counts as zeros.
pub(super) struct BitDecoder<'r> {
    code: u64,
    range: u64,
    rest: &'r [u8],
}

impl<'r> BitDecoder<'r> {
    pub(super) fn new(record: &'r [u8]) -> Self {
        let mut decoder = Self { code: 0, range: u64::MAX, rest: record };
        (0..8).for_each(|_| decoder.shift());
        decoder
    }

    fn shift(&mut self) {
        let byte = self.rest.split_off_first().copied().unwrap_or(0);
        self.code = self.code << 8 | u64::from(byte);
    }

    fn narrow(&mut self) {
        while self.range < LEAST {
            self.range <<= 8;
            self.shift();
        }
    }

    fn plain(&mut self, bits: u32) -> u64 {
        self.range >>= bits;
        // Only a damaged record has a code beyond the last part of the range.
        let value = (self.code / self.range).min((1 << bits) - 1);
        self.code = self.code.wrapping_sub(self.range * value);
        self.narrow();
        value
    }

    /// Returns true if all bytes were used.
    pub(super) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
}

/// One of the two directions: code that is generic over it states the order of decisions once, for both.
pub(super) trait Coder {
    /// Codes a decision, and returns it. `bit` is the decision when encoding; a decoder ignores it.
    fn bit(&mut self, model: &mut Bit, bit: bool) -> bool;

    /// Codes up to 32 bits as they are, and returns them.
    fn bits(&mut self, value: u64, bits: u32) -> u64;

    /// Codes `value`, which has `levels` bits, by a tree of decisions; returns it.
    fn tree(&mut self, models: &mut [Bit], levels: u32, value: usize) -> usize {
        let mut node = 1;
        for level in (0..levels).rev() {
            let bit = self.bit(&mut models[node], value >> level & 1 == 1);
            node = node << 1 | usize::from(bit);
        }
        node - (1 << levels)
    }
}

impl Coder for BitEncoder<'_> {
    fn bit(&mut self, model: &mut Bit, bit: bool) -> bool {
        let one = (self.range >> 16) * u64::from(model.one);
        if bit {
            self.range = one;
        } else {
            self.advance(one);
            self.range -= one;
        }
        self.narrow();
        model.learn(bit);
        bit
    }

    fn bits(&mut self, value: u64, bits: u32) -> u64 {
        self.plain(value, bits);
        value
    }
}

impl Coder for BitDecoder<'_> {
    fn bit(&mut self, model: &mut Bit, _: bool) -> bool {
        let one = (self.range >> 16) * u64::from(model.one);
        let bit = self.code < one;
        if bit {
            self.range = one;
        } else {
            self.code -= one;
            self.range -= one;
        }
        self.narrow();
        model.learn(bit);
        bit
    }

    fn bits(&mut self, _: u64, bits: u32) -> u64 {
        self.plain(bits)
    }
}

/// Codes numbers of any size. Adaptive decisions code the number of bits, and by it the two bits below the highest; the
/// other bits are plain.
pub(super) struct Numbers {
    len: [Bit; 128],
    high: [[Bit; 4]; 65],
}

impl Numbers {
    pub(super) const NEW: Self = Self { len: [Bit::NEW; 128], high: [[Bit::NEW; 4]; 65] };

    pub(super) fn code(&mut self, coder: &mut impl Coder, value: u64) -> u64 {
        let bits = coder.tree(&mut self.len, 7, (64 - value.leading_zeros()) as usize).min(64) as u32;
        if bits < 2 {
            return bits.into();
        }
        // The highest bit is a one, and is not coded.
        let below = bits - 1;
        let modelled = below.min(2);
        let plain = below - modelled;
        let part = (value >> plain) as usize & ((1 << modelled) - 1);
        let part = coder.tree(&mut self.high[bits as usize], modelled, part);
        let mut found = (1 << modelled | part as u64) << plain;
        let upper = plain.saturating_sub(32);
        let lower = plain - upper;
        if upper > 0 {
            found |= coder.bits(value >> lower & ((1 << upper) - 1), upper) << lower;
        }
        if lower > 0 {
            found |= coder.bits(value & ((1 << lower) - 1), lower);
        }
        found
    }
}
