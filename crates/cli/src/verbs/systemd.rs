//! `systemd`: writes drop-ins by which databases and pools start and stop in the right order.

use std::fs;
use std::path::{Path, PathBuf};

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::raw;
use serde_json::json;

use crate::args::{Systemd, SystemdInstall, SystemdRemove, SystemdShow};
use crate::boot::{self, DropIns, Machine};
use crate::target;

/// Folder of the administrator's units.
const UNITS: &str = "/etc/systemd/system";

/// `systemd VERB`.
pub fn run(args: &Systemd) -> Result<()> {
    match args {
        Systemd::Show(args) => show(args),
        Systemd::Install(args) => install(args),
        Systemd::Remove(args) => remove(args),
    }
}

/// Returns the drop-ins for these pools, or for all that services mount.
fn wanted(pools: &[String]) -> Result<DropIns> {
    let machine = Machine::look(Path::new("/"))?;
    let names: Vec<String> = match pools {
        [] => machine.pools.iter().map(|known| known.name.clone()).collect(),
        some => some.iter().map(|word| target::pool_name(word)).collect::<Result<_>>()?,
    };
    let mut served = Vec::new();
    for name in &names {
        match boot::served(std::slice::from_ref(name)) {
            Ok(found) => served.extend(found),
            Err(failure) if !pools.is_empty() => return Err(failure),
            // A pool that is not there must not keep the others' drop-ins from being made.
            Err(failure) => eprintln!("pagefold: pool {name} is left out: {failure}"),
        }
    }
    Ok(machine.of_services(&served))
}

fn show(args: &SystemdShow) -> Result<()> {
    let all = wanted(&args.pools)?;
    if args.json {
        let files: Vec<_> = all
            .iter()
            .map(|(path, text)| json!({ "path": raw::text(&Path::new(UNITS).join(path)), "text": text }))
            .collect();
        return super::print_json(&json!({ "files": files }));
    }
    for (path, text) in &all {
        println!("# {}\n{text}", Path::new(UNITS).join(path).display());
    }
    if all.is_empty() {
        eprintln!("{}", nothing());
    }
    Ok(())
}

fn nothing() -> &'static str {
    "nothing is to be written: no pool with a mountpoint property has devices or databases that systemd has to know of"
}

fn install(args: &SystemdInstall) -> Result<()> {
    let all = wanted(&args.pools)?;
    let dir = args.dir.clone().unwrap_or_else(|| UNITS.into());
    let written = boot::write(&dir, &all)?;
    print_result("wrote", &written);
    let stale: Vec<PathBuf> = match args.pools.as_slice() {
        [] => boot::installed(&dir),
        // Drop-ins of pools that are not named are unknown here, so none counts as stale.
        _ => Vec::new(),
    };
    let stale: Vec<PathBuf> =
        stale.into_iter().filter(|path| !all.keys().any(|wanted| path.ends_with(wanted))).collect();
    take_away(&stale)?;
    if all.is_empty() {
        eprintln!("{}", nothing());
    }
    if !written.is_empty() || !stale.is_empty() {
        eprintln!("it takes effect with: systemctl daemon-reload");
    }
    Ok(())
}

fn remove(args: &SystemdRemove) -> Result<()> {
    let dir = args.dir.clone().unwrap_or_else(|| UNITS.into());
    let ours = boot::installed(&dir);
    if ours.is_empty() {
        return Err(Failure::new(format!("there is no drop-in of ours in {}", raw::text(&dir))));
    }
    take_away(&ours)?;
    eprintln!("it takes effect with: systemctl daemon-reload");
    Ok(())
}

fn take_away(files: &[PathBuf]) -> Result<()> {
    for path in files {
        fs::remove_file(path).context(|| format!("cannot remove {}", raw::text(path)))?;
        // The directory stays if somebody else has files in it.
        let _ = path.parent().map(fs::remove_dir);
    }
    print_result("removed", files);
    Ok(())
}

fn print_result(what: &str, files: &[PathBuf]) {
    for path in files {
        println!("{what} {}", crate::table::printable(&raw::text(path)));
    }
}
