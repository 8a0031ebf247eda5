//! Describes how each column is coded: training finds it, models store it.

use super::ints::IntCoding;
use super::packed::Packed;
use super::values::Values;
use super::words::Vocabulary;
use super::{Column, MAX_COLUMNS};
use crate::Corrupt;
use crate::wire::{Reader, put_bytes, put_varint};

/// Longest beginning that all values of a column share, in bytes.
pub(crate) const MAX_PREFIX: usize = 64;
/// Largest number of positions of a value that have a stream of their own.
pub(crate) const POSITIONS: usize = 48;
/// Number of positions of a numeric's digits that have streams of their own.
pub(crate) const DIGITS: usize = 5;

/// Contexts of a column's symbols, beside those that its coding has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ctx {
    Nothing,
    /// The symbol of the row before.
    Previous,
    /// The symbol of another column that is coded before, in the same row.
    Column(u8),
}

/// Codings of a column's values.
#[derive(Clone, Debug)]
pub(crate) enum Coding {
    /// As integers, of columns of 1, 2, 4 or 8 bytes, and of up to 8 in InnoDB.
    Int(IntCoding),
    /// By their place in a table of frequent values.
    Table(Values),
    /// As phrases of a trained vocabulary.
    Words(Vocabulary),
    /// One byte, repeated.
    Run,
    /// Behind the beginning that all values share, each byte in the context of the one before, with a stream per
    /// position.
    Positions {
        prefix: Box<[u8]>,
        /// Number of streams, one at least; positions beyond them share the last.
        streams: u8,
    },
    /// Letters of small alphabets, in which all letters are about equally frequent.
    Packed(Packed),
    /// Each byte in the context of the one before.
    Order1,
    /// As PostgreSQL's numeric: digits to the base of 10,000.
    Numeric,
    /// In the page's text, which goes through zstd.
    Text,
    /// As they are.
    Plain,
    /// As the row before, or in the page's text.
    Repeat,
    /// The number of bytes shared with the row before, then the other bytes: each in the context of the one before, or
    /// as they are.
    Front {
        /// The other bytes are stored as they are.
        plain: bool,
    },
}

impl Coding {
    const fn id(&self) -> u8 {
        match self {
            Self::Int(_) => 0,
            Self::Table(_) => 1,
            Self::Words(_) => 2,
            Self::Run => 3,
            Self::Positions { .. } => 4,
            Self::Order1 => 5,
            Self::Numeric => 6,
            Self::Text => 7,
            Self::Plain => 8,
            Self::Repeat => 9,
            Self::Front { plain: false } => 10,
            Self::Front { plain: true } => 11,
            Self::Packed(_) => 12,
        }
    }

    /// Returns the number of streams that the coding uses, the one of the column's state included.
    pub(crate) fn streams(&self) -> usize {
        match self {
            Self::Int(ints) => 1 + ints.streams(),
            Self::Words(_) | Self::Packed(_) => 6,
            Self::Order1 | Self::Repeat => 4,
            Self::Table(_) | Self::Run | Self::Front { .. } => 5,
            Self::Positions { streams, .. } => 4 + usize::from(*streams),
            Self::Numeric => 5 + 2 * DIGITS,
            Self::Text | Self::Plain => 3,
        }
    }
}

/// A column and its coding; `base` is its first stream.
#[derive(Clone, Debug)]
pub(crate) struct ColumnPlan {
    pub(crate) column: Column,
    pub(crate) coding: Coding,
    pub(crate) ctx: Ctx,
    /// The length that most values have, if one does.
    pub(crate) common_len: u16,
    pub(crate) base: usize,
}

impl ColumnPlan {
    pub(crate) fn new(column: Column, coding: Coding, ctx: Ctx) -> Self {
        Self { column, coding, ctx, common_len: 0, base: 0 }
    }

    /// Returns true if all of the column is coded in the first pass.
    pub(crate) fn is_early(&self) -> bool {
        self.column.is_varlena() && matches!(self.coding, Coding::Table(_) | Coding::Words(_))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.column.write(out);
        out.push(self.coding.id());
        put_varint(
            out,
            match self.ctx {
                Ctx::Nothing => 0,
                Ctx::Previous => 1,
                Ctx::Column(c) => 2 + u64::from(c),
            },
        );
        put_varint(out, u64::from(self.common_len));
        match &self.coding {
            Coding::Int(ints) => ints.write(out),
            Coding::Table(values) => values.write(out),
            Coding::Words(words) => words.write(out),
            Coding::Packed(packed) => packed.write(out),
            Coding::Positions { prefix, streams } => {
                put_bytes(out, prefix);
                out.push(*streams);
            }
            _ => {}
        }
    }

    /// Reads the plan of column `c`.
    fn read(reader: &mut Reader<'_>, c: usize) -> Result<Self, Corrupt> {
        let column = Column::read(reader)?;
        let id = reader.byte()?;
        let ctx = match reader.at_most(1 + MAX_COLUMNS)? {
            0 => Ctx::Nothing,
            1 => Ctx::Previous,
            other => Ctx::Column((other - 2) as u8),
        };
        let common_len = reader.at_most(usize::from(u16::MAX))? as u16;
        let coding = match id {
            0 if column.is_int() => Coding::Int(IntCoding::read(reader, c, column)?),
            1 => Coding::Table(Values::read(reader, column.width)?),
            2 if column.is_varlena() => Coding::Words(Vocabulary::read(reader)?),
            3 => Coding::Run,
            4 => {
                let prefix = reader.bytes(MAX_PREFIX)?.into();
                let streams = reader.at_most(POSITIONS)?.max(1) as u8;
                Coding::Positions { prefix, streams }
            }
            5 => Coding::Order1,
            6 if column.is_varlena() && !column.is_innodb() => Coding::Numeric,
            7 => Coding::Text,
            8 => Coding::Plain,
            9 => Coding::Repeat,
            10 => Coding::Front { plain: false },
            11 => Coding::Front { plain: true },
            12 => Coding::Packed(Packed::read(reader)?),
            _ => return Err(Corrupt("a column's coding")),
        };
        Ok(Self { column, coding, ctx, common_len, base: 0 })
    }
}

/// The plans of all columns of a relation. Streams are numbered from `first` on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plans {
    pub(crate) columns: Vec<Column>,
    pub(crate) plans: Vec<ColumnPlan>,
    /// First stream behind those of the columns.
    pub(crate) end: usize,
}

impl Plans {
    pub(crate) fn new(mut plans: Vec<ColumnPlan>, first: usize) -> Self {
        let mut end = first;
        for plan in &mut plans {
            plan.base = end;
            end += plan.coding.streams();
        }
        Self { columns: plans.iter().map(|plan| plan.column).collect(), plans, end }
    }

    /// Returns the bytes of each value of column `c`; 0 for values with a length word.
    pub(crate) fn width_of(&self, c: usize) -> usize {
        usize::from(self.columns[c].width)
    }

    /// Returns the bytes of memory that the plans take, beside the streams.
    pub(crate) fn memory_bytes(&self) -> usize {
        let coding = |plan: &ColumnPlan| match &plan.coding {
            Coding::Table(values) => values.memory_bytes(),
            Coding::Words(words) => words.memory_bytes(),
            Coding::Packed(packed) => packed.memory_bytes(),
            _ => 0,
        };
        self.plans.iter().map(|plan| size_of::<ColumnPlan>() + coding(plan)).sum()
    }

    /// Describes the plans for people, one line per column.
    pub(crate) fn describe(&self) -> String {
        let mut out = String::new();
        for (c, plan) in self.plans.iter().enumerate() {
            let what = match &plan.coding {
                Coding::Int(ints) => format!("{ints:?}"),
                Coding::Table(values) => format!("Table of {} bytes", values.model_bytes()),
                Coding::Words(words) => format!("Words of {} bytes", words.model_bytes()),
                Coding::Packed(packed) => format!("Packed of {} bytes", packed.model_bytes()),
                other => format!("{other:?}"),
            };
            out += &format!("{c:3} {:?} {what} {:?} len {}\n", plan.column, plan.ctx, plan.common_len);
        }
        out
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.plans.len() as u64);
        for plan in &self.plans {
            plan.write(out);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>, first: usize) -> Result<Self, Corrupt> {
        let count = reader.at_most(MAX_COLUMNS)?;
        let plans = (0..count).map(|c| ColumnPlan::read(reader, c)).collect::<Result<Vec<_>, _>>()?;
        for plan in &plans {
            if matches!(plan.ctx, Ctx::Column(other) if usize::from(other) >= count) {
                return Err(Corrupt("a context beyond the columns"));
            }
            if let Coding::Int(ints) = &plan.coding
                && let Some(other) = ints.reference()
                && !plans[other].column.is_int()
            {
                return Err(Corrupt("a difference to what is no integer"));
            }
        }
        Ok(Self::new(plans, first))
    }

    /// As [`Plans::read`], for columns of PostgreSQL: all have an alignment, by which rows are taken apart.
    pub(crate) fn read_aligned(reader: &mut Reader<'_>, first: usize) -> Result<Self, Corrupt> {
        let plans = Self::read(reader, first)?;
        if plans.columns.iter().any(|column| column.is_innodb()) {
            return Err(Corrupt("a column without an alignment"));
        }
        Ok(plans)
    }
}
