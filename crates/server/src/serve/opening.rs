//! Opens a pool for a server, and confines the server in between: after the devices are open, before their contents are
//! read.

use std::sync::Arc;

use pagefold_engine::pool::{OpenOptions, Pool, RescueReport};

use super::budget;
use super::events::Ring;
use super::handover::Handover;
use crate::control::ConfinementFigures;
use crate::event_log::EventLog;
use crate::failure::Result;
use crate::mountopts::MountOptions;
use crate::registry::Known;
use crate::{confine, pools};

/// A pool that was opened.
pub(super) struct OpenedPool {
    pub(super) pool: Arc<Pool>,
    pub(super) read_only: bool,
    /// Rights that this process has given up.
    pub(super) confinement: ConfinementFigures,
}

/// Opens a pool with the options of its first mount.
pub(super) fn open(
    known: &Known,
    wanted: &MountOptions,
    ring: &Arc<Ring>,
    handover: &Handover,
) -> Result<OpenedPool> {
    let options = open_options(known, wanted, handover)?;
    let devices = handover.open_devices(known, &options)?;
    // The log of events is opened with the same rights as the devices; without it the pool is served all the same.
    let events = EventLog::open(&known.guid);
    // So far only the labels of the devices have been read.
    let confinement = confine::server(wanted.confine.unwrap_or_default())?;
    match events.and_then(|(log, kept)| ring.keep(log, kept)) {
        Ok(()) => {}
        Err(failure) => tracing::warn!(failure = failure.what(), "events end with this server"),
    }
    let pool = pools::open_on(known, devices, &options)?;
    log_replay(&pool);
    Ok(OpenedPool { pool, read_only: options.read_only, confinement })
}

fn open_options(known: &Known, wanted: &MountOptions, handover: &Handover) -> Result<OpenOptions> {
    let options = OpenOptions {
        read_only: wanted.read_only,
        accept_loss: wanted.rescue,
        rescue: wanted.rescue,
        journal: handover.journal().cloned(),
        record: wanted.record.clone(),
        cache_bytes: budget::at_opening(wanted.cache),
        ..OpenOptions::default()
    };
    match handover.followed() {
        Some(_) => Ok(pools::attentive_still(known, options)),
        None => pools::attentive(known, options),
    }
}

/// Logs what opening the pool did.
fn log_replay(pool: &Pool) {
    let replayed = pool.replayed();
    let name = pool.name();
    tracing::info!(
        pool = name,
        clean = replayed.clean,
        batches = replayed.batches,
        bytes = replayed.bytes,
        "opened the pool"
    );
    if replayed.damaged > 0 {
        tracing::error!(
            pool = name,
            batches = replayed.damaged,
            "the log has damaged records: reading them fails"
        );
    }
    if let Some(lost) = replayed.damage {
        tracing::error!(
            pool = name,
            device = lost.device,
            offset = lost.offset,
            "the log is damaged: what was acknowledged behind it is not shown"
        );
    }
    for damage in pool.rescue().map(RescueReport::messages).unwrap_or_default() {
        tracing::error!(pool = name, damage, "opened for rescue");
    }
}
