//! Counts of what a run did.

/// Counts of what a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Changes accepted.
    pub applies: u64,
    /// Changes refused for lack of space.
    pub refused: u64,
    /// Models adopted.
    pub learned: u64,
    /// Pages coded again.
    pub recoded: u64,
    /// Operations on the catalogue that were done.
    pub catalogue_ops: u64,
    /// Streams received without interruption.
    pub received: u64,
    /// Streams received after they had been interrupted and were resumed.
    pub resumed: u64,
    /// Clones that were reset to their origin.
    pub reset: u64,
    /// Clones that were moved onto a newer snapshot.
    pub rebased: u64,
    /// Power cuts between steps, in the middle of calls (where an earlier step armed one), and during recovery from
    /// these.
    pub crashes: u64,
    /// Power cuts that were tried on copies of the devices, in the middle of steps, and during recovery from these.
    pub images: u64,
    /// Times that the pool was opened.
    pub opens: u64,
    /// Calls that failed because of a fault.
    pub failed: u64,
    /// Damaged pools that could not be opened.
    pub unopenable: u64,
    /// Damaged pools that were opened by accepting the loss of what lay behind the damage.
    pub given_up: u64,
    /// Devices of mirrors that became whole.
    pub filled: u64,
    /// Devices that were attached, those of them that were to replace others, and devices that were detached.
    pub attached: u64,
    /// See `attached`.
    pub replacing: u64,
    /// See `attached`.
    pub detached: u64,
    /// Splits that were done, and those that were undone.
    pub split: u64,
    /// See `split`.
    pub unsplit: u64,
    /// Spares that stepped in.
    pub stood_in: u64,
    /// Times that one device of each mirror was found to have everything.
    pub alone: u64,
    /// Steps that were taken in the middle of verbs.
    pub beside: u64,
    /// Times that copies of mirrors were damaged, and mended by a scrub.
    pub mended: u64,
    /// Times that copies of a log device were damaged, and times that such a pool was refused.
    pub log_damaged: u64,
    /// See `log_damaged`.
    pub log_refused: u64,
    /// Older copies that took the place of a device.
    pub older: u64,
    /// Times that devices grew.
    pub grown: u64,
    /// Groups that were removed.
    pub removed: u64,
    /// Balances that ended.
    pub balanced: u64,
    /// Damaged pools whose log ended before the last acknowledged change.
    pub shortened: u64,
}

impl Stats {
    /// Adds the counts of another run.
    pub const fn add(&mut self, other: &Self) {
        self.applies += other.applies;
        self.refused += other.refused;
        self.learned += other.learned;
        self.recoded += other.recoded;
        self.catalogue_ops += other.catalogue_ops;
        self.received += other.received;
        self.resumed += other.resumed;
        self.reset += other.reset;
        self.rebased += other.rebased;
        self.crashes += other.crashes;
        self.images += other.images;
        self.opens += other.opens;
        self.failed += other.failed;
        self.unopenable += other.unopenable;
        self.given_up += other.given_up;
        self.filled += other.filled;
        self.attached += other.attached;
        self.replacing += other.replacing;
        self.detached += other.detached;
        self.split += other.split;
        self.unsplit += other.unsplit;
        self.stood_in += other.stood_in;
        self.alone += other.alone;
        self.beside += other.beside;
        self.mended += other.mended;
        self.log_damaged += other.log_damaged;
        self.log_refused += other.log_refused;
        self.older += other.older;
        self.grown += other.grown;
        self.removed += other.removed;
        self.balanced += other.balanced;
        self.shortened += other.shortened;
    }
}
