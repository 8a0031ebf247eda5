//! Codes arrays of floating-point numbers, as RRD files are: each page alone, without a model.
//!
//! A sample is rarely a random number. It was written with few digits, or is the mean of numbers that were: an integer
//! divided by a small number that its neighbours share. Such a sample is coded as the difference of this integer to the
//! one before it, and as the few units in the last place by which the database's arithmetic has rounded differently.
//! Where several sources take turns, each has its own **lane**. Any other number is coded as the difference of its
//! bits.
//!
//! RRDtool multiplies a sample by the seconds that it stands for, and divides by the step: most come back as they were, some
//! are off by a unit in the last place. With the step known, all are foretold.

mod coder;
mod format;

use coder::{Bit, BitDecoder, BitEncoder, Coder, Numbers};

pub(crate) use format::{Doubles, FILES};

use crate::Corrupt;
use crate::entropy::number::{unzigzag, zigzag};
use crate::wire::{Reader, put_varint};

const WORD: usize = 8;
/// Largest number of sources that take turns.
const LANES: usize = 8;
/// Largest divisor: enough for means of some hundred samples with three decimals.
const DIVISOR_MAX: u64 = 1 << 24;
/// Number of samples from which the divisor is found.
const SAMPLES: usize = 32;
/// Largest number of bits that numerator and denominator have together: a longer fraction may be coincidence.
const EVIDENCE: u32 = 38;
/// Largest distance of a sample from its fraction, in units in the last place.
const ROUNDING: i64 = 8;
/// Steps of databases, in seconds: collectd's, those of Cacti and Munin, and others that people choose.
const STEPS: [u64; 12] = [1, 10, 60, 300, 5, 30, 15, 20, 120, 600, 900, 3600];
/// Largest step that a record may name.
const STEP_MAX: u64 = 1 << 20;
/// Number of integers of a lane whose mean foretells the next one, of samples that scatter around a level.
const HISTORY: usize = 4;
/// In a record's first byte: the lanes, less one; if the mean of the last integers foretells the next one, and not the
/// last alone; and if a step follows.
const LANES_MASK: u8 = 7;
const BY_MEAN: u8 = 8;
const HAS_STEP: u8 = 16;
/// Bound of the integers that samples are made of: below it each is a floating-point number of its own.
const EXACT: f64 = (1u64 << 52) as f64;
/// The word that stands for a missing sample: the NaN that x86 makes of 0 / 0, as RRDtool has it.
const NAN: u64 = 0xFFF8 << 48;

/// Classes of words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Equal to the word before it in its lane.
    Same,
    /// An integer divided by the page's divisor.
    Number,
    Nan,
    Raw,
}

/// Returns true if `bytes` may be an array of floating-point numbers. Looks at up to 64 words spread over them: at
/// least 7/8 have to be NaN, 0 or between 2^-64 and 2^64, and more than a quarter not 0.
#[must_use]
pub fn plausible(bytes: &[u8]) -> bool {
    let words = bytes.len() / WORD;
    let (mut numbers, mut zeros, mut looked_at) = (0, 0, 0);
    for at in (0..words).step_by(words.div_ceil(64).max(1)) {
        let word = word_at(bytes, at);
        looked_at += 1;
        zeros += usize::from(word == 0);
        numbers += usize::from(is_usual(word));
    }
    (numbers + zeros) * 8 >= looked_at * 7 && numbers * 4 > looked_at
}

/// Returns true if a third of the words of `bytes` may be floating-point numbers: enough for what is left of a series
/// among other things.
#[must_use]
pub fn has_many(bytes: &[u8]) -> bool {
    let words = bytes.len().div_ceil(WORD);
    let numbers = (0..words).filter(|at| is_usual(word_at(bytes, *at))).count();
    numbers > 0 && numbers * 3 >= words
}

/// Returns true for NaN and for numbers between 2^-64 and 2^64, of either sign.
fn is_usual(word: u64) -> bool {
    let exponent = word >> 52 & 0x7FF;
    word << 1 == NAN << 1 || (1023 - 64..1023 + 64).contains(&exponent)
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; WORD];
    let from = &bytes[at * WORD..bytes.len().min((at + 1) * WORD)];
    word[..from.len()].copy_from_slice(from);
    u64::from_le_bytes(word)
}

/// Facts about an array that its record begins with.
#[derive(Clone, Copy)]
struct ArrayHead {
    lanes: usize,
    fraction: Fraction,
    by_mean: bool,
}

/// How the samples of an array were made of integers: divided, then multiplied by a step and divided by it.
#[derive(Clone, Copy)]
struct Fraction {
    divisor: u64,
    step: u64,
}

impl ArrayHead {
    fn of(words: &[u64]) -> Self {
        let lanes = find_lanes(words);
        let divisor = find_divisor(words);
        let fraction = Fraction { divisor, step: find_step(words, divisor) };
        Self { lanes, fraction, by_mean: scatters(words, lanes, fraction) }
    }

    fn append(self, out: &mut Vec<u8>) {
        let step = self.fraction.step;
        let flags = (u8::from(self.by_mean) * BY_MEAN) | (u8::from(step != 1) * HAS_STEP);
        out.push((self.lanes - 1) as u8 | flags);
        put_varint(out, self.fraction.divisor);
        if step != 1 {
            put_varint(out, step);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let bad = Corrupt("a head of numbers");
        let first = reader.byte()?;
        let lanes = usize::from(first & LANES_MASK) + 1;
        let divisor = reader.varint()?;
        let step = if first & HAS_STEP == 0 { 1 } else { reader.varint()? };
        let known = LANES_MASK | BY_MEAN | HAS_STEP;
        if first & !known != 0 || divisor > DIVISOR_MAX || step == 0 || step > STEP_MAX {
            return Err(bad);
        }
        Ok(Self { lanes, fraction: Fraction { divisor, step }, by_mean: first & BY_MEAN != 0 })
    }
}

/// Appends the record of `bytes` to `out` and returns true if decoding it gave `bytes` back. Otherwise returns false,
/// and `out` is as it was.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    let begin = out.len();
    let words: Vec<u64> = (0..bytes.len().div_ceil(WORD)).map(|at| word_at(bytes, at)).collect();
    let head = ArrayHead::of(&words);
    head.append(out);
    let mut coder = BitEncoder::new(out);
    let mut state = ArrayState::new(head);
    for &word in &words {
        state.code(&mut coder, word);
    }
    coder.finish();
    let mut again = vec![0; bytes.len()];
    let same = decode(&out[begin..], &mut again).is_ok() && again == bytes;
    if !same {
        out.truncate(begin);
    }
    same
}

/// Fills `bytes` from the record that [`encode`] made of an array of the same length.
///
/// # Errors
/// [`Corrupt`] if `record` cannot be such a record. The content of `bytes` is arbitrary then.
pub fn decode(record: &[u8], bytes: &mut [u8]) -> Result<(), Corrupt> {
    let mut reader = Reader::new(record);
    let head = ArrayHead::read(&mut reader)?;
    let rest = reader.rest();
    if rest.last() == Some(&0) {
        return Err(Corrupt("a head of numbers"));
    }
    let mut coder = BitDecoder::new(rest);
    let mut state = ArrayState::new(head);
    for to in bytes.chunks_mut(WORD) {
        let (here, beyond) = (to.len(), state.code(&mut coder, 0).to_le_bytes());
        to.copy_from_slice(&beyond[..here]);
        if beyond[here..].iter().any(|&byte| byte != 0) {
            return Err(Corrupt("a number beyond the end"));
        }
    }
    if coder.is_done() { Ok(()) } else { Err(Corrupt("more bytes than numbers")) }
}

/// The last integers of a lane.
#[derive(Clone, Copy, Default)]
struct SourceLane {
    last: [i64; HISTORY],
    met: usize,
}

impl SourceLane {
    /// Returns the integer that is expected next.
    fn next(&self, by_mean: bool) -> i64 {
        if by_mean {
            self.last.iter().fold(0_i64, |sum, integer| sum.wrapping_add(*integer)) / HISTORY as i64
        } else {
            self.last[(self.met + HISTORY - 1) % HISTORY]
        }
    }

    fn note(&mut self, integer: i64) {
        if self.met == 0 {
            self.last = [integer; HISTORY];
        }
        self.last[self.met % HISTORY] = integer;
        self.met += 1;
    }
}

/// State after the words that were coded so far; the same in both directions.
struct ArrayState {
    head: ArrayHead,
    lane: usize,
    /// By lane: the word before, the last word that was not [`NAN`], and the integers of the last of [`Class::Number`].
    before: [u64; LANES],
    samples: [u64; LANES],
    integers: [SourceLane; LANES],
    last: Class,
    /// Decisions about the class, by the class of the word before, whatever its lane.
    classes: [[Bit; 3]; 4],
    differences: Numbers,
    /// Decisions about the rounding of a number, by whether the rounding before it was other than 0.
    roundings: [[Bit; 32]; 2],
    rounded: bool,
    raw: Numbers,
}

impl ArrayState {
    fn new(head: ArrayHead) -> Self {
        Self {
            head,
            lane: 0,
            before: [0; LANES],
            samples: [0; LANES],
            integers: [SourceLane::default(); LANES],
            last: Class::Raw,
            classes: [[Bit::NEW; 3]; 4],
            differences: Numbers::NEW,
            roundings: [[Bit::NEW; 32]; 2],
            rounded: false,
            raw: Numbers::NEW,
        }
    }

    /// Codes the next word, and returns it. `word` is that word when encoding; a decoder passes 0.
    fn code(&mut self, coder: &mut impl Coder, word: u64) -> u64 {
        let lane = self.lane;
        self.lane = if lane + 1 == self.head.lanes { 0 } else { lane + 1 };
        let number = as_integer(word, self.head.fraction);
        let class = match word {
            _ if word == self.before[lane] => Class::Same,
            NAN => Class::Nan,
            _ if number.is_some() => Class::Number,
            _ => Class::Raw,
        };
        let class = self.code_class(coder, class);
        let word = match class {
            Class::Same => self.before[lane],
            Class::Nan => NAN,
            Class::Number => self.code_number(coder, lane, number.unwrap_or_default()),
            Class::Raw => {
                let difference = zigzag(word.wrapping_sub(self.samples[lane]) as i64);
                let difference = self.raw.code(coder, difference);
                self.samples[lane].wrapping_add(unzigzag(difference) as u64)
            }
        };
        self.before[lane] = word;
        if word != NAN {
            self.samples[lane] = word;
        }
        word
    }

    fn code_class(&mut self, coder: &mut impl Coder, class: Class) -> Class {
        let models = &mut self.classes[self.last as usize];
        // The classes are asked for in this order, until one is right.
        let [same, number, nan] = models;
        let found = if coder.bit(same, class == Class::Same) {
            Class::Same
        } else if coder.bit(number, class == Class::Number) {
            Class::Number
        } else if coder.bit(nan, class == Class::Nan) {
            Class::Nan
        } else {
            Class::Raw
        };
        self.last = found;
        found
    }

    fn code_number(&mut self, coder: &mut impl Coder, lane: usize, (integer, rounding): (i64, i64)) -> u64 {
        let expected = self.integers[lane].next(self.head.by_mean);
        let difference = zigzag(integer.wrapping_sub(expected));
        let difference = unzigzag(self.differences.code(coder, difference));
        let models = &mut self.roundings[usize::from(self.rounded)];
        let rounding = coder.tree(models, 5, zigzag(rounding) as usize & 31);
        self.rounded = rounding != 0;
        let integer = expected.wrapping_add(difference);
        self.integers[lane].note(integer);
        from_integer(integer, self.head.fraction, unzigzag(rounding as u64))
    }
}

/// Returns the integer that `word` is when it is multiplied by the divisor, and the units in the last place by which
/// `word` is off. Returns `None` if there is no such integer within [`ROUNDING`].
fn as_integer(word: u64, fraction: Fraction) -> Option<(i64, i64)> {
    let scaled = (f64::from_bits(word) * fraction.divisor as f64).round();
    // The comparison is false for NaN.
    let exact = scaled.abs() < EXACT && fraction.divisor > 0;
    let integer = scaled as i64;
    let rounding = word.wrapping_sub(from_integer(integer, fraction, 0)) as i64;
    (exact && rounding.unsigned_abs() <= ROUNDING as u64).then_some((integer, rounding))
}

/// Inverts [`as_integer`]: division and multiplication are rounded in the same way on every machine.
fn from_integer(integer: i64, Fraction { divisor, step }: Fraction, rounding: i64) -> u64 {
    let sample = integer as f64 / divisor.max(1) as f64;
    let sample = if step == 1 { sample } else { sample * step as f64 / step as f64 };
    sample.to_bits().wrapping_add(rounding as u64)
}

/// Returns the step by which most samples come out of their fractions exactly.
fn find_step(words: &[u64], divisor: u64) -> u64 {
    if divisor == 0 {
        return 1;
    }
    let exact = |step: u64| {
        let fraction = Fraction { divisor, step };
        samples(words)
            .filter(|word| as_integer(*word, fraction).is_some_and(|(_, rounding)| rounding == 0))
            .count()
    };
    // Of several that are as good, the first one.
    STEPS.into_iter().rev().max_by_key(|step| exact(*step)).unwrap_or(1)
}

/// Returns true if the mean of a lane's last integers is nearer to the next one than the last integer is.
fn scatters(words: &[u64], lanes: usize, fraction: Fraction) -> bool {
    let mut of = [SourceLane::default(); LANES];
    let mut costs = [0; 2];
    for (at, &word) in words.iter().enumerate() {
        let Some((integer, _)) = as_integer(word, fraction) else { continue };
        let lane = &mut of[at % lanes];
        for (cost, by_mean) in costs.iter_mut().zip([false, true]) {
            let difference = zigzag(integer.wrapping_sub(lane.next(by_mean)));
            *cost += u64::from(64 - difference.leading_zeros());
        }
        lane.note(integer);
    }
    costs[1] < costs[0]
}

/// Returns the samples among the words, [`SAMPLES`] at most, spread over all of them.
fn samples(words: &[u64]) -> impl Iterator<Item = u64> {
    let is_sample = |word: &&u64| is_usual(**word) && **word << 1 != NAN << 1;
    let count = words.iter().filter(is_sample).count();
    words.iter().filter(is_sample).step_by(count.div_ceil(SAMPLES).max(1)).copied()
}

/// Returns the number of sources that take turns: the one with the shortest differences.
fn find_lanes(words: &[u64]) -> usize {
    let cost = |lanes: usize| -> u64 {
        let pairs = words.iter().zip(words.get(lanes..).unwrap_or_default());
        pairs
            .map(|(before, word)| u64::from(64 - zigzag(word.wrapping_sub(*before) as i64).leading_zeros()))
            .sum()
    };
    (1..=LANES).min_by_key(|&lanes| (cost(lanes), lanes)).unwrap_or(1)
}

/// Returns the number that most samples are integers divided by, or 0 if there is none.
fn find_divisor(words: &[u64]) -> u64 {
    let mut divisor = 0;
    for word in samples(words) {
        let Some(denominator) = denominator(f64::from_bits(word).abs()) else { continue };
        let common = if divisor == 0 { denominator } else { least_common_multiple(divisor, denominator) };
        if common <= DIVISOR_MAX {
            divisor = common;
        }
    }
    let fraction = Fraction { divisor, step: 1 };
    let fitting = samples(words).filter(|word| as_integer(*word, fraction).is_some()).count();
    if 2 * fitting >= samples(words).count() { divisor } else { 0 }
}

/// Returns the denominator of the simplest fraction that `number` is, but for rounding, by its continued fraction;
/// `None` if there is none within [`EVIDENCE`].
fn denominator(number: f64) -> Option<u64> {
    const DEPTH: usize = 16;
    let bits = |number: u64| 64 - number.leading_zeros();
    let mut rest = number;
    let (mut before, mut last) = ((0u64, 1u64), (1u64, 0u64));
    for _ in 0..DEPTH {
        let whole = rest.floor();
        if whole >= EXACT {
            return None;
        }
        let next = |last: u64, before: u64| last.checked_mul(whole as u64)?.checked_add(before);
        let found = (next(last.0, before.0)?, next(last.1, before.1)?);
        if bits(found.0) + bits(found.1) > EVIDENCE {
            return None;
        }
        let off = number.to_bits().wrapping_sub((found.0 as f64 / found.1 as f64).to_bits()) as i64;
        if off.unsigned_abs() <= ROUNDING as u64 {
            return Some(found.1);
        }
        (before, last) = (last, found);
        rest = 1.0 / (rest - whole);
    }
    None
}

fn least_common_multiple(one: u64, other: u64) -> u64 {
    let (mut a, mut b) = (one, other);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    one / a * other
}
