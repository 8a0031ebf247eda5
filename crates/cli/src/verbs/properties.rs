//! `get`, `set` and `inherit`.

use pagefold_server::control::{Client, PropertyValue, Reply, Request, ValueSource};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::operations::Operation;
use pagefold_server::props::{self, Scope};
use pagefold_server::registry::Registry;
use pagefold_server::{dataset_properties, pools};
use serde::Serialize;

use super::dataset::wrong_order;
use crate::args::{Get, Inherit, Set};
use crate::failures::Failures;
use crate::table::{Align, Table};
use crate::{datasets, target};

#[derive(Serialize)]
struct Row {
    name: String,
    property: String,
    value: String,
    source: String,
}

/// Prints properties.
pub fn get(args: &Get) -> Result<()> {
    let wanted = wanted(&args.properties)?;
    let mut rows = Vec::new();
    let mut failures = Failures::new();
    for name in targets(args, &mut failures)? {
        let Some(values) = failures.take(&name.to_string(), values(&name)) else { continue };
        for value in values {
            let listed = match &wanted {
                Some(names) => names.contains(&value.name),
                None => true,
            };
            if !listed {
                continue;
            }
            let exact = args.output.exact || args.output.json;
            let shown = match props::find(&value.name) {
                Ok(property) if !exact => property.human(&value.value),
                _ => value.value.clone(),
            };
            rows.push(Row {
                name: name.to_string(),
                property: value.name,
                value: shown,
                source: value.source.text(),
            });
        }
    }
    if args.output.json {
        super::print_json(&serde_json::json!({ "properties": rows, "failures": failures.json() }))?;
        return failures.finish(args.targets.len(), "read");
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("PROPERTY", Align::Left),
        ("VALUE", Align::Left),
        ("SOURCE", Align::Left),
    ]);
    for row in rows {
        table.row(vec![row.name, row.property, row.value, row.source]);
    }
    table.print(args.output.script);
    failures.finish(args.targets.len(), "read")
}

/// Returns the datasets and snapshots that are meant.
fn targets(args: &Get, failures: &mut Failures) -> Result<Vec<Name>> {
    let names = target::names(&args.targets)?;
    if !args.recursive {
        return Ok(names);
    }
    let mut all = Vec::new();
    for name in names {
        let Some(below) = failures.need(&name.to_string(), datasets::of_pool(&name.pool)) else { continue };
        let within =
            below.iter().filter(|figures| pagefold_server::names::is_within(&figures.path, &name.path));
        all.extend(within.map(|figures| Name::new(&name.pool, &figures.path)));
    }
    Ok(all)
}

/// Returns the names of the properties that are wanted; `None` stands for all.
fn wanted(list: &str) -> Result<Option<Vec<String>>> {
    if list == "all" {
        return Ok(None);
    }
    let one = |name: &str| match props::is_user(name) {
        true => Ok(name.to_owned()),
        false => match props::find(name) {
            // The list is the name of a pool: `get tank`, for example.
            Err(failure)
                if !list.contains(',') && Registry::open()?.all()?.iter().any(|known| known.name == name) =>
            {
                Err(Failure::usage(failure.what())
                    .hint(format!("of the pool of this name: pagefold get all {name}")))
            }
            found => found.map(|property| property.name.to_owned()),
        },
    };
    list.split(',').map(one).collect::<Result<Vec<_>>>().map(Some)
}

/// Returns the properties of a dataset or snapshot, from its server or from its devices.
pub(super) fn values(name: &Name) -> Result<Vec<PropertyValue>> {
    let ask = |client: &mut Client| datasets::properties_asked(client, &name.path);
    target::ask_or_look(&name.pool, ask, |known| datasets::properties_offline(known, &name.path))
}

/// Sets properties: all are checked before the first is set.
pub fn set(args: &Set) -> Result<()> {
    let split = args.words.iter().position(|word| !word.contains('=')).unwrap_or(args.words.len());
    let (assignments, targets) = args.words.split_at(split);
    if assignments.is_empty() {
        let first = args.words.first().map_or("", String::as_str);
        if let [name] = args.words.as_slice()
            && (target::is_path(name)
                || target::name(name).is_ok_and(|name| target::known(&name.pool).is_ok()))
        {
            let name = crate::table::printable(name);
            return Err(Failure::usage(format!("what is to be set on {name}?")).hint(format!(
                "pagefold set PROPERTY=VALUE {name}; its properties: pagefold get all {name}"
            )));
        }
        if let [name, properties @ ..] = args.words.as_slice()
            && !properties.is_empty()
            && properties.iter().all(|word| word.contains('='))
        {
            return Err(wrong_order("what is to be set", &format!("set {} {name}", properties.join(" "))));
        }
        return Err(Failure::usage(format!(
            "\"{}\" is not of the form property=value",
            crate::table::printable(first)
        ))
        .hint(format!("properties that can be set: {}", props::names(true).join(", "))));
    }
    let assignments: Vec<(String, String)> =
        assignments.iter().map(|word| props::parse_for_dataset(word)).collect::<Result<_>>()?;
    if targets.is_empty() {
        return Err(Failure::usage("on what?").hint("pagefold set PROPERTY=VALUE POOL[/DATASET]"));
    }
    let targets: Vec<Name> = targets.iter().map(|word| target::name(word)).collect::<Result<_>>()?;
    for name in &targets {
        assignments.iter().try_for_each(|(property, _)| props::check_settable_on(property, name))?;
    }
    targets.iter().try_for_each(|name| {
        set_on(name, &assignments)?;
        takes_effect(name, assignments.iter().map(|(property, _)| property.as_str()))
    })
}

/// Has the kernel follow properties that were changed on mounted datasets.
fn takes_effect<'a>(name: &Name, mut changed: impl Iterator<Item = &'a str>) -> Result<()> {
    if changed.any(|property| property == "readonly") {
        super::remount::property_changed(name)
    } else {
        Ok(())
    }
}

/// Sets properties of a dataset or snapshot; they must have been checked.
pub(super) fn set_on(name: &Name, assignments: &[(String, String)]) -> Result<()> {
    let Some(mut client) = target::connect(&name.pool)? else {
        let known = Registry::open()?.find(&name.pool)?;
        return pools::with_offline(&known, |pool| {
            let set = |(property, value): &(String, String)| {
                dataset_properties::set_one(pool, &name.path, property, Some(value))
            };
            assignments.iter().try_for_each(set)
        })
        .context(|| format!("cannot set properties of {name}"));
    };
    for (property, value) in assignments {
        let (path, property, value) = (name.path.clone(), property.clone(), value.clone());
        let Reply::Done {} = client.ask_and_wait(&Request::Set { path, name: property, value })? else {
            return Err(client.misunderstood());
        };
    }
    print_when(&mut client, name, assignments)
}

/// Tells which properties do not take effect at once on a pool that is mounted.
fn print_when(client: &mut Client, name: &Name, assignments: &[(String, String)]) -> Result<()> {
    let ours: Vec<&String> = assignments.iter().map(|(property, _)| property).collect();
    let later = |property: &str| match property {
        "takeover" => Some("takes effect when all of the pool is unmounted and mounted again"),
        "io_uring" => Some("holds for mounts that are made from now on"),
        _ => None,
    };
    let of_pool = |property: &&&String| props::find(property).is_ok_and(|found| found.scope == Scope::Pool);
    let ours: Vec<&String> = ours.iter().filter(of_pool).copied().collect();
    if ours.is_empty() {
        return Ok(());
    }
    let values = datasets::properties_asked(client, &name.path)?;
    for property in ours {
        let temporary =
            values.iter().any(|value| value.name == *property && value.source == ValueSource::Temporary);
        if temporary {
            eprintln!(
                "pagefold: a mount option for {property} goes before it as long as pool {} is mounted",
                name.pool
            );
        } else if let Some(later) = later(property) {
            eprintln!("pagefold: {property} {later}");
        }
    }
    Ok(())
}

/// Clears a property, so that the value of a dataset above or the default holds.
pub fn inherit(args: &Inherit) -> Result<()> {
    props::check_not_ours(&args.property)?;
    if !props::is_user(&args.property) && !props::find(&args.property)?.settable() {
        return Err(Failure::usage(format!("{} is computed and cannot be inherited", args.property)));
    }
    for word in &args.targets {
        let name = target::name(word)?;
        props::check_settable_on(&args.property, &name)?;
        let operation = Operation::Inherit { path: name.path.clone(), name: args.property.clone() };
        datasets::perform(&name.pool, operation)?;
        takes_effect(&name, std::iter::once(args.property.as_str()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_user_properties_are_free() {
        assert_eq!(wanted("all").unwrap(), None);
        assert_eq!(wanted("used,backup:keep").unwrap().unwrap(), ["used", "backup:keep"]);
        assert_eq!(wanted("usd").unwrap_err().exit_status(), 2);
    }
}
