//! Does operations on the catalogue, with datasets, snapshots and streams, and compares their outcome with the model's.

use std::sync::Arc;

use pagefold_engine::Error;
use pagefold_engine::dataset::Commit;
use pagefold_engine::pool::Source;

use super::acts::{run_catalogue_op, run_stream};
use super::{Event, Outcome, Sim};
use crate::history::CatalogueOp;
use crate::verify::freed_by_counting;

impl Sim<'_> {
    pub(super) fn apply_op(&mut self, op: &CatalogueOp) -> Outcome {
        let expected = self.now.after(op);
        let mut freed = None;
        if let (CatalogueOp::DestroySnapshots { snapshots }, true) = (op, expected.is_some()) {
            let opens = self.stats.opens;
            self.call(|pool| pool.commit(false), false)?;
            if self.stats.opens != opens || self.pool.is_none() {
                return Ok(());
            }
            if !self.terms().may_fail {
                let counted = self.freed(snapshots);
                if counted.is_err() {
                    return self.unless_off(counted.map(drop));
                }
                freed = counted.ok();
            }
        }
        let pool = Arc::clone(self.pool()?);
        let unreferenced = pool.unreferenced_bytes();
        match (run_catalogue_op(&pool, op), expected) {
            (Ok(()), Some(after)) => {
                self.stats.catalogue_ops += 1;
                self.log.push(Event::Catalogue(op.clone()));
                self.now = after;
                if let Some(freed) = freed
                    && pool.unreferenced_bytes() != unreferenced + freed
                {
                    let found = pool.unreferenced_bytes() - unreferenced;
                    return Err(format!("{freed} bytes were to be freed, and {found} are"));
                }
                drop(pool);
                // An operation is durable on return, with everything before it.
                self.call(|_| Ok(()), true)
            }
            (Ok(()), None) => Err("an operation is done that is not possible".into()),
            (Err(error), expected) => {
                let failed = self.is_off() || pool.status().failure.is_some();
                let refused = matches!(
                    error,
                    Error::NotFound(_) | Error::Exists(_) | Error::Busy(_) | Error::Invalid(_)
                );
                if refused && !failed {
                    return match expected {
                        None => Ok(()),
                        // A fault has kept a partly received stream from being given up, and the stream is in the way.
                        Some(_) if self.faulted && !pool.partials().is_empty() => Ok(()),
                        // Likewise a hidden dataset ('%' is in its name) that was made to compare or rebase a clone.
                        Some(_) if self.faulted && error.to_string().contains('%') => Ok(()),
                        Some(_) => Err(format!("an operation that is possible is refused: {error}")),
                    };
                }
                if failed && expected.is_some() {
                    // The operation may have reached the device.
                    self.log.push(Event::Catalogue(op.clone()));
                }
                drop(pool);
                self.failed(&error)
            }
        }
    }

    /// Sends and receives a stream that `pick` chooses. With `torn`, it ends early, after that many thousandths.
    pub(super) fn stream(&mut self, path: &str, pick: u64, torn: Option<u64>) -> Outcome {
        let mut possible = self.now.streams(path);
        if possible.is_empty() {
            // A snapshot of another dataset may make a stream possible.
            let others: Vec<String> = self.now.sets.keys().filter(|other| *other != path).cloned().collect();
            let source = others.get((pick % others.len().max(1) as u64) as usize).cloned();
            let opens = self.stats.opens;
            let name = format!("t{}", pick % 64);
            self.apply_op(&CatalogueOp::Snapshot { datasets: source.into_iter().collect(), name })?;
            if self.stats.opens != opens || self.pool.is_none() {
                return Ok(());
            }
            possible = self.now.streams(path);
        }
        let Some(op) = possible.get((pick % possible.len().max(1) as u64) as usize).cloned() else {
            return Ok(());
        };
        let opens = self.stats.opens;
        self.receiving = Some(op.clone());
        let CatalogueOp::Receive { snapshot, from, path } = &op else { return Ok(()) };
        if let Some(permille) = torn {
            let pool = Arc::clone(self.pool()?);
            let source = Source::Snapshot { path: snapshot, from: from.as_deref() };
            match run_stream(&pool, &source, path, Some(permille)) {
                Ok(()) => return Err("a stream that ends early is received".into()),
                Err(Error::Corrupt { .. }) if pool.status().failure.is_none() && !self.is_off() => {}
                Err(error) => {
                    drop(pool);
                    self.failed(&error)?;
                }
            }
        } else {
            self.apply_op(&op)?;
            self.stats.received += u64::from(self.stats.opens == opens);
        }
        if self.stats.opens == opens && self.pool.is_some() { self.go_on() } else { Ok(()) }
    }

    /// Resets or rebases a clone, as `pick` decides. Makes a clone if there is none.
    pub(super) fn graft(&mut self, pick: u64) -> Outcome {
        let grafts = self.now.grafts(pick);
        let Some(op) = grafts.get((pick % grafts.len().max(1) as u64) as usize).cloned() else {
            return match self.now.clone_of_any(pick) {
                Some(clone) => self.apply_op(&clone),
                None => Ok(()),
            };
        };
        let (opens, done) = (self.stats.opens, self.stats.catalogue_ops);
        self.apply_op(&op)?;
        if self.stats.opens == opens && self.stats.catalogue_ops > done {
            match op {
                CatalogueOp::Rebase { .. } => self.stats.rebased += 1,
                _ => self.stats.reset += 1,
            }
        }
        Ok(())
    }

    /// Resumes a stream that was interrupted, or gives it up.
    pub(super) fn go_on(&mut self) -> Outcome {
        let pool = Arc::clone(self.pool()?);
        let partials = pool.partials();
        let Some(partial) = partials.first().filter(|_| pool.status().failure.is_none()) else {
            return Ok(());
        };
        let op = self.receiving.clone().filter(|_| self.random.percent(60));
        let done = match &op {
            Some(_) => run_stream(&pool, &Source::Resume(&partial.token), &partial.path, None),
            None => pool.abort_receive(&partial.path),
        };
        match done {
            Ok(()) => {
                if let Some(op) = op {
                    self.now = self.now.after(&op).ok_or("what is left of a stream fits no dataset")?;
                    self.log.push(Event::Catalogue(op));
                    self.stats.resumed += 1;
                    if !pool.partials().is_empty() {
                        return Err("a stream was received, and a part of it is left".into());
                    }
                }
                drop(pool);
                self.call(|_| Ok(()), true)
            }
            Err(error) => {
                if let (Some(op), true) = (op, self.is_off() || pool.status().failure.is_some()) {
                    // The operation may have reached the device.
                    self.log.push(Event::Catalogue(op));
                }
                drop(pool);
                self.failed(&error)
            }
        }
    }

    /// Returns the number of bytes that destroying these snapshots frees. Fails if the pool tells another number than
    /// is counted.
    fn freed(&self, snapshots: &[String]) -> Outcome<u64> {
        let pool = self.pool()?;
        let paths: Vec<&str> = snapshots.iter().map(String::as_str).collect();
        let told =
            pool.freed_by_destroying(&paths).map_err(|error| format!("freed_by_destroying: {error}"))?;
        let counted = freed_by_counting(pool, &self.now, &paths)?;
        if told == counted {
            return Ok(told);
        }
        Err(format!("destroying {paths:?} is told to free {told} bytes, counted are {counted}"))
    }
}
