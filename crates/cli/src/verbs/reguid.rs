//! `reguid`: makes a copy a pool of its own.

use std::path::PathBuf;

use pagefold_engine::pool::{self, Guid};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::last_state::LastStateFile;
use pagefold_server::registry::{Known, Registry, paths_text};
use pagefold_server::{engine_errors, pools, registry};

use crate::args::Reguid;
use crate::target;

/// Changes the GUID, and tells the new one.
pub fn run(args: &Reguid) -> Result<()> {
    let registry = Registry::open()?;
    let (known, devices) = match &args.pool {
        Some(pool) => {
            let known = registry.find(pool)?;
            let devices = known.devices.clone();
            (Some(known), devices)
        }
        None => {
            let devices: Vec<PathBuf> =
                args.device.iter().map(|path| registry::absolute(path)).collect::<Result<_>>()?;
            (registry.all()?.into_iter().find(|known| is_of(known, &devices)), devices)
        }
    };
    if let Some(known) = &known
        && target::connect(&known.name)?.is_some()
    {
        return Err(Failure::new(format!("pool {} is mounted", known.name))
            .hint(format!("unmount it first: pagefold unmount {}", known.name)));
    }
    let on = paths_text(&devices);
    let doing = |error| engine_errors::failed(format!("cannot give the pool on {on} another GUID"), &error);
    let guid = pool::reguid(&devices, Guid(pools::random()?)).map_err(doing)?;
    let is_spare = |path: &&PathBuf| matches!(pools::held_by(path), Some(pools::Held::Spare { .. }));
    let first =
        devices.iter().find(|path| !is_spare(path)).ok_or_else(|| Failure::usage("no device is given"))?;
    let (label, standing) = pool::stands(first).map_err(doing)?;
    if let Some(known) = &known {
        LastStateFile::open(&guid.to_string())?.note(&standing)?;
        registry.change_guid(&known.guid, &guid.to_string())?;
    }
    println!("pool {} on {on} has GUID {guid} now", label.name);
    Ok(())
}

/// Returns whether a known pool is on these devices, and on no others.
fn is_of(known: &Known, devices: &[PathBuf]) -> bool {
    let holds = |path: &PathBuf| matches!(pools::held_by(path), Some(pools::Held::Pool { guid, .. }) if guid == known.guid);
    known.devices.len() == devices.len()
        && known.devices.iter().all(|path| devices.contains(path))
        && devices.iter().any(holds)
}
