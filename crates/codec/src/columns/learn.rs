//! Chooses a coding for each column: tries all that may suit on sampled pages, with the code that codes.

use std::collections::HashMap;

use super::code::{Write, write_contents_of, write_lengths_of};
use super::decimal::{as_decimal, digits_of};
use super::ints::{Against, IntCoding, Planes, load};
use super::lanes::Lanes;
use super::packed::Packed;
use super::plan::{Coding, ColumnPlan, Ctx, MAX_PREFIX, POSITIONS, Plans};
use super::values::{MAX_VALUE_BYTES, MAX_VALUES, Values};
use super::words::Vocabulary;
use super::{Column, Grid, numeric};
use crate::entropy::Counter;
use crate::text;

/// Largest number of bytes of a column from which a vocabulary is learned, about.
const WORDS_SAMPLE: usize = 256 << 10;
/// Numbers of phrases that vocabularies are tried with.
const VOCABULARIES: [usize; 2] = [512, 4096];
/// Largest number of bytes that serve as dictionary when coding as text is tried.
const TEXT_SAMPLE: usize = 64 << 10;
/// Bits of the sample that a byte of the model counts as: relations are larger than samples, and models are compressed.
const MODEL_BITS: f64 = 3.0;
/// Part of the best cost that a coding has to stay below to replace the best: codings that are tried later are slower
/// as a rule.
const MIN_GAIN: f64 = 0.995;
/// Number of codings of integers that are tried with contexts, cheapest first.
const CONTEXT_TRIALS: usize = 3;

/// A sampled page, and the places of its values.
#[derive(Debug)]
pub(crate) struct Sampled<'a> {
    pub(crate) page: &'a [u8],
    pub(crate) grid: Grid,
}

/// Finds plans for `columns`; `first` is the first stream of the first column.
pub(crate) fn choose(columns: &[Column], pages: &mut [Sampled<'_>], level: i32, first: usize) -> Plans {
    // Until its turn comes, a column counts as text.
    let as_text = |&column: &Column| ColumnPlan::new(column, Coding::Text, Ctx::Nothing);
    let mut trial = Trial {
        plans: Plans { columns: columns.to_vec(), plans: columns.iter().map(as_text).collect(), end: 0 },
        pages,
        level,
    };
    for c in 0..columns.len() {
        let best = trial.best(c);
        trial.plans.plans[c] = best;
        // Contexts of later columns are the symbols that this plan makes.
        trial.cost_bits(c);
    }
    Plans::new(trial.plans.plans, first)
}

struct Trial<'t, 'p> {
    plans: Plans,
    pages: &'t mut [Sampled<'p>],
    level: i32,
}

impl Trial<'_, '_> {
    /// Returns the bits that column `c` takes by its present plan.
    fn cost_bits(&mut self, c: usize) -> f64 {
        let mut counter = Counter::new(self.plans.plans[c].coding.streams());
        let (mut rows, mut residuals, mut text, mut plain) = (vec![], vec![], vec![], vec![]);
        let (mut lanes, mut texts) = (Lanes::default(), vec![]);
        for Sampled { page, grid } in self.pages.iter_mut() {
            grid.rows_of(c, &mut rows);
            text.clear();
            let mut w = Write {
                page,
                plans: &self.plans,
                grid,
                rows: &rows,
                residuals: &mut residuals,
                lanes: &mut lanes,
                text: &mut text,
                plain: &mut plain,
            };
            if self.plans.columns[c].is_varlena() {
                write_lengths_of(&mut w, &mut counter, c);
            }
            write_contents_of(&mut w, &mut counter, c);
            if !text.is_empty() {
                texts.push(text.clone());
            }
        }
        let plain_bits = 8.0 * plain.len() as f64;
        counter.estimate_bits() + plain_bits + text::estimate_bits(&texts, TEXT_SAMPLE, self.level)
    }

    fn try_plan(&mut self, c: usize, mut plan: ColumnPlan, best: &mut Option<(f64, ColumnPlan)>) -> f64 {
        plan.base = 0;
        let model_bytes = match &plan.coding {
            Coding::Words(words) => words.model_bytes(),
            Coding::Table(values) => values.model_bytes(),
            Coding::Packed(packed) => packed.model_bytes(),
            _ => 0,
        };
        self.plans.plans[c] = plan.clone();
        let cost = self.cost_bits(c) + MODEL_BITS * model_bytes as f64;
        if best.as_ref().is_none_or(|(least, _)| cost < *least * MIN_GAIN) {
            *best = Some((cost, plan));
        }
        cost
    }

    fn best(&mut self, c: usize) -> ColumnPlan {
        let column = self.plans.columns[c];
        let mut best = None;
        if column.is_int() {
            self.try_ints(c, &mut best);
        }
        self.try_bytes(c, &mut best);
        best.map_or_else(|| ColumnPlan::new(column, Coding::Text, Ctx::Nothing), |(_, plan)| plan)
    }

    /// Returns the different contents of column `c` in each page.
    fn different(&self, c: usize) -> Vec<&[u8]> {
        let mut rows = vec![];
        let mut all = vec![];
        for Sampled { page, grid } in self.pages.iter() {
            grid.rows_of(c, &mut rows);
            let mut contents: Vec<&[u8]> = rows.iter().map(|&t| grid.content(page, c, t)).collect();
            contents.sort_unstable();
            contents.dedup();
            all.extend(contents);
        }
        all
    }

    /// Returns all contents of column `c`, page by page.
    fn contents(&self, c: usize) -> Vec<&[u8]> {
        let mut rows = vec![];
        let mut all = vec![];
        for Sampled { page, grid } in self.pages.iter() {
            grid.rows_of(c, &mut rows);
            all.extend(rows.iter().map(|&t| grid.content(page, c, t)));
        }
        all
    }

    fn try_bytes(&mut self, c: usize, best: &mut Option<(f64, ColumnPlan)>) {
        let column = self.plans.columns[c];
        let contents = self.contents(c);
        let total: usize = contents.iter().map(|content| content.len()).sum();
        let longest = contents.iter().map(|content| content.len()).max().unwrap_or(0);
        let runs =
            contents.iter().filter(|content| content.windows(2).all(|pair| pair[0] == pair[1])).count();
        let numerics = contents.iter().filter(|content| numeric::is_numeric(content)).count();
        let common_len = most_frequent(contents.iter().map(|content| content.len() as u64)) as u16;
        let count = contents.len();
        let prefix = common_prefix(&contents);
        let different = self.different(c);
        let repeated = different.len() * 4 < count * 3;
        let table = frequent_values(&contents, &different);
        let width = if column.is_varlena() { common_len } else { column.width };
        let packed = Packed::learn(&contents, usize::from(width));
        let mut vocabularies = vec![];
        if column.is_varlena() && total > 2048 && total / count.max(1) < 256 {
            let sample = spread(&different, total);
            vocabularies.extend(VOCABULARIES.map(|phrases| Vocabulary::learn(&sample, phrases)));
        }
        let mut codings: Vec<Coding> = table.map(Coding::Table).into_iter().collect();
        codings.extend(packed.map(Coding::Packed));
        codings.push(Coding::Plain);
        if repeated {
            codings.push(Coding::Repeat);
        }
        if longest > 8 {
            codings.extend([Coding::Front { plain: true }, Coding::Front { plain: false }]);
        }
        if count > 0 && column.is_varlena() && !column.is_innodb() && numerics == count {
            codings.push(Coding::Numeric);
        }
        if longest > 1 && runs * 10 >= count * 9 {
            codings.push(Coding::Run);
        }
        if longest <= 64 || total / count.max(1) <= 48 {
            let streams = (longest - prefix.len()).clamp(1, POSITIONS) as u8;
            codings.extend([Coding::Positions { prefix, streams }, Coding::Order1]);
        }
        codings.extend(vocabularies.into_iter().map(Coding::Words));
        codings.push(Coding::Text);
        for coding in codings {
            let contextual = matches!(coding, Coding::Table(_) | Coding::Words(_));
            let mut plan = ColumnPlan::new(column, coding, Ctx::Nothing);
            plan.common_len = common_len;
            let cost = self.try_plan(c, plan.clone(), best);
            let promising = best.as_ref().is_some_and(|(least, _)| cost <= *least * 1.15);
            if contextual && promising {
                self.try_contexts(c, &plan, best);
            }
        }
    }

    /// Tries `plan` with the row before and with each column that is coded earlier as context.
    fn try_contexts(&mut self, c: usize, plan: &ColumnPlan, best: &mut Option<(f64, ColumnPlan)>) {
        let early = plan.is_early();
        let mut contexts = vec![Ctx::Previous];
        for other in 0..c {
            let known = self.plans.plans[other].is_early() || !early;
            if known
                && !matches!(
                    self.plans.plans[other].coding,
                    Coding::Text | Coding::Order1 | Coding::Positions { .. }
                )
            {
                contexts.push(Ctx::Column(other as u8));
            }
        }
        for ctx in contexts {
            self.try_plan(c, ColumnPlan { ctx, ..plan.clone() }, best);
        }
    }

    fn try_ints(&mut self, c: usize, best: &mut Option<(f64, ColumnPlan)>) {
        let column = self.plans.columns[c];
        let mut tried: Vec<(f64, ColumnPlan)> = vec![];
        let mut against = vec![Against::Constant, Against::Previous];
        for other in 0..c {
            let numbers = self.plans.columns[other].is_int();
            if numbers && self.plans.columns[other].width >= column.width.min(2) {
                against.push(Against::Column(other as u8));
            }
        }
        let base = self.smallest(c);
        let mut codings: Vec<(Option<u8>, u64, Against)> =
            against.into_iter().map(|against| (None, base, against)).collect();
        if let Some((digits, base)) = self.decimals(c) {
            let both = [Against::Constant, Against::Previous];
            codings.extend(both.map(|against| (Some(digits), base, against)));
        }
        for (digits, base, against) in codings {
            let mut coding = IntCoding { digits, against, planes: Planes::Number, base, step: 1, common: 0 };
            let Some((largest, step, common)) = self.residuals(c, &coding) else { continue };
            if step > 1 {
                coding.step = step;
                coding.common = most_common(common, step, against);
            } else {
                coding.common = common;
            }
            let bytes = (64 - (largest / step).leading_zeros()).div_ceil(8) as u8;
            let mut planes = vec![Planes::Number];
            for plain in 0..=bytes {
                planes.push(Planes::Bytes { coded: bytes - plain, plain });
            }
            for planes in planes {
                let plan = ColumnPlan::new(column, Coding::Int(IntCoding { planes, ..coding }), Ctx::Nothing);
                let cost = self.try_plan(c, plan.clone(), best);
                tried.push((cost, plan));
            }
        }
        tried.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        for (_, plan) in tried.into_iter().take(CONTEXT_TRIALS) {
            self.try_contexts(c, &plan, best);
        }
    }

    /// Returns the number of digits behind the point and the smallest value, as an integer, if all values of column `c`
    /// are decimals.
    fn decimals(&self, c: usize) -> Option<(u8, u64)> {
        let column = self.plans.columns[c];
        if !column.is_float() {
            return None;
        }
        let contents = self.contents(c);
        let floats: Vec<f64> =
            contents.iter().map(|content| f64::from_bits(load(content, 0, column))).collect();
        // Integers of a small number of bytes are tiny floating-point numbers, none of which is a decimal but for 0.
        if floats.iter().all(|&float| float == 0.0) {
            return None;
        }
        let digits = digits_of(&floats, 10)?;
        let smallest = floats.iter().filter_map(|&float| as_decimal(float, digits)).min()?;
        Some((digits, smallest as u64))
    }

    /// Returns the smallest value of column `c`, as a signed number.
    fn smallest(&self, c: usize) -> u64 {
        let column = self.plans.columns[c];
        let shift = 64 - 8 * u32::from(column.width);
        let signed =
            self.contents(c).iter().map(|content| (load(content, 0, column) << shift) as i64 >> shift).min();
        signed.unwrap_or(0) as u64 & (u64::MAX >> shift)
    }

    /// Returns the largest residual, the greatest common divisor of all, and the most frequent one, of a coding with
    /// step 1.
    fn residuals(&self, c: usize, coding: &IntCoding) -> Option<(u64, u64, u64)> {
        let (mut rows, mut residuals, mut all) = (vec![], vec![], vec![]);
        for Sampled { page, grid } in self.pages.iter() {
            grid.rows_of(c, &mut rows);
            if !coding.residuals(page, grid, c, &rows, &self.plans, &mut residuals) {
                return None;
            }
            all.append(&mut residuals);
        }
        let largest = all.iter().copied().max()?;
        let signed = coding.against != Against::Constant;
        let magnitude = |residual: u64| if signed { residual.div_ceil(2) } else { residual };
        let step = all.iter().fold(0, |step, &residual| gcd(step, magnitude(residual)));
        Some((largest, step.clamp(1, 1 << 40), most_frequent(all.into_iter())))
    }
}

/// Converts a residual with step 1 to one with `step`.
fn most_common(residual: u64, step: u64, against: Against) -> u64 {
    match against {
        Against::Constant => residual / step,
        _ if residual & 1 == 0 => residual / 2 / step * 2,
        _ => residual.div_ceil(2) / step * 2 - 1,
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn most_frequent(values: impl Iterator<Item = u64>) -> u64 {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    counts.into_iter().max_by_key(|&(value, count)| (count, value)).map_or(0, |(value, _)| value)
}

/// Returns the most frequent values, of those that come in at least three pages, if they make up half of all contents.
/// `different` has the values of each page once.
fn frequent_values(contents: &[&[u8]], different: &[&[u8]]) -> Option<Values> {
    let mut pages: HashMap<&[u8], usize> = HashMap::new();
    for &value in different.iter().filter(|value| value.len() <= MAX_VALUE_BYTES) {
        *pages.entry(value).or_default() += 1;
    }
    let mut counts: HashMap<&[u8], usize> = HashMap::new();
    for &content in contents.iter().filter(|content| pages.get(*content).is_some_and(|&pages| pages >= 3)) {
        *counts.entry(content).or_default() += 1;
    }
    let mut frequent: Vec<(usize, &[u8])> = counts.into_iter().map(|(value, count)| (count, value)).collect();
    frequent.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
    frequent.truncate(MAX_VALUES);
    let covered: usize = frequent.iter().map(|(count, _)| count).sum();
    (covered * 2 >= contents.len() && covered > 0)
        .then(|| Values::new(&frequent.into_iter().map(|(_, value)| value.into()).collect::<Vec<_>>()))
}

/// Returns the beginning that all `contents` share.
fn common_prefix(contents: &[&[u8]]) -> Box<[u8]> {
    let first = contents.first().copied().unwrap_or_default();
    let shared = |other: &&[u8]| first.iter().zip(*other).take_while(|(a, b)| a == b).count();
    let len = contents.iter().map(shared).min().unwrap_or(0).min(MAX_PREFIX);
    first[..len].into()
}

/// Returns as many of `contents` as vocabularies are learned from, spread evenly. `total` is the number of bytes of the
/// column.
fn spread<'a>(contents: &[&'a [u8]], total: usize) -> Vec<&'a [u8]> {
    let step = total.div_ceil(WORDS_SAMPLE).max(1);
    contents.iter().step_by(step).copied().collect()
}
