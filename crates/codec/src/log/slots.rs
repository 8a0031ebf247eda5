//! Codes data of log records byte by byte: each place of each kind of data has a distribution, in the context that
//! tells most about it.
//!
//! Data of one kind (the tuple that a relation's insertion carries, an index's new entry) is a **slot**. Its first
//! bytes are coded by place; those behind the slot's **cut** go through zstd. The context of a place is the byte before
//! it, the byte at the same place of the slot's last data, or a byte of the **surroundings**: transaction, blocks, the
//! last tuple, earlier parts of the record.

use crate::Corrupt;
use crate::entropy::histogram::Histogram;
use crate::log::io::Io;
use crate::text::estimate_bits;
use crate::wire::{Reader, put_varint};

/// Number of bytes of the surroundings.
pub(crate) const AROUND: usize = 192;
/// Largest number of bytes of data that are coded by place.
pub(crate) const PLACES_MAX: usize = 96;
/// Largest numbers of slots, and of places of all slots, in a model: a place's tables take some KiB of memory.
pub(crate) const SLOTS_MAX: usize = 1024;
pub(crate) const ALL_PLACES_MAX: usize = 2048;
/// Largest number of samples of a slot by which places are chosen; a slot with fewer than the least is not worth places
/// of its own.
const SAMPLES: usize = 500;
const SAMPLES_MIN: usize = 12;
/// Longest data that is coded by place to its end, in bytes.
const SHORT: usize = 24;
/// Number of bytes of the surroundings that are tried for each place.
const CANDIDATES: usize = 3;
/// Number of bytes of samples that stand for a page when zstd is estimated.
const PAGE_OF_TEXT: usize = 2048;

/// Surroundings: bytes from which a record's data can be predicted.
pub(crate) type Around = [u8; AROUND];

/// Bytes that a place's context can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Nothing,
    Before,
    Last,
    Around(u8),
}

/// The coding of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlaceCoding {
    from: From,
    /// True if the symbol is the difference to the byte of `from`, in the context of the difference before; otherwise
    /// it is the byte itself, in the context of the byte of `from`.
    difference: bool,
}

/// A kind of data.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataSlot {
    /// The stream of the first place; the others follow.
    first_stream: usize,
    places: Vec<PlaceCoding>,
    /// Usual bytes, which count as the last data at a page's beginning.
    usual: Vec<u8>,
}

/// The last data of every slot in a page.
#[derive(Debug, Default)]
pub(crate) struct Lasts {
    bytes: Vec<[u8; PLACES_MAX]>,
}

/// Data of one slot that training met.
#[derive(Debug)]
pub(crate) struct DataSample {
    around: Box<Around>,
    last: [u8; PLACES_MAX],
    data: Vec<u8>,
}

/// Data of all slots that training met.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    by_slot: Vec<Vec<DataSample>>,
    /// Number of times that data of each slot was met.
    met: Vec<usize>,
}

/// All slots of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    all: Vec<DataSlot>,
    /// First stream of the slots, behind those of others.
    begin: usize,
}

impl Lasts {
    pub(crate) fn begin(&mut self, slots: &Slots) {
        self.bytes.clear();
        self.bytes.extend(slots.all.iter().map(|slot| {
            let mut bytes = [0; PLACES_MAX];
            bytes[..slot.usual.len()].copy_from_slice(&slot.usual);
            bytes
        }));
    }
}

impl Samples {
    pub(crate) fn new(slots: usize) -> Self {
        Self { by_slot: (0..slots).map(|_| vec![]).collect(), met: vec![0; slots] }
    }

    /// Notes data: all is counted, and the first [`SAMPLES`] of a slot are kept.
    fn note(&mut self, slot: usize, around: &Around, last: &[u8; PLACES_MAX], data: &[u8]) {
        let (Some(samples), Some(met)) = (self.by_slot.get_mut(slot), self.met.get_mut(slot)) else { return };
        *met += 1;
        if samples.len() < SAMPLES {
            samples.push(DataSample { around: Box::new(*around), last: *last, data: data.to_vec() });
        }
    }
}

impl Slots {
    /// Makes `count` slots without places, whose streams would begin at `begin`.
    pub(crate) fn empty(count: usize, begin: usize) -> Self {
        Self { all: vec![DataSlot::default(); count], begin }
    }

    /// Chooses places by `samples`. Streams of places begin at `begin`.
    pub(crate) fn learn(samples: &Samples, begin: usize, level: i32) -> Self {
        let mut all = vec![DataSlot::default(); samples.by_slot.len()];
        let mut order: Vec<usize> =
            (0..all.len()).filter(|&n| samples.by_slot[n].len() >= SAMPLES_MIN).collect();
        order.sort_by_key(|&n| (std::cmp::Reverse(samples.met[n]), n));
        let mut left = ALL_PLACES_MAX;
        for n in order {
            let slot = learn_slot(&samples.by_slot[n], left, level);
            left -= slot.places.len();
            all[n] = slot;
        }
        let mut slots = Self { all, begin };
        slots.number();
        slots
    }

    fn number(&mut self) {
        let mut next = self.begin;
        for slot in &mut self.all {
            slot.first_stream = next;
            next += slot.places.len();
        }
    }

    /// Returns the first stream behind those of all places.
    pub(crate) fn end(&self) -> usize {
        self.begin + self.all.iter().map(|slot| slot.places.len()).sum::<usize>()
    }

    /// Codes the first bytes of `data` by place, and returns their number. `data` may be only the beginning of data
    /// that goes on in the next page.
    pub(crate) fn code<I: Io>(
        &self,
        io: &mut I,
        n: usize,
        around: &Around,
        lasts: &mut Lasts,
        samples: Option<&mut Samples>,
        data: &mut [u8],
    ) -> usize {
        let (Some(slot), Some(last)) = (self.all.get(n), lasts.bytes.get_mut(n)) else { return 0 };
        if let Some(samples) = samples {
            samples.note(n, around, last, data);
            let kept = data.len().min(PLACES_MAX);
            last[..kept].copy_from_slice(&data[..kept]);
        }
        let (mut before, mut difference) = (0, 0);
        for (i, (place, byte)) in slot.places.iter().zip(data.iter_mut()).enumerate() {
            let (base, ctx) = place.context(before, last[i], around, difference);
            difference = io.symbol(slot.first_stream + i, ctx, byte.wrapping_sub(base));
            *byte = base.wrapping_add(difference);
            before = *byte;
            last[i] = before;
        }
        slot.places.len().min(data.len())
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.all.len() as u64);
        for slot in &self.all {
            put_varint(out, slot.places.len() as u64);
            for (place, &usual) in slot.places.iter().zip(&slot.usual) {
                let from = match place.from {
                    From::Nothing => 0,
                    From::Before => 1,
                    From::Last => 2,
                    From::Around(at) => 3 + u64::from(at),
                };
                put_varint(out, from << 1 | u64::from(place.difference));
                out.push(usual);
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>, begin: usize) -> Result<Self, Corrupt> {
        let count = reader.at_most(SLOTS_MAX)?;
        let (mut all, mut left) = (vec![], ALL_PLACES_MAX);
        for _ in 0..count {
            let places = reader.at_most(PLACES_MAX.min(left))?;
            left -= places;
            let mut slot = DataSlot::default();
            for _ in 0..places {
                let packed = reader.at_most(2 * (3 + AROUND) - 1)?;
                let from = match packed >> 1 {
                    0 => From::Nothing,
                    1 => From::Before,
                    2 => From::Last,
                    at => From::Around((at - 3) as u8),
                };
                slot.places.push(PlaceCoding { from, difference: packed & 1 == 1 });
                slot.usual.push(reader.byte()?);
            }
            all.push(slot);
        }
        let mut slots = Self { all, begin };
        slots.number();
        Ok(slots)
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Describes slot `n` for people, in one line.
    pub(crate) fn describe(&self, n: usize) -> String {
        let Some(slot) = self.all.get(n) else { return String::new() };
        let places = slot.places.iter().map(|place| {
            let sign = if place.difference { "-" } else { "" };
            match place.from {
                From::Nothing => "0".to_owned(),
                From::Before => "b".to_owned(),
                From::Last => format!("{sign}l"),
                From::Around(at) => format!("{sign}{at}"),
            }
        });
        places.collect::<Vec<_>>().join(" ")
    }
}

impl PlaceCoding {
    /// Returns the byte that the symbol is a difference to, and the symbol's context.
    #[inline(always)]
    fn context(self, before: u8, last: u8, around: &Around, difference: u8) -> (u8, u8) {
        let byte = match self.from {
            From::Nothing => 0,
            From::Before => before,
            From::Last => last,
            From::Around(at) => around.get(usize::from(at)).copied().unwrap_or(0),
        };
        if self.difference { (byte, difference) } else { (0, byte) }
    }
}

fn learn_slot(samples: &[DataSample], left: usize, level: i32) -> DataSlot {
    let longest = samples.iter().map(|sample| sample.data.len()).max().unwrap_or(0);
    let most = longest.min(PLACES_MAX).min(left);
    let (mut places, mut usual, mut costs) = (vec![], vec![], vec![]);
    // The difference at the place before, for each sample: it depends on how that place is coded.
    let mut differences = vec![0u8; samples.len()];
    for i in 0..most {
        let (place, bits) = best_place(samples, i, &mut differences);
        let mut counts = [0u32; 256];
        for sample in samples {
            if let Some(&byte) = sample.data.get(i) {
                counts[usize::from(byte)] += 1;
            }
        }
        usual.push((0..=255u8).max_by_key(|&byte| (counts[usize::from(byte)], 255 - byte)).unwrap_or(0));
        places.push(place);
        costs.push(bits);
    }
    let mut best = (f64::INFINITY, most);
    if longest > SHORT || most < longest {
        let mut bits = 0.0;
        for cut in 0..=most {
            if cut.is_multiple_of(8) || cut == most {
                let all = bits + text_bits(samples, cut, level);
                if all < best.0 {
                    best = (all, cut);
                }
            }
            bits += costs.get(cut).copied().unwrap_or(0.0);
        }
    }
    places.truncate(best.1);
    usual.truncate(best.1);
    DataSlot { first_stream: 0, places, usual }
}

/// Estimates the bits that zstd makes of the data behind the cut.
fn text_bits(samples: &[DataSample], cut: usize, level: i32) -> f64 {
    let mut texts: Vec<Vec<u8>> = vec![];
    for sample in samples {
        let text = sample.data.get(cut..).unwrap_or_default();
        match texts.last_mut().filter(|last| last.len() < PAGE_OF_TEXT) {
            Some(last) => last.extend_from_slice(text),
            None => texts.push(text.to_vec()),
        }
    }
    estimate_bits(&texts, 64 << 10, level)
}

fn best_place(samples: &[DataSample], i: usize, differences: &mut [u8]) -> (PlaceCoding, f64) {
    let mut candidates = vec![
        PlaceCoding { from: From::Nothing, difference: false },
        PlaceCoding { from: From::Before, difference: false },
        PlaceCoding { from: From::Last, difference: false },
        PlaceCoding { from: From::Last, difference: true },
    ];
    let mut equal = [0u32; AROUND];
    for sample in samples {
        if let Some(&byte) = sample.data.get(i) {
            for (equal, &around) in equal.iter_mut().zip(sample.around.iter()) {
                *equal += u32::from(around == byte);
            }
        }
    }
    let mut order: Vec<usize> = (0..AROUND).filter(|&at| equal[at] > 0).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(equal[at]), at));
    for &at in order.iter().take(CANDIDATES) {
        candidates.push(PlaceCoding { from: From::Around(at as u8), difference: false });
        candidates.push(PlaceCoding { from: From::Around(at as u8), difference: true });
    }
    let symbol_of = |place: PlaceCoding, sample: &DataSample, difference: u8| {
        let byte = sample.data.get(i).copied()?;
        let before = if i == 0 { 0 } else { sample.data[i - 1] };
        let (base, ctx) = place.context(before, sample.last[i], &sample.around, difference);
        Some((ctx, byte.wrapping_sub(base)))
    };
    let mut best: Option<(PlaceCoding, f64)> = None;
    for place in candidates {
        let mut histogram = Histogram::default();
        for (sample, &difference) in samples.iter().zip(differences.iter()) {
            if let Some((ctx, symbol)) = symbol_of(place, sample, difference) {
                histogram.add(ctx, symbol);
            }
        }
        let bits = histogram.estimate_bits();
        if best.is_none_or(|(_, least)| bits < least) {
            best = Some((place, bits));
        }
    }
    let (place, bits) = best.unwrap_or((PlaceCoding { from: From::Nothing, difference: false }, 0.0));
    for (sample, difference) in samples.iter().zip(differences.iter_mut()) {
        if let Some((_, symbol)) = symbol_of(place, sample, *difference) {
            *difference = symbol;
        }
    }
    (place, bits)
}
