//! Codes columns of integers as symbols.

use super::super::code::{ALL_COMMON, CODED, Context, Write};
use super::super::plan::Plans;
use super::super::{Column, Grid};
use super::get::reference_of;
use super::{Against, IntCoding, PLAIN, Planes, load};
use crate::entropy::Sink;
use crate::entropy::number;

impl IntCoding {
    /// Fills `residuals`. Returns false if a value has none that the coding can store.
    pub(crate) fn residuals(
        &self,
        page: &[u8],
        grid: &Grid,
        c: usize,
        rows: &[u16],
        plans: &Plans,
        residuals: &mut Vec<u64>,
    ) -> bool {
        let column = plans.columns[c];
        let width = usize::from(column.width);
        residuals.clear();
        let mut previous = self.base;
        let beyond = match self.planes {
            Planes::Bytes { coded, plain } if coded + plain < 8 => u64::MAX << (8 * u32::from(coded + plain)),
            _ => 0,
        };
        for &t in rows {
            let value = load(page, usize::from(grid.pos[grid.cell(c, t)]), column);
            let Some(value) = self.number(value) else { return false };
            let reference = match self.against {
                Against::Constant => self.base,
                Against::Previous => previous,
                Against::Column(other) => {
                    reference_of(page, grid, usize::from(other), t, plans.columns[usize::from(other)])
                }
            };
            let Some(residual) = self.residual(value, reference, width) else { return false };
            if residual & beyond != 0 {
                return false;
            }
            residuals.push(residual);
            previous = value;
        }
        true
    }

    /// Writes column `c`, which is `column`.
    pub(crate) fn put<S: Sink>(
        &self,
        w: &mut Write<'_>,
        sink: &mut S,
        c: usize,
        column: Column,
        context: Context,
    ) {
        let width = usize::from(column.width);
        let mut residuals = std::mem::take(w.residuals);
        let known = self.residuals(w.page, w.grid, c, w.rows, w.plans, &mut residuals);
        let base = context.base;
        if !known {
            sink.put(base, 0, PLAIN);
            for &t in w.rows {
                let cell = w.grid.cell(c, t);
                sink.long_bits(load(w.page, usize::from(w.grid.pos[cell]), column), 8 * width as u32);
                w.grid.sym[cell] = 0;
            }
        } else if residuals[self.apart(&residuals)..].iter().all(|&residual| residual == self.common) {
            sink.put(base, 0, ALL_COMMON);
            let apart = self.apart(&residuals);
            self.put_residuals(w, sink, c, &residuals[..apart], context);
            let symbol = self.symbol(self.common);
            for &t in &w.rows[apart..] {
                let cell = w.grid.cell(c, t);
                w.grid.sym[cell] = symbol;
            }
        } else {
            sink.put(base, 0, CODED);
            self.put_residuals(w, sink, c, &residuals, context);
        }
        *w.residuals = residuals;
    }

    /// Returns the number of rows, 0 or 1, that are coded even in a page of common residuals: the first row has no row
    /// before it.
    #[inline(always)]
    pub(super) fn apart<T>(&self, rows: &[T]) -> usize {
        usize::from(self.against == Against::Previous).min(rows.len())
    }

    /// Returns the symbol of a residual that contexts consist of.
    #[inline(always)]
    pub(super) fn symbol(&self, residual: u64) -> u8 {
        match self.planes {
            Planes::Number => number::split(residual).0,
            Planes::Bytes { coded: 0, .. } => 0,
            Planes::Bytes { coded, plain } => (residual >> (8 * u32::from(coded + plain - 1))) as u8,
        }
    }

    fn put_residuals<S: Sink>(
        &self,
        w: &mut Write<'_>,
        sink: &mut S,
        c: usize,
        residuals: &[u64],
        context: Context,
    ) {
        let stream = context.base + 1;
        let mut last = 0;
        for (&t, &residual) in w.rows.iter().zip(residuals) {
            let ctx = context.of(w.grid, t, last);
            last = self.symbol(residual);
            let cell = w.grid.cell(c, t);
            w.grid.sym[cell] = last;
            match self.planes {
                Planes::Number => {
                    number::put(sink, stream, ctx, residual);
                }
                Planes::Bytes { coded: 0, .. } => {}
                Planes::Bytes { .. } => sink.put(stream, ctx, last),
            }
        }
        let Planes::Bytes { coded, plain } = self.planes else { return };
        // Bytes are coded plane by plane: so the byte above was decoded a whole column before.
        for i in 1..coded {
            let shift = 8 * u32::from(coded + plain - 1 - i);
            for residual in residuals {
                sink.put(stream + usize::from(i), (residual >> shift >> 8) as u8, (residual >> shift) as u8);
            }
        }
        for residual in residuals {
            w.plain.extend_from_slice(&residual.to_le_bytes()[..usize::from(plain)]);
        }
    }
}
