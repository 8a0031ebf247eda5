//! The property `logicalcapacity`: tells datasets how the pool compresses, so that mounts can tell their space before
//! compression ([`crate::dataset::Thin`]).

use super::Pool;
use crate::dataset::LogicalCapacity;

impl Pool {
    /// Has mounts tell their space in these terms.
    pub fn set_logical_capacity(&self, capacity: LogicalCapacity) {
        self.shared.thin_terms.lock().capacity = capacity;
        self.measure_expansion();
    }

    /// Returns the terms in which mounts tell their space.
    pub fn logical_capacity(&self) -> LogicalCapacity {
        self.shared.thin_terms.lock().capacity
    }

    /// Finds out how the pool compresses now, if that matters to anybody. To be called now and then: it sums up all
    /// datasets.
    pub fn measure_expansion(&self) {
        if self.logical_capacity() == LogicalCapacity::Off {
            return;
        }
        let totals = self.page_totals();
        self.shared.thin_terms.lock().totals = (totals.logical_bytes, totals.physical_bytes);
    }
}
