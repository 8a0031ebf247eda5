//! Packs the state of a line pointer, and how its tuple's header follows from others, into one number.

use super::tuple::Ctid;
use crate::postgres::page::LineState;

/// Number of bits of a pattern.
pub(crate) const BITS: u32 = 44;

/// The ways in which a transaction id follows from the row before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Xid {
    /// The same as that of the row before; for xmax: zero.
    #[default]
    Usual = 0,
    /// For xmin: the xmax of the older version. For xmax: the same as that of the row before.
    Other = 1,
    /// A difference follows.
    Far = 2,
    /// For xmax: the row's own xmin.
    Own = 3,
}

impl Xid {
    fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Usual,
            1 => Self::Other,
            2 => Self::Far,
            _ => Self::Own,
        }
    }
}

/// The ways in which a command id follows from the row before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cid {
    #[default]
    Zero = 0,
    Same = 1,
    Next = 2,
    Far = 3,
}

/// The pattern of a line pointer: its state, and how the header of its tuple is coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinePattern {
    pub(crate) state: LineState,
    pub(crate) odd: bool,
    pub(crate) ctid: Ctid,
    pub(crate) xmin: Xid,
    pub(crate) xmax: Xid,
    pub(crate) cid: Cid,
    pub(crate) infomask: u16,
    pub(crate) infomask2: u16,
}

impl LinePattern {
    /// Returns true if numbers for this line follow the patterns.
    #[inline(always)]
    pub(crate) fn has_more(self) -> bool {
        self.state == LineState::Redirect || self.ctid != Ctid::Itself || self.odd
    }

    pub(crate) fn pack(self) -> u64 {
        let small = self.state as u64
            | u64::from(self.odd) << 2
            | (self.ctid as u64) << 3
            | (self.xmin as u64) << 5
            | (self.xmax as u64) << 7
            | (self.cid as u64) << 9;
        small | u64::from(self.infomask) << 11 | u64::from(self.infomask2) << 27
    }

    pub(crate) fn unpack(bits: u64) -> Self {
        Self {
            state: match bits & 3 {
                0 => LineState::Unused,
                1 => LineState::Normal,
                2 => LineState::Redirect,
                _ => LineState::Dead,
            },
            odd: bits >> 2 & 1 == 1,
            ctid: match bits >> 3 & 3 {
                0 => Ctid::Itself,
                1 => Ctid::SamePage,
                _ => Ctid::Elsewhere,
            },
            xmin: Xid::from_bits(bits >> 5),
            xmax: Xid::from_bits(bits >> 7),
            cid: match bits >> 9 & 3 {
                0 => Cid::Zero,
                1 => Cid::Same,
                2 => Cid::Next,
                _ => Cid::Far,
            },
            infomask: (bits >> 11) as u16,
            infomask2: (bits >> 27) as u16,
        }
    }
}
