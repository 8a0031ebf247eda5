//! Tells the devices of several pools apart, and compares the half of a pool that was split with the model.

use std::sync::Arc;

use pagefold_engine::device::{Device, OneDevice, SimDevice};
use pagefold_engine::pool::{DeviceState, Guid, Label, OpenOptions, Pool};

use crate::verify::{Calls, Terms, check, compare, signature};
use crate::world::World;

/// GUID of the pool of every history.
pub(crate) const POOL: Guid = Guid(*b"simulated pool 1");
/// Property that a pool has while it is being split.
const SPLIT: &str = "pagefold:split";

/// Returns the GUID of the pool that a device is a member of, as far as its label can be read.
pub(crate) fn pool_of(device: &SimDevice) -> Option<Guid> {
    Label::read(OneDevice::of(device)).ok().map(|label| label.pool)
}

/// Returns the devices that the pool of the history is opened with: all but those of another pool.
pub(crate) fn of_the_pool<'d>(devices: impl Iterator<Item = &'d Arc<SimDevice>>) -> Vec<Arc<dyn Device>> {
    let ours = devices.filter(|device| pool_of(device).is_none_or(|pool| pool == POOL));
    ours.map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
}

/// Returns what a pool says of a split that it has not settled: true if it has happened.
pub(crate) fn unsettled_split(pool: &Pool) -> Result<Option<bool>, String> {
    let said = pool.property(SPLIT).map_err(|error| format!("{SPLIT}: {error}"))?;
    Ok(said.map(|said| said.starts_with("done ")))
}

/// A half of a pool that has become a pool of its own, or may have.
#[derive(Clone)]
pub(crate) struct Half {
    /// Its GUID.
    pub(crate) guid: Guid,
    /// Number of its devices.
    pub(crate) devices: usize,
    /// Content of the pool when it was split.
    pub(crate) world: World,
}

/// State of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// It has happened, and the half is right.
    Done,
    /// It has not happened.
    Undone,
    /// The pool is about to go on with it, or to undo it.
    UnderWay,
}

impl Half {
    /// Finds out whether an open `pool` was split, and compares the half among these devices, which are changed, with
    /// the model.
    pub(crate) fn judge(
        &self,
        pool: &Pool,
        devices: &[Arc<SimDevice>],
        options: &OpenOptions,
    ) -> Result<Split, String> {
        let mine = devices.iter().filter(|device| pool_of(device) == Some(self.guid));
        let mine: Vec<_> = mine.map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        if mine.len() < self.devices && self.is_under_way(pool)? {
            return Ok(Split::UnderWay);
        }
        if mine.is_empty() {
            return Ok(Split::Undone);
        }
        if mine.len() != self.devices {
            return Err(format!("a half has {} devices, not {}", mine.len(), self.devices));
        }
        self.compare(mine, options).map_err(|what| format!("half of the pool: {what}"))?;
        Ok(Split::Done)
    }

    /// Returns true if the pool says that it is being split into this half and the rest.
    fn is_under_way(&self, pool: &Pool) -> Result<bool, String> {
        let guid = format!("{:032x}", u128::from_be_bytes(self.guid.0));
        let said = pool.property(SPLIT).map_err(|error| format!("{SPLIT}: {error}"))?;
        Ok(said.is_some_and(|said| said.contains(&guid)))
    }

    fn compare(&self, devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<(), String> {
        let pool = Pool::open_on(devices, options).map_err(|error| format!("open: {error}"))?;
        let status = pool.device_status();
        let is_one = |at: usize| status.iter().filter(|other| other.group == status[at].group).count() == 1;
        let whole = status.iter().all(|device| device.state == DeviceState::Online && !device.leaves);
        if !whole || status.len() != self.devices || !(0..status.len()).all(is_one) {
            let told: Vec<_> = status.iter().map(|one| (one.number, one.group, one.state)).collect();
            return Err(format!("it has the devices {told:?}"));
        }
        if let Some(spare) = pool.spares().first() {
            return Err(format!("it has a spare: {spare:?}"));
        }
        let found = signature(&pool).map_err(|error| format!("what there is cannot be read: {error}"))?;
        if found != self.world.signature() {
            return Err(format!("{found:?} is there, and {:?} was", self.world.signature()));
        }
        for partial in pool.partials() {
            let given_up = pool.abort_receive(&partial.path);
            given_up.map_err(|error| format!("what is left of a stream cannot be given up: {error}"))?;
        }
        compare(&pool, &self.world, Terms { settled: true, may_fail: false, calls: Calls::Read })?;
        check(&pool, &self.world)
    }
}
