//! Learns models, codes pages again, exports the pool, and keeps account of the errors that were counted.

use std::sync::Arc;

use pagefold_engine::Error;
use pagefold_engine::device::Device;
use pagefold_engine::limits::BLOCK_BYTES;
use pagefold_engine::pool::{CALL_PAGES, LateObject, PageRange, Pool};

use super::setup::compression;
use super::{LEARN, Outcome, Sim};
use crate::history::OBJECTS;

impl<'a> Sim<'a> {
    pub(super) fn learn(&mut self) -> Outcome {
        // `learn` commits nothing, unless it has to make room.
        let (before, opens) = ((self.committed, self.settled), self.stats.opens);
        let mut adopted = false;
        let learn = |pool: &Pool| {
            let learned = pool.learn(&LEARN)?;
            adopted = learned.is_some_and(|learned| learned.adopted.is_some());
            Ok(())
        };
        self.call(learn, false)?;
        if self.stats.opens == opens {
            (self.committed, self.settled) = before;
        }
        self.stats.learned += u64::from(adopted);
        Ok(())
    }

    pub(super) fn recode(&mut self) -> Outcome {
        let (now, again) = (compression(self.history, false), compression(self.history, true));
        let ranges: Vec<PageRange> =
            OBJECTS.map(|object| PageRange { object, from: 0, to: u64::MAX }).collect();
        let mut recoded = 0;
        let recode = |pool: &Pool| {
            pool.set_compression(again);
            let mut done = pool.recompress(&ranges, (0, 0), CALL_PAGES).map(|report| report.recompressed);
            // The background, too, codes late pages of any dataset again.
            if let (Ok(_), Some((of, _))) = (&done, pool.late().first().copied()) {
                let mut late = LateObject::new(of);
                while done.is_ok() {
                    match pool.recompress_late(&mut late, CALL_PAGES) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error) => done = Err(error),
                    }
                }
            }
            pool.set_compression(now);
            match done {
                Ok(pages) => recoded = pages,
                // No chunk is free to clean into, which is no failure of the pool.
                Err(Error::NoSpace(_)) if pool.status().failure.is_none() => {}
                Err(error) => return Err(error),
            }
            Ok(())
        };
        self.call(recode, false)?;
        self.stats.recoded += recoded;
        Ok(())
    }

    /// Returns true if the pool has a log device.
    fn has_log_device(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.log_device_status().is_some())
    }

    /// Returns the number of errors that the pool has counted, over all openings.
    pub(super) fn count_errors(&self) -> u64 {
        let Some(pool) = &self.pool else { return self.errors.1 };
        pool.faults().devices.iter().map(|of| of.reads + of.writes + of.checksums).sum()
    }

    /// Drops the pool, as if its process had ended. The errors that it has met may be among those that the next
    /// opening finds stored, also those of a device that it has removed: the removal may be undone.
    pub(super) fn close(&mut self) {
        let is_sound = |pool: &Arc<Pool>| pool.status().failure.is_none() && !self.is_excused();
        self.was_sound = self.history.copies > 1 && self.pool.as_ref().is_some_and(is_sound);
        let at_opening = self.errors.1;
        let counted = self.count_errors();
        if self.pool.take().is_some() {
            let of_devices: u64 = self.devices.iter().map(|device| device.stats().counts().errors).sum();
            self.errors = (self.errors.0.min(counted), counted.max(at_opening + of_devices));
        }
    }

    /// Verifies the count of errors after an opening: all stored ones are in it, and none that were never met, except
    /// those that the opening itself met.
    pub(super) fn verify_errors(&mut self) -> Outcome {
        let (stored, met) = self.errors;
        let counted = self.count_errors();
        self.errors = (stored.min(counted), counted);
        let own = self.devices.iter().any(|device| device.stats().counts().errors > 0);
        // A log device that failed leaves the pool while that is opened, and its errors with it.
        let has_left = self.history.log_device && !self.has_log_device();
        let may_differ = self.flips > 0 || self.gave_up || self.history.copies > 1 || has_left;
        if !may_differ && (counted < stored || (counted > met && !own)) {
            return Err(format!(
                "{counted} errors are counted after opening; {stored} were stored, {met} met"
            ));
        }
        Ok(())
    }

    pub(super) fn export(&mut self) -> Outcome {
        while !self.begun.is_empty() {
            self.end(false)?;
        }
        let pool = Arc::clone(self.pool()?);
        let counted = self.count_errors();
        if let Err(error) = pool.export() {
            drop(pool);
            return self.failed(&error);
        }
        self.errors.0 = counted;
        let bound = pool.status().used_bytes;
        // Reads the pages of the segment table that are away: their segments were accounted with the directories that
        // they had before.
        let report = pool.check_open(&mut |_| {});
        let used = pool.status().used_bytes;
        let (was_reaping, devices) = (pool.is_reaping(), pool.device_status().len());
        drop(pool);
        self.close();
        self.committed = self.log.len();
        self.durable = self.log.len();
        self.forget();
        self.reopen()?;
        if self.terms().may_fail {
            return Ok(());
        }
        if report.errors > 0 && self.flips == 0 {
            return Err(format!("a check after export found {:?}", report.messages));
        }
        if used > bound {
            return Err(format!("{bound} bytes were accounted as the most that are used, and {used} are"));
        }
        let Some(pool) = &self.pool else { return Ok(()) };
        if pool.device_status().len() < devices {
            // A log device left while the pool was opened, which is stored.
            return self.check();
        }
        let found = pool.status().used_bytes;
        // The cleaner packs the records of many segments into few, whose directories take less.
        let packed = pool.totals().moved_bytes > 0 && found < used + used / 8 + BLOCK_BYTES as u64;
        // Where the opening makes room it frees what was destroyed, which counts as used until then.
        let reaped = was_reaping && found < used;
        if packed || reaped {
            return self.check();
        }
        if found == used {
            return Ok(());
        }
        Err(format!("{used} bytes were accounted as used before export, {found} are after"))
    }
}
