//! `import`: finds pools on devices and remembers them.

use std::path::{Path, PathBuf};

use pagefold_engine::pool;
use pagefold_server::control::{Reply, Request};
use pagefold_server::discovery::{self, FoundPool, Search};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::last_state::LastStateFile;
use pagefold_server::registry::{Known, Registry, paths_text};
use pagefold_server::{engine_errors, files, pools, raw, registry, stderr, suggest};
use serde_json::json;

use crate::args::Import;
use crate::table::{Align, Table};
use crate::{progress, table, target};

/// Shows the pools that are found, or remembers them.
pub fn run(args: &Import) -> Result<()> {
    if let Some(device) = device_named(args) {
        let found = discovery::identify(&registry::absolute(&device)?)?;
        return one(args, std::slice::from_ref(&found), &found.guid).and_then(|pool| import(args, pool));
    }
    let Search { pools, silent } = progress::scan(&where_to_look(args)?)?;
    let done = match &args.pool {
        Some(wanted) => one(args, &pools, wanted).and_then(|pool| import(args, pool)),
        None if args.all => all(args, &pools),
        None => show(args, &pools, &silent),
    };
    if silent.is_empty() {
        return done;
    }
    let failure = left_out(&silent);
    match done {
        // The pool that was wanted is there, whatever is on the others.
        Ok(()) if args.pool.is_none() => Err(failure),
        done => {
            stderr::write_line(&failure.to_string());
            done
        }
    }
}

/// Returns the device that is named in place of its pool: no name of a pool is a path.
fn device_named(args: &Import) -> Option<PathBuf> {
    let wanted = args.pool.as_ref().filter(|wanted| args.dir.is_empty() && wanted.contains('/'))?;
    let path = raw::path_of(wanted);
    (path.exists() && !path.is_dir()).then_some(path)
}

/// Returns the failure that devices did not answer.
fn left_out(silent: &[PathBuf]) -> Failure {
    let (what, when) = match silent {
        [_] => ("does not answer, and was left out", "when it answers"),
        _ => ("do not answer, and were left out", "when they answer"),
    };
    Failure::new(format!("{} {what}", paths_text(silent)))
        .hint(format!("see the kernel's log (dmesg), and look again {when}"))
}

/// Returns the directories and devices that are named. If none are, all block devices are meant: the list is empty, or
/// has them and the devices of the pool that is named, if that is known.
fn where_to_look(args: &Import) -> Result<Vec<PathBuf>> {
    if let (Some(wanted), true) = (&args.pool, args.dir.is_empty()) {
        let known = Registry::open()?.all()?;
        let known = known.into_iter().find(|known| known.name == *wanted || known.guid == *wanted);
        if let Some(known) = known {
            let there = known.devices.into_iter().filter(|path| path.exists());
            return Ok(there.chain(discovery::block_devices()?).collect());
        }
    }
    Ok(args.dir.clone())
}

fn nothing(args: &Import) -> Failure {
    let failure = Failure::new("no pool was found");
    if args.dir.is_empty() {
        failure.hint("pools in files are found with: pagefold import -d DIR")
    } else {
        failure
    }
}

/// Returns the pool that is meant: of its copies, the one that is current, or an older one if that is accepted.
fn one<'a>(args: &Import, found: &'a [FoundPool], wanted: &str) -> Result<&'a FoundPool> {
    let mut matching: Vec<&FoundPool> =
        found.iter().filter(|pool| pool.name == wanted || pool.guid == wanted).collect();
    // A log device without its pool is meant only if nothing else is.
    if matching.iter().any(|pool| !pool.is_log_device) {
        matching.retain(|pool| !pool.is_log_device);
    }
    let current: Vec<&FoundPool> = matching.iter().copied().filter(|pool| pool.is_current()).collect();
    match (matching.as_slice(), current.as_slice()) {
        ([], _) => Err(not_found(args, found, wanted)),
        ([pool], _) if args.accept_older || pool.is_current() => Ok(pool),
        (_, [pool]) if !args.accept_older => Ok(pool),
        ([pool], _) => {
            let what = format!(
                "pool {} cannot be imported: {}",
                pool.name,
                pool.problem.as_deref().unwrap_or_default()
            );
            Err(Failure::new(what).hint(pool.action.clone().unwrap_or_default()))
        }
        (several, _) => Err(ambiguous(several, wanted)),
    }
}

fn not_found(args: &Import, found: &[FoundPool], wanted: &str) -> Failure {
    let mut names: Vec<&str> = found.iter().map(|pool| pool.name.as_str()).collect();
    names.dedup();
    let near = suggest::nearest(wanted, names.iter().copied()).map(|n| format!("; did you mean {n}?"));
    let failure = Failure::new(format!("no pool \"{}\" was found", table::printable(wanted)));
    if args.dir.is_empty() && wanted.contains('/') && Path::new(wanted).exists() {
        failure.hint(format!(
            "the pools in it are found with: pagefold import -d {}",
            raw::shown(Path::new(wanted))
        ))
    } else if names.is_empty() && args.dir.is_empty() {
        failure.hint("pools in files are found with: pagefold import -d DIR")
    } else if names.is_empty() {
        failure
    } else {
        failure.hint(format!("found: {}{}", names.join(", "), near.unwrap_or_default()))
    }
}

/// Returns the failure that nothing tells which of several pools is meant.
fn ambiguous(several: &[&FoundPool], wanted: &str) -> Failure {
    let line = |pool: &&FoundPool| {
        let problem = pool.problem.as_ref().map(|problem| format!(": {problem}"));
        format!(
            "\n  {} {} on {}{}",
            pool.guid,
            discovery::state_text(pool.state),
            paths_text(&pool.devices),
            problem.unwrap_or_default()
        )
    };
    let lines: String = several.iter().map(line).collect();
    let mut guids: Vec<&str> = several.iter().map(|pool| pool.guid.as_str()).collect();
    guids.dedup();
    let (what, hint) = match guids.as_slice() {
        [guid] => {
            ("copies of one pool", format!("say which by its devices: pagefold import -d DEVICE {guid}"))
        }
        several => ("pools", format!("import one by its GUID: {}", several.join(", "))),
    };
    Failure::new(format!("{} {what} are named {}:{lines}", several.len(), table::printable(wanted)))
        .hint(hint)
}

/// Imports what was chosen.
fn import(args: &Import, pool: &FoundPool) -> Result<()> {
    files::check_pool_name(&pool.name)?;
    if !pool.is_whole(args.accept_loss) {
        let few = format!("{} of its {} devices were found, each once", pool.devices.len(), pool.expected);
        let problem = pool.problem.as_ref().filter(|_| pool.is_current()).unwrap_or(&few);
        return Err(Failure::new(format!("pool {} cannot be imported: {problem}", pool.name))
            .hint(pool.action.clone().unwrap_or_default()));
    }
    let registry = Registry::open()?;
    let before = registry.of_guid(&pool.guid)?;
    let mut known = Known { adopted: args.adopt || pool.known()?.adopted, ..pool.known()? };
    if let Some(before) = &before {
        check_mounted(before, pool)?;
    }
    if let Some(root) = &args.altroot {
        let dir = registry::absolute(root)?;
        if !dir.is_dir() {
            return Err(Failure::new(format!("{} is not a directory", raw::shown(&dir))));
        }
        known.altroot = Some(dir);
    }
    if let Some(name) = &args.new_name {
        files::check_pool_name(name)?;
        known.name.clone_from(name);
    }
    // This check comes before anything is changed.
    registry.check_name(&known)?;
    if !pool.is_current() {
        go_back(pool)?;
    }
    if args.new_name.is_some() {
        pool::rename(&known.devices, &known.name)
            .map_err(|error| engine_errors::failed(format!("cannot rename pool {}", pool.name), &error))?;
    }
    registry.add(known.clone())?;
    if args.accept_loss { pools::give_up_damaged_log(&known, &mut |line| println!("{line}")) } else { Ok(()) }
}

/// Refuses to take the pool from under its server.
fn check_mounted(before: &Known, pool: &FoundPool) -> Result<()> {
    if !Registry::open()?.all()?.iter().any(|known| known.guid == before.guid) {
        return Ok(());
    }
    let Some(mut client) = target::connect(&before.name)? else { return Ok(()) };
    let Reply::Status { figures } = client.ask(&Request::Status {})? else {
        return Err(client.misunderstood());
    };
    // It may be mounted by another path than the one by which it is known.
    let open: Vec<PathBuf> = figures.devices.into_iter().map(|device| device.path).collect();
    let is_same = before.devices == pool.all_devices() && before.name == pool.name;
    if is_same && pool.devices.iter().any(|path| open.contains(path)) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "pool {} (GUID {}) is mounted, from {}",
        before.name,
        before.guid,
        paths_text(&open)
    ))
    .hint(format!("unmount it first (pagefold unmount {}); a copy of it can become a pool of its own: pagefold reguid --device DEVICE", before.name)))
}

/// Makes the older copy the pool from now on.
fn go_back(pool: &FoundPool) -> Result<()> {
    let device =
        pool.devices.first().ok_or_else(|| Failure::new(format!("pool {} has no device", pool.name)))?;
    let (_, standing) = pool::stands(device).map_err(|error| {
        engine_errors::failed(format!("cannot tell how far {} has come", raw::shown(device)), &error)
    })?;
    LastStateFile::open(&pool.guid)?.go_back(&standing)
}

/// Imports every pool that is whole and is no old copy.
fn all(args: &Import, found: &[FoundPool]) -> Result<()> {
    let mut imported = 0;
    let mut failed = 0;
    for pool in found {
        if let Some(problem) = &pool.problem {
            eprintln!("pagefold: {} on {}: {problem}; it is left out", pool.name, paths_text(&pool.devices));
            continue;
        }
        match import(args, pool) {
            Ok(()) => imported += 1,
            Err(failure) => {
                eprintln!("pagefold: {}: {failure}", pool.name);
                failed += 1;
            }
        }
    }
    match (imported, failed) {
        (0, 0) => Err(nothing(args)),
        (_, 0) => Ok(()),
        _ => Err(Failure::new(format!("{failed} pools could not be imported"))),
    }
}

fn show(args: &Import, found: &[FoundPool], silent: &[PathBuf]) -> Result<()> {
    if args.output.json {
        let left_out: Vec<String> = silent.iter().map(|path| raw::text(path)).collect();
        return super::print_json(&json!({ "pools": found, "left_out": left_out }));
    }
    if found.is_empty() {
        return Err(nothing(args));
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("GUID", Align::Left),
        ("STATE", Align::Left),
        ("DEVICES", Align::Left),
        ("PROBLEM", Align::Left),
    ]);
    for pool in found {
        table.row(vec![
            pool.name.clone(),
            pool.guid.clone(),
            discovery::state_text(pool.state).into(),
            paths_text(&pool.devices),
            pool.problem.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    table.print(args.output.script);
    if args.output.script {
        return Ok(());
    }
    for pool in found {
        let on = paths_text(&pool.devices);
        if !pool.also.is_empty() {
            println!("\n{on}: other paths to the same: {}", paths_text(&pool.also));
        }
        if let Some(action) = &pool.action {
            println!(
                "\n{} on {on} ({}):\n{}",
                pool.name,
                discovery::state_text(pool.state),
                table::wrapped(action, 2).trim_end()
            );
        }
    }
    Ok(())
}
