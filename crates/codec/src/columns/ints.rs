//! Codes columns of integers (and of all that has 1, 2, 4 or 8 bytes; in InnoDB, of all that has up to 8).

mod get;
mod put;

use super::Column;
use super::decimal::{self, as_decimal, from_decimal};
use crate::Corrupt;
use crate::entropy::number::{unzigzag, zigzag};
use crate::wire::{Reader, put_varint};

/// References of values: the residual is the difference to one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// A constant.
    Constant,
    /// The value of the row before.
    Previous,
    /// The value of an earlier column in the same row.
    Column(u8),
}

/// Codings of residuals as symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planes {
    /// A [`crate::entropy::number`].
    Number,
    /// `coded` bytes from the highest that is ever used, each in the context of the one above; then `plain` bytes as
    /// they are.
    Bytes { coded: u8, plain: u8 },
}

/// The coding of a column of integers. The residual is `(value - reference) / step`; zigzag if it may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntCoding {
    /// Digits behind the point, if values are floating-point numbers that are coded as decimals.
    pub(crate) digits: Option<u8>,
    pub(crate) against: Against,
    pub(crate) planes: Planes,
    /// The reference, or that of the first row.
    pub(crate) base: u64,
    pub(crate) step: u64,
    /// The most frequent residual: a page that has no other is marked as such.
    pub(crate) common: u64,
}

/// The third state of a column in a page: some value has no residual, and all are kept as they are.
const PLAIN: u8 = 2;

/// Returns the low `width` bytes of `value` as a signed number.
#[inline(always)]
fn sign_extend(value: u64, width: usize) -> i64 {
    let shift = 64 - 8 * width as u32;
    (value << shift) as i64 >> shift
}

#[inline(always)]
fn mask(width: usize) -> u64 {
    u64::MAX >> (64 - 8 * width as u32)
}

/// Returns the value of `column` at `at`.
#[inline(always)]
pub(crate) fn load(page: &[u8], at: usize, column: Column) -> u64 {
    if column.is_innodb() {
        return load_innodb(page, at, usize::from(column.width));
    }
    match column.width {
        1 => page.get(at).map_or(0, |&byte| u64::from(byte)),
        2 => page
            .get(at..at + 2)
            .and_then(|b| b.first_chunk().copied())
            .map_or(0, |b| u64::from(u16::from_le_bytes(b))),
        4 => page
            .get(at..at + 4)
            .and_then(|b| b.first_chunk().copied())
            .map_or(0, |b| u64::from(u32::from_le_bytes(b))),
        _ => page.get(at..at + 8).and_then(|b| b.first_chunk().copied()).map_or(0, u64::from_le_bytes),
    }
}

/// Returns the integer of `width` bytes at `at`. The high byte comes first, and its highest bit is set for numbers that
/// are not negative.
#[inline(always)]
fn load_innodb(page: &[u8], at: usize, width: usize) -> u64 {
    let value = match page.get(at..at + 8).and_then(|b| b.first_chunk().copied()) {
        Some(bytes) => u64::from_be_bytes(bytes) >> (64 - 8 * width as u32),
        None => page.iter().skip(at).take(width).fold(0, |value, &byte| value << 8 | u64::from(byte)),
    };
    value ^ 1 << (8 * width as u32 - 1)
}

#[inline(always)]
fn store(page: &mut [u8], at: usize, column: Column, value: u64) {
    if column.is_innodb() {
        return store_innodb(page, at, usize::from(column.width), value);
    }
    let bytes = value.to_le_bytes();
    match column.width {
        1 => page[at] = bytes[0],
        2 => page[at..at + 2].copy_from_slice(&bytes[..2]),
        4 => page[at..at + 4].copy_from_slice(&bytes[..4]),
        _ => page[at..at + 8].copy_from_slice(&bytes),
    }
}

#[inline(always)]
fn store_innodb(page: &mut [u8], at: usize, width: usize, value: u64) {
    let bytes = (value ^ 1 << (8 * width as u32 - 1)).to_be_bytes();
    let to = &mut page[at..at + width];
    // A copy of a length that the compiler knows takes an instruction or two.
    match width {
        1 => to.copy_from_slice(&bytes[7..]),
        2 => to.copy_from_slice(&bytes[6..]),
        3 => to.copy_from_slice(&bytes[5..]),
        4 => to.copy_from_slice(&bytes[4..]),
        5 => to.copy_from_slice(&bytes[3..]),
        6 => to.copy_from_slice(&bytes[2..]),
        7 => to.copy_from_slice(&bytes[1..]),
        _ => to.copy_from_slice(&bytes),
    }
}

impl IntCoding {
    pub(crate) fn streams(&self) -> usize {
        match self.planes {
            Planes::Number => 1,
            Planes::Bytes { coded, .. } => usize::from(coded),
        }
    }

    /// Returns the column that values are differences to, if there is one.
    pub(crate) fn reference(&self) -> Option<usize> {
        match self.against {
            Against::Column(c) => Some(usize::from(c)),
            Against::Constant | Against::Previous => None,
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(
            out,
            match self.against {
                Against::Constant => 0,
                Against::Previous => 1,
                Against::Column(c) => 2 + u64::from(c),
            },
        );
        out.push(match self.planes {
            Planes::Number => 0,
            Planes::Bytes { coded, plain } => 1 + coded * 16 + plain,
        });
        out.push(self.digits.map_or(0, |digits| 1 + digits));
        for value in [self.base, self.step, self.common] {
            put_varint(out, value);
        }
    }

    /// Reads the coding of `column`, the one with number `c`.
    pub(crate) fn read(reader: &mut Reader<'_>, c: usize, column: Column) -> Result<Self, Corrupt> {
        let against = match reader.at_most(1 + c)? {
            0 => Against::Constant,
            1 => Against::Previous,
            other => Against::Column((other - 2) as u8),
        };
        let planes = match reader.byte()? {
            0 => Planes::Number,
            other => {
                let (coded, plain) = ((other - 1) / 16, (other - 1) % 16);
                if coded + plain > 8 {
                    return Err(Corrupt("an integer of more than 8 bytes"));
                }
                Planes::Bytes { coded, plain }
            }
        };
        let digits =
            reader.at_most(1 + usize::from(decimal::MAX_DIGITS))?.checked_sub(1).map(|digits| digits as u8);
        if digits.is_some() && !column.is_float() {
            return Err(Corrupt("decimals of another width"));
        }
        let [base, step, common] = [reader.varint()?, reader.varint()?, reader.varint()?];
        if step == 0 {
            return Err(Corrupt("a step of zero"));
        }
        Ok(Self { digits, against, planes, base, step, common })
    }

    /// Returns the residual of `value`, or `None` if the difference is no multiple of the step.
    #[inline(always)]
    fn residual(&self, value: u64, reference: u64, width: usize) -> Option<u64> {
        let difference = value.wrapping_sub(reference) & mask(width);
        match self.against {
            Against::Constant if self.step == 1 => Some(difference),
            Against::Constant => difference.is_multiple_of(self.step).then(|| difference / self.step),
            _ => {
                let signed = sign_extend(difference, width);
                if self.step == 1 {
                    return Some(zigzag(signed));
                }
                let step = i64::try_from(self.step).ok()?;
                (signed % step == 0).then(|| zigzag(signed / step))
            }
        }
    }

    #[inline(always)]
    fn value(&self, residual: u64, reference: u64, width: usize) -> u64 {
        let difference = match self.against {
            Against::Constant => residual.wrapping_mul(self.step),
            _ => (unzigzag(residual) as u64).wrapping_mul(self.step),
        };
        reference.wrapping_add(difference) & mask(width)
    }

    /// Returns the number that the residual of a stored value is made of; `None` if it should be a decimal and is not.
    #[inline(always)]
    fn number(&self, value: u64) -> Option<u64> {
        match self.digits {
            None => Some(value),
            Some(digits) => as_decimal(f64::from_bits(value), digits).map(|whole| whole as u64),
        }
    }

    /// Inverts [`IntCoding::number`].
    #[inline(always)]
    fn stored(&self, number: u64) -> u64 {
        self.digits.map_or(number, |digits| from_decimal(number as i64, digits).to_bits())
    }
}
