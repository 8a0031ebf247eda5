//! `import`: finds pools on devices and remembers them.

use serde_json::json;

use crate::args::Import;
use crate::failure::{Failure, Result};
use crate::pools::{self, Found};
use crate::registry::{Known, Registry};
use crate::table::{Align, Table};
use crate::{places, suggest, table};

/// Shows, or remembers, what is found.
pub fn run(args: &Import) -> Result<()> {
    if let (Some(wanted), true, true) = (&args.pool, args.accept_loss, args.dir.is_empty())
        && let Ok(known) = Registry::open()?.find(wanted)
    {
        return pools::give_up_damaged_log(&known);
    }
    let found = pools::scan(&args.dir)?;
    match &args.pool {
        Some(wanted) if args.accept_loss => {
            let pool = one(&found, wanted)?;
            remember(pool)?;
            pools::give_up_damaged_log(&known(pool))
        }
        Some(wanted) => remember(one(&found, wanted)?),
        None if args.all => {
            let whole: Vec<_> = found.iter().filter(|pool| pool.problem.is_none()).collect();
            if whole.is_empty() {
                return Err(nothing(args));
            }
            whole.into_iter().try_for_each(remember)
        }
        None => show(args, &found),
    }
}

fn nothing(args: &Import) -> Failure {
    let failure = Failure::new("no pool was found");
    if args.dir.is_empty() {
        failure.hint("pools in files are found with: pagefold import -d DIR")
    } else {
        failure
    }
}

fn one<'a>(found: &'a [Found], wanted: &str) -> Result<&'a Found> {
    let matching: Vec<&Found> =
        found.iter().filter(|pool| pool.name == wanted || pool.guid == wanted).collect();
    match matching.as_slice() {
        [pool] => Ok(pool),
        [] => {
            let names: Vec<&str> = found.iter().map(|pool| pool.name.as_str()).collect();
            let near =
                suggest::nearest(wanted, names.iter().copied()).map(|n| format!("; did you mean {n}?"));
            let failure = Failure::new(format!("no pool \"{}\" was found", table::printable(wanted)));
            Err(match names.is_empty() {
                true => failure.hint("pools in files are found with: pagefold import -d DIR"),
                false => failure.hint(format!("found: {}{}", names.join(", "), near.unwrap_or_default())),
            })
        }
        several => {
            let guids: Vec<&str> = several.iter().map(|pool| pool.guid.as_str()).collect();
            Err(Failure::new(format!("{} pools are named {}", several.len(), table::printable(wanted)))
                .hint(format!("import one by its GUID: {}", guids.join(", "))))
        }
    }
}

fn remember(pool: &Found) -> Result<()> {
    places::check_pool_name(&pool.name)?;
    if let Some(problem) = &pool.problem {
        return Err(Failure::new(format!("pool {} cannot be imported: {problem}", pool.name)));
    }
    Registry::open()?.add(known(pool))
}

fn known(pool: &Found) -> Known {
    Known { name: pool.name.clone(), guid: pool.guid.clone(), devices: pool.devices.clone() }
}

fn show(args: &Import, found: &[Found]) -> Result<()> {
    if args.output.json {
        return super::print_json(&json!({ "pools": found }));
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
            pool.state.into(),
            crate::registry::paths_text(&pool.devices),
            pool.problem.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    table.print(args.output.script);
    Ok(())
}
