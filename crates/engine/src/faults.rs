//! Counts errors, by device and by what they struck, until somebody clears the counts.
//!
//! - F1: memory and the stored form are bounded: at most `STRUCK_MAX` things that were struck are listed, errors of
//!   others are counted together.
//! - F2: counting writes nothing. A checkpoint stores what was counted. Only when something new was struck or a count
//!   has doubled it is stored before one (`Faults::wants_store`). So even if a damaged page is read for ever, its
//!   count is stored 64 times at most.
//! - F3: an error is counted once by its device, however often it is passed on ([`DamagedAt::counted`]).

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::error::DamagedAt;
use crate::types::Addr;
use crate::wire::{Reader, put_varint};
use crate::{Error, Result};

/// Largest number of things that were struck and are listed.
pub(crate) const STRUCK_MAX: usize = 128;
/// Version of the stored form.
const VERSION: u8 = 1;

/// Things that an error may strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Data of a file.
    Object {
        /// Number of the dataset or snapshot.
        dataset: u64,
        /// Number of the object that has the data.
        object: u64,
    },
    /// A record of which only the address is known: metadata, or a record that only a scrub has read.
    Record(Addr),
    /// The directory of a segment.
    Directory(u64),
    /// Things that no segment has: labels, and the root and the lists of the last checkpoint.
    Fixed,
    /// The log that was replayed when the pool was opened.
    Log,
}

/// Numbers of errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Number of reads that the device failed.
    pub reads: u64,
    /// Number of writes and flushes that the device failed.
    pub writes: u64,
    /// Number of reads whose bytes did not have their checksum, or could not be decoded.
    pub checksums: u64,
    /// Number of both kinds of failed reads that the second copy answered.
    pub corrected: u64,
    /// Number of things that were written again from their other copy.
    pub repaired: u64,
}

impl FaultCounts {
    fn all(&mut self) -> [&mut u64; 5] {
        [&mut self.reads, &mut self.writes, &mut self.checksums, &mut self.corrected, &mut self.repaired]
    }

    fn encode(mut self, out: &mut Vec<u8>) {
        self.all().into_iter().for_each(|count| put_varint(out, *count));
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let mut counts = Self::default();
        for count in counts.all() {
            *count = reader.varint()?;
        }
        Ok(counts)
    }
}

/// A thing that errors struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Struck {
    /// The thing.
    pub subject: Subject,
    /// Numbers of its errors.
    pub counts: FaultCounts,
    /// Device number and byte of the last error, if they are known.
    pub place: Option<(u16, u64)>,
    /// Byte of an object that the last error struck.
    pub offset: u64,
}

/// All that was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultReport {
    /// Time at which all counts were last cleared, in seconds since 1970; 0 if they never were.
    pub cleared: u64,
    /// Counts of each device, by its number.
    pub devices: Vec<FaultCounts>,
    /// Things that were struck, by subject.
    pub struck: Vec<Struck>,
    /// Number of errors of things that are not listed, since the list is full.
    pub unlisted: u64,
}

impl FaultReport {
    /// Returns true if nothing was counted.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.devices.iter().all(|counts| *counts == FaultCounts::default())
            && self.struck.is_empty()
            && self.unlisted == 0
    }

    /// Returns the stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.cleared);
        put_varint(&mut out, self.unlisted);
        put_varint(&mut out, self.devices.len() as u64);
        self.devices.iter().for_each(|counts| counts.encode(&mut out));
        put_varint(&mut out, self.struck.len() as u64);
        for struck in &self.struck {
            match struck.subject {
                Subject::Object { dataset, object } => {
                    out.push(1);
                    put_varint(&mut out, dataset);
                    put_varint(&mut out, object);
                }
                Subject::Record(addr) => {
                    out.push(2);
                    put_varint(&mut out, addr.raw());
                }
                Subject::Directory(segment) => {
                    out.push(3);
                    put_varint(&mut out, segment);
                }
                Subject::Fixed => out.push(4),
                Subject::Log => out.push(5),
            }
            struck.counts.encode(&mut out);
            let place = struck.place.map(|(device, offset)| (u64::from(device) + 1, offset));
            let (device, offset) = place.unwrap_or_default();
            put_varint(&mut out, device);
            put_varint(&mut out, offset);
            put_varint(&mut out, struck.offset);
        }
        out
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `bytes` are no report; [`Error::Unsupported`] for one of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "counts of errors");
        match reader.u8()? {
            VERSION => {}
            version => {
                return Err(Error::Unsupported(format!(
                    "counts of errors have version {version}, not {VERSION}"
                )));
            }
        }
        let mut report = Self { cleared: reader.varint()?, unlisted: reader.varint()?, ..Self::default() };
        // The number is not trusted: nothing is reserved by it, and reading ends with the bytes.
        for _ in 0..u16::try_from(reader.varint()?).map_err(|_| reader.bad("it has too many devices"))? {
            report.devices.push(FaultCounts::decode(&mut reader)?);
        }
        let struck = reader.varint()?;
        if struck > STRUCK_MAX as u64 {
            return Err(reader.bad("it lists too much"));
        }
        for _ in 0..struck {
            let subject = match reader.u8()? {
                1 => Subject::Object { dataset: reader.varint()?, object: reader.varint()? },
                2 => {
                    let addr = Addr::from_raw(reader.varint()?);
                    Subject::Record(addr.ok_or_else(|| reader.bad("a record has no address"))?)
                }
                3 => Subject::Directory(reader.varint()?),
                4 => Subject::Fixed,
                5 => Subject::Log,
                _ => return Err(reader.bad("it lists something of an unknown kind")),
            };
            let counts = FaultCounts::decode(&mut reader)?;
            let (device, at) = (reader.varint()?, reader.varint()?);
            let device = device.checked_sub(1).map(u16::try_from).transpose();
            let device = device.map_err(|_| reader.bad("a device has an impossible number"))?;
            let place = device.map(|device| (device, at));
            report.struck.push(Struck { subject, counts, place, offset: reader.varint()? });
        }
        reader.end()?;
        Ok(report)
    }
}

/// Kinds of error, or of what became of it, that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The device failed a read. The counts by device take such reads from the device's own statistics.
    Read,
    /// A checksum did not hold, or what was read is not well formed.
    Checksum,
    /// The second copy answered in place of what had failed.
    Corrected,
    /// Something was written again from its other copy.
    Repaired,
}

impl FaultKind {
    /// Returns the kind of an error of reading; `None` for other errors.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Corrupt { .. } => Some(Self::Checksum),
            Error::Io { op: "read", .. } => Some(Self::Read),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct FaultTable {
    cleared: u64,
    devices: Vec<FaultCounts>,
    struck: BTreeMap<Subject, Struck>,
    unlisted: u64,
    /// Numbers of failed reads and of failed writes in each device's own statistics that are counted already.
    taken: Vec<(u64, u64)>,
    /// True if something was counted since the counts were stored.
    changed: bool,
    /// True if something new was struck since then, or a count has doubled.
    news: bool,
}

/// Adds to a count. Returns true if that is news: the count was zero, or has reached another power of two.
fn add(count: &mut u64, more: u64) -> bool {
    let before = count.checked_ilog2();
    *count = count.saturating_add(more);
    count.checked_ilog2() != before
}

impl FaultTable {
    fn device(&mut self, number: u16) -> &mut FaultCounts {
        let number = usize::from(number);
        if self.devices.len() <= number {
            self.devices.resize(number + 1, FaultCounts::default());
        }
        &mut self.devices[number]
    }

    fn count(
        &mut self,
        fault: FaultKind,
        subject: Subject,
        (place, offset): (Option<(u16, u64)>, u64),
        by_device: bool,
    ) {
        let mut news = false;
        if let (Some((device, _)), true) = (place, by_device) {
            let counts = self.device(device);
            news |= match fault {
                FaultKind::Read => false,
                FaultKind::Checksum => add(&mut counts.checksums, 1),
                FaultKind::Corrected => add(&mut counts.corrected, 1),
                FaultKind::Repaired => add(&mut counts.repaired, 1),
            };
        }
        let full = self.struck.len() >= STRUCK_MAX && !self.struck.contains_key(&subject);
        news |= if full {
            add(&mut self.unlisted, 1)
        } else {
            let new = Struck { subject, counts: FaultCounts::default(), place: None, offset: 0 };
            let struck = self.struck.entry(subject).or_insert(new);
            (struck.place, struck.offset) = (place.or(struck.place), offset);
            let counts = &mut struck.counts;
            let count = match fault {
                FaultKind::Read => &mut counts.reads,
                FaultKind::Checksum => &mut counts.checksums,
                FaultKind::Corrected => &mut counts.corrected,
                FaultKind::Repaired => &mut counts.repaired,
            };
            add(count, 1)
        };
        self.changed = true;
        self.news |= news;
    }

    fn report(&self) -> FaultReport {
        FaultReport {
            cleared: self.cleared,
            devices: self.devices.clone(),
            struck: self.struck.values().copied().collect(),
            unlisted: self.unlisted,
        }
    }
}

/// The errors of a pool that is open, with those of earlier openings.
#[derive(Debug, Default)]
pub struct Faults(Mutex<FaultTable>);

impl Faults {
    /// Adds the counts that earlier openings have stored.
    pub(crate) fn load(&self, stored: FaultReport) {
        let mut counted = self.0.lock();
        let met = std::mem::take(&mut *counted);
        counted.cleared = stored.cleared;
        counted.devices = stored.devices;
        counted.struck = stored.struck.into_iter().map(|struck| (struck.subject, struck)).collect();
        counted.unlisted = stored.unlisted;
        counted.taken = met.taken;
        (counted.changed, counted.news) = (met.changed, met.news);
        // This adds the errors that opening has met before it could read the stored counts.
        for (number, mut more) in (0..).zip(met.devices) {
            let counts = counted.device(number).all();
            for (count, more) in counts.into_iter().zip(more.all()) {
                add(count, *more);
            }
        }
        for (subject, mut struck) in met.struck {
            if counted.struck.len() >= STRUCK_MAX && !counted.struck.contains_key(&subject) {
                add(&mut counted.unlisted, 1);
                continue;
            }
            if let Some(before) = counted.struck.get_mut(&subject) {
                for (count, more) in struck.counts.all().into_iter().zip(before.counts.all()) {
                    add(count, *more);
                }
            }
            counted.struck.insert(subject, struck);
        }
        add(&mut counted.unlisted, met.unlisted);
    }

    /// Counts an error of `subject`, and notes its place as far as that is known: `at` on a device, and byte `offset`
    /// of an object. An error that its device has counted is not counted there again.
    pub(crate) fn count(&self, fault: FaultKind, subject: Subject, at: Option<DamagedAt>, offset: u64) {
        let place = at.map(|at| (at.device, at.offset));
        let by_device = at.is_some_and(|at| !at.counted);
        self.0.lock().count(fault, subject, (place, offset), by_device);
    }

    /// Counts an error of reading a record, or something else of the pool's own. Other errors are not counted.
    pub(crate) fn count_error(&self, error: &Error, subject: Subject) {
        if let Some(fault) = FaultKind::of(error) {
            self.count(fault, subject, error.place(), 0);
        }
    }

    /// Counts something at a place of a device, for the device too.
    pub(crate) fn note(&self, fault: FaultKind, subject: Subject, place: Option<(u16, u64)>) {
        self.0.lock().count(fault, subject, (place, 0), true);
    }

    /// Counts something for a device alone: nothing was struck, since a mirror has the same.
    pub(crate) fn note_device(&self, fault: FaultKind, device: u16) {
        let mut counted = self.0.lock();
        let counts = counted.device(device);
        let news = match fault {
            // The device's own statistics have it.
            FaultKind::Read => false,
            FaultKind::Checksum => add(&mut counts.checksums, 1),
            FaultKind::Corrected => add(&mut counts.corrected, 1),
            FaultKind::Repaired => add(&mut counts.repaired, 1),
        };
        counted.changed = true;
        counted.news |= news;
    }

    /// Returns the addresses of listed records whose errors were not all repaired or answered by a second copy.
    pub(crate) fn records(&self) -> Vec<Addr> {
        let counted = self.0.lock();
        let harmed = counted.struck.values().filter(|struck| {
            let FaultCounts { reads, checksums, corrected, repaired, .. } = struck.counts;
            reads.saturating_add(checksums) > corrected.max(repaired)
        });
        let addr =
            |struck: &Struck| if let Subject::Record(addr) = struck.subject { Some(addr) } else { None };
        harmed.filter_map(addr).collect()
    }

    /// Notes that the record at an address is data of an object, at byte `offset` of it.
    pub(crate) fn found(&self, addr: Addr, subject: Subject, offset: u64) {
        let mut counted = self.0.lock();
        let Some(mut record) = counted.struck.remove(&Subject::Record(addr)) else { return };
        if let Some(known) = counted.struck.get_mut(&subject) {
            for (count, more) in record.counts.all().into_iter().zip(known.counts.all()) {
                add(count, *more);
            }
        }
        counted.struck.insert(subject, Struck { subject, offset, ..record });
        (counted.changed, counted.news) = (true, true);
    }

    /// Takes over what devices count themselves since they were opened: of each, the failed reads, and the failed
    /// writes and flushes, by its number.
    pub(crate) fn take(&self, now: impl Iterator<Item = (u16, (u64, u64))>) {
        let mut counted = self.0.lock();
        for (number, (reads, writes)) in now {
            let at = usize::from(number);
            if counted.taken.len() <= at {
                counted.taken.resize(at + 1, (0, 0));
            }
            let (before_reads, before_writes) = std::mem::replace(&mut counted.taken[at], (reads, writes));
            let (reads, writes) = (reads.saturating_sub(before_reads), writes.saturating_sub(before_writes));
            if reads + writes > 0 {
                let counts = counted.device(number);
                let news = add(&mut counts.reads, reads) | add(&mut counts.writes, writes);
                counted.changed = true;
                counted.news |= news;
            }
        }
    }

    /// Returns all that was counted.
    pub(crate) fn report(&self) -> FaultReport {
        self.0.lock().report()
    }

    /// Returns true if there is something new that should not wait for the next checkpoint.
    pub(crate) fn wants_store(&self) -> bool {
        self.0.lock().news
    }

    /// Returns the counts to be stored; `None` if nothing was counted since the last call.
    pub(crate) fn take_changed(&self) -> Option<FaultReport> {
        let mut counted = self.0.lock();
        counted.news = false;
        std::mem::take(&mut counted.changed).then(|| counted.report())
    }

    /// Clears the counts of one device or of all, at `now` (seconds since 1970). Returns what they were.
    pub(crate) fn clear(&self, device: Option<u16>, now: u64) -> FaultReport {
        let mut counted = self.0.lock();
        counted.changed = true;
        let Some(device) = device else {
            let before = counted.report();
            let taken = std::mem::take(&mut counted.taken);
            *counted = FaultTable { cleared: now, taken, changed: true, ..FaultTable::default() };
            return before;
        };
        let counts = std::mem::take(counted.device(device));
        let mut devices = vec![FaultCounts::default(); usize::from(device)];
        devices.push(counts);
        let lies_there = |struck: &Struck| struck.place.is_some_and(|(on, _)| on == device);
        let struck = counted.struck.values().filter(|struck| lies_there(struck)).copied().collect();
        counted.struck.retain(|_, struck| !lies_there(struck));
        FaultReport { cleared: counted.cleared, devices, struck, unlisted: 0 }
    }
}

#[cfg(test)]
mod tests;
