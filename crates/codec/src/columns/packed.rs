//! Packs values of one length whose bytes are drawn from small alphabets, all letters about as often: UUIDs as text,
//! keys in hexadecimal digits, account numbers. An entropy coder gains nothing on such values, and takes a step for
//! each letter.
//!
//! Letters that stand side by side form a group: one number to a mixed base, of as many bits as the largest number
//! needs. A value is its groups, one after the other, and a column is its values. Decoding is a look-up for each group,
//! and no look-up waits for another.
//!
//! Streams behind those of lengths: the column's state; in pages with a value that does not fit, a symbol per value
//! that tells if it fits; bytes of those that do not.

use super::bits::{BitReader, BitWriter};
use super::bytes::{get_bytes_order1, put_bytes_order1};
use super::code::{CODED, Read, UNFIT, Write};
use crate::Corrupt;
use crate::entropy::Sink;
use crate::wire::{Reader, put_bytes, put_varint};

/// Longest value, in bytes.
const MAX_BYTES: usize = 64;
/// Largest number of positions in a group; this many bytes are stored at once.
const MAX_GROUP: usize = 4;
/// Largest number of values of a group.
const MAX_VALUES: usize = 1 << 11;
/// One value in this many may have another length.
const ODD_IN: usize = 50;
/// Fewest seen letters that count as a part of a class: fewer may be all there are.
const FEW: usize = 4;
/// Classes of letters: hexadecimal and decimal digits, the letters of names and codes. A column that uses half of a
/// class is taken to use all of it.
const CLASSES: [&[u8]; 7] = [
    b"0123456789",
    b"0123456789abcdef",
    b"0123456789ABCDEF",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"abcdefghijklmnopqrstuvwxyz",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"0123456789abcdefghijklmnopqrstuvwxyz",
];
/// Largest number of letters in an alphabet.
const MAX_LETTERS: usize = 64;
/// Place of a letter that an alphabet does not have.
const NONE: u8 = 255;

/// Neighbouring positions that are coded as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    at: u8,
    len: u8,
    bits: u8,
    table: u8,
}

/// The alphabet of each position of a column's values.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    /// Letters, in order.
    alphabets: Vec<Box<[u8]>>,
    /// The alphabet of each position.
    positions: Box<[u8]>,
    groups: Box<[Group]>,
    /// The letters of each number of a group; groups of the same alphabets share a table.
    tables: Vec<Box<[[u8; MAX_GROUP]]>>,
    /// The place of each letter in its alphabet, or [`NONE`].
    places: Vec<[u8; 256]>,
    /// Number of bits of a value.
    bits: usize,
}

/// Returns the number of bits of the numbers below `count`.
fn bits_of(count: usize) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

impl Packed {
    /// Learns from `contents`, most of which have `len` bytes; returns `None` if they do not, or if nothing is gained.
    pub(crate) fn learn(contents: &[&[u8]], len: usize) -> Option<Self> {
        let usual: Vec<&[u8]> = contents.iter().copied().filter(|content| content.len() == len).collect();
        let suits = (1..=MAX_BYTES).contains(&len) && usual.len() * ODD_IN >= contents.len() * (ODD_IN - 1);
        if !suits {
            return None;
        }
        let mut alphabets: Vec<Box<[u8]>> = vec![];
        let mut positions = vec![];
        for i in 0..len {
            let alphabet = alphabet(usual.iter().map(|content| content[i]));
            if alphabet.len() > MAX_LETTERS {
                return None;
            }
            let known = alphabets.iter().position(|other| *other == alphabet);
            positions.push(known.unwrap_or(alphabets.len()) as u8);
            if known.is_none() {
                alphabets.push(alphabet);
            }
        }
        let lens = group(&positions, &alphabets);
        let packed = Self::new(alphabets, positions.into(), &lens).ok()?;
        (packed.bits < 8 * len && packed.bits > 0).then_some(packed)
    }

    /// Makes the coding of values whose groups have the lengths `lens`.
    fn new(alphabets: Vec<Box<[u8]>>, positions: Box<[u8]>, lens: &[u8]) -> Result<Self, Corrupt> {
        let place = |alphabet: &[u8]| {
            let mut places = [NONE; 256];
            for (place, &letter) in alphabet.iter().enumerate() {
                places[usize::from(letter)] = place as u8;
            }
            places
        };
        let places = alphabets.iter().map(|alphabet| place(alphabet)).collect();
        let (mut groups, mut tables, mut known) = (vec![], vec![], vec![]);
        let (mut at, mut bits) = (0, 0);
        for &len in lens {
            let own = positions.get(at..at + usize::from(len)).ok_or(Corrupt("a group beyond its value"))?;
            if !(1..=MAX_GROUP).contains(&own.len()) {
                return Err(Corrupt("a group is too long, or empty"));
            }
            let count: usize = own.iter().map(|&alphabet| alphabets[usize::from(alphabet)].len()).product();
            if count > MAX_VALUES {
                return Err(Corrupt("a group is too large"));
            }
            let table = known.iter().position(|other| *other == own).unwrap_or(tables.len());
            if table == tables.len() {
                known.push(own);
                tables.push(letters(own, &alphabets, count));
            }
            groups.push(Group { at: at as u8, len, bits: bits_of(count) as u8, table: table as u8 });
            at += usize::from(len);
            bits += bits_of(count) as usize;
        }
        if at != positions.len() {
            return Err(Corrupt("groups do not cover their value"));
        }
        Ok(Self { alphabets, positions, groups: groups.into(), tables, places, bits })
    }

    /// Returns the bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tables: usize = self.tables.iter().map(|table| size_of_val(&**table)).sum();
        self.model_bytes() + size_of_val(&*self.groups) + tables + 256 * self.places.len()
    }

    /// Returns the bytes that alphabets and groups take in a model, before the model is compressed.
    pub(crate) fn model_bytes(&self) -> usize {
        let alphabets: usize = self.alphabets.iter().map(|alphabet| alphabet.len() + 1).sum();
        alphabets + self.positions.len() + self.groups.len()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.alphabets.len() as u64);
        for alphabet in &self.alphabets {
            put_bytes(out, alphabet);
        }
        put_bytes(out, &self.positions);
        let lens: Vec<u8> = self.groups.iter().map(|group| group.len).collect();
        put_bytes(out, &lens);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let mut alphabets = vec![];
        for _ in 0..reader.at_most(MAX_BYTES)? {
            let alphabet: Box<[u8]> = reader.bytes(MAX_LETTERS)?.into();
            if alphabet.is_empty() || !alphabet.is_sorted_by(|a, b| a < b) {
                return Err(Corrupt("an alphabet"));
            }
            alphabets.push(alphabet);
        }
        let positions: Box<[u8]> = reader.bytes(MAX_BYTES)?.into();
        if positions.iter().any(|&alphabet| usize::from(alphabet) >= alphabets.len()) {
            return Err(Corrupt("a position without an alphabet"));
        }
        let lens = reader.bytes(MAX_BYTES)?;
        Self::new(alphabets, positions, lens)
    }

    fn fits(&self, content: &[u8]) -> bool {
        let knows = |(&letter, &alphabet): (&u8, &u8)| {
            self.places[usize::from(alphabet)][usize::from(letter)] != NONE
        };
        content.len() == self.positions.len() && content.iter().zip(&self.positions).all(knows)
    }

    pub(crate) fn put<S: Sink>(&self, w: &mut Write<'_>, sink: &mut S, c: usize, base: usize) {
        let all = w.rows.iter().all(|&t| self.fits(w.grid.content(w.page, c, t)));
        sink.put(base + 3, 0, if all { CODED } else { UNFIT });
        let mut bits = BitWriter::default();
        for &t in w.rows {
            let content = w.grid.content(w.page, c, t);
            if !all {
                let fits = self.fits(content);
                sink.put(base + 4, 0, u8::from(!fits));
                if !fits {
                    put_bytes_order1(sink, base + 5, content);
                    continue;
                }
            }
            for group in &self.groups {
                bits.put(w.plain, self.number(*group, content), group.bits.into());
            }
        }
        bits.finish(w.plain);
    }

    #[inline(always)]
    fn number(&self, group: Group, content: &[u8]) -> u32 {
        let of = usize::from(group.at)..usize::from(group.at + group.len);
        let digit = |(&letter, &alphabet): (&u8, &u8)| {
            let alphabet = usize::from(alphabet);
            (u32::from(self.places[alphabet][usize::from(letter)]), self.alphabets[alphabet].len() as u32)
        };
        let digits = content[of.clone()].iter().zip(&self.positions[of]).map(digit);
        digits.rev().fold(0, |number, (digit, base)| number * base + digit)
    }

    /// Reads values that [`Packed::put`] wrote.
    pub(crate) fn get(&self, r: &mut Read<'_, '_>, c: usize, base: usize) -> Result<(), Corrupt> {
        let all = r.is_coded(base + 3, 0)?;
        let mut bits = BitReader::new(r.plain);
        for &t in r.rows {
            let (at, len) = r.grid.place(c, t);
            if !all && r.decoder.get(r.streams[base + 4].view(0)) != 0 {
                get_bytes_order1(r, base + 5, at, len);
                continue;
            }
            if len != self.positions.len() {
                return Err(Corrupt("a packed value of another length"));
            }
            self.unpack(&mut bits, &mut r.page[at..at + len])?;
        }
        r.plain = bits.finish()?;
        Ok(())
    }

    #[inline(always)]
    fn unpack(&self, bits: &mut BitReader<'_>, to: &mut [u8]) -> Result<(), Corrupt> {
        for group in &self.groups {
            let number = bits.get(group.bits.into());
            let letters = self.tables[usize::from(group.table)]
                .get(number as usize)
                .ok_or(Corrupt("a number beyond its group"))?;
            let at = usize::from(group.at);
            // The next group overwrites the bytes beyond this one.
            match to.get_mut(at..at + MAX_GROUP) {
                Some(to) => to.copy_from_slice(letters),
                None => to[at..].iter_mut().zip(letters).for_each(|(to, letter)| *to = *letter),
            }
        }
        Ok(())
    }
}

/// Returns the letters that were seen, or those of the class that these are from.
fn alphabet(seen: impl Iterator<Item = u8>) -> Box<[u8]> {
    let mut has = [false; 256];
    seen.for_each(|letter| has[usize::from(letter)] = true);
    let own: Vec<u8> = (0..=255u8).filter(|&letter| has[usize::from(letter)]).collect();
    let class = CLASSES.iter().find(|class| {
        own.len() >= FEW.max(class.len() / 2) && own.iter().all(|letter| class.contains(letter))
    });
    class.map_or_else(|| own.into(), |class| (*class).into())
}

/// Returns the letters of each of `count` numbers; the first position is the lowest digit.
fn letters(positions: &[u8], alphabets: &[Box<[u8]>], count: usize) -> Box<[[u8; MAX_GROUP]]> {
    let of = |mut number: usize| {
        let mut letters = [0; MAX_GROUP];
        for (letter, &alphabet) in letters.iter_mut().zip(positions) {
            let alphabet = &alphabets[usize::from(alphabet)];
            *letter = alphabet[number % alphabet.len()];
            number /= alphabet.len();
        }
        letters
    };
    (0..count).map(of).collect()
}

/// Returns the lengths of the groups that take the fewest bits, and of such groups the fewest.
fn group(positions: &[u8], alphabets: &[Box<[u8]>]) -> Vec<u8> {
    // From the end: bits, number of groups, and length of the first group, of the best grouping of all positions from
    // one on.
    let mut best = vec![(0u32, 0u32, 0u8); positions.len() + 1];
    for at in (0..positions.len()).rev() {
        let mut count = 1;
        let mut found = None;
        for (len, &alphabet) in (1..=MAX_GROUP).zip(&positions[at..]) {
            count *= alphabets[usize::from(alphabet)].len();
            if count > MAX_VALUES {
                break;
            }
            let (bits, groups, _) = best[at + len];
            let this = (bits + bits_of(count), groups + 1, len as u8);
            if found.is_none_or(|(bits, groups, _)| (this.0, this.1) < (bits, groups)) {
                found = Some(this);
            }
        }
        // A single position is always a group: an alphabet has at most [`MAX_LETTERS`].
        best[at] = found.unwrap_or((0, 0, 1));
    }
    let (mut at, mut lens) = (0, vec![]);
    while at < positions.len() {
        lens.push(best[at].2);
        at += usize::from(best[at].2);
    }
    lens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_a_class_are_all_known_once_half_are_seen() {
        assert_eq!(*alphabet(b"0123456789abcdef".iter().copied()), *b"0123456789abcdef");
        assert_eq!(*alphabet(b"02468ace".iter().copied()), *b"0123456789abcdef");
        assert_eq!(*alphabet(b"13579".iter().copied()), *b"0123456789");
        assert_eq!(*alphabet(b"-".iter().copied()), *b"-");
        assert_eq!(*alphabet(b"89ab".iter().copied()), *b"89ab");
    }

    #[test]
    fn groups_take_few_bits() {
        let alphabets: Vec<Box<[u8]>> =
            vec![(*b"-").into(), (*b"0123456789abcdef").into(), (*b"0123456789").into()];
        let bits = |positions: &[u8]| {
            let lens = group(positions, &alphabets);
            Packed::new(alphabets.clone(), positions.into(), &lens).map(|packed| packed.bits)
        };
        assert_eq!(bits(&[1; 32]), Ok(128));
        assert_eq!(bits(&[2; 9]), Ok(30));
        assert_eq!(bits(&[0, 0, 1, 0, 2, 2]), Ok(4 + 7));
        assert_eq!(bits(&[0; 8]), Ok(0));
    }

    #[test]
    fn hostile_models_are_refused() {
        let alphabets: Vec<Box<[u8]>> = vec![(0..64).collect()];
        assert!(Packed::new(alphabets.clone(), [0, 0].into(), &[2]).is_err());
        assert!(Packed::new(alphabets.clone(), [0, 0].into(), &[1]).is_err());
        assert!(Packed::new(alphabets.clone(), [0, 0].into(), &[1, 1, 1]).is_err());
        assert!(Packed::new(alphabets.clone(), [0; 60].into(), &[60]).is_err());
        assert!(Packed::new(alphabets, [0, 0].into(), &[1, 1]).is_ok());
    }
}
