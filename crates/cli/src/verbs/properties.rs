//! `get` and `set`.

use serde::Serialize;

use crate::args::{Get, Set};
use crate::control::{PropertyValue, Reply, Request};
use crate::failure::{Context, Failure, Result};
use crate::props::{self, PROPERTIES, Property};
use crate::registry::Registry;
use crate::table::{Align, Table};
use crate::{pools, target};

#[derive(Serialize)]
struct Row {
    name: String,
    property: String,
    value: String,
    source: &'static str,
}

/// Prints properties.
pub fn get(args: &Get) -> Result<()> {
    let wanted = wanted(&args.properties)?;
    let targets = match args.targets.as_slice() {
        [] => Registry::open()?.all()?.into_iter().map(|known| known.name).collect(),
        some => some.to_vec(),
    };
    let mut rows = Vec::new();
    for target in targets {
        let (name, values) = values(&target)?;
        for property in &wanted {
            let Some(value) = values.iter().find(|value| value.name == property.name) else { continue };
            let exact = args.output.exact || args.output.json;
            let shown = if exact { value.value.clone() } else { property.human(&value.value) };
            rows.push(Row {
                name: name.clone(),
                property: value.name.clone(),
                value: shown,
                source: value.source.text(),
            });
        }
    }
    if args.output.json {
        return super::print_json(&serde_json::json!({ "properties": rows }));
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("PROPERTY", Align::Left),
        ("VALUE", Align::Left),
        ("SOURCE", Align::Left),
    ]);
    for row in rows {
        table.row(vec![row.name, row.property, row.value, row.source.into()]);
    }
    table.print(args.output.script);
    Ok(())
}

fn wanted(list: &str) -> Result<Vec<&'static Property>> {
    if list == "all" {
        return Ok(PROPERTIES.iter().collect());
    }
    list.split(',').map(props::find).collect()
}

/// A pool's name and its properties, from its server or from its devices.
fn values(target: &str) -> Result<(String, Vec<PropertyValue>)> {
    let pool = target::pool_name(target)?;
    if let Some(mut client) = target::connect(&pool)? {
        return match client.ask(&Request::Properties {})? {
            Reply::Properties { values } => Ok((pool, values)),
            _ => Err(client.misunderstood()),
        };
    }
    let known = Registry::open()?.find(&pool)?;
    let values = pools::properties_offline(&known)?;
    Ok((pool, values))
}

/// Sets properties: all are checked before the first is set.
pub fn set(args: &Set) -> Result<()> {
    let split = args.words.iter().position(|word| !word.contains('=')).unwrap_or(args.words.len());
    let (assignments, targets) = args.words.split_at(split);
    if assignments.is_empty() {
        let first = args.words.first().map_or("", String::as_str);
        return Err(Failure::usage(format!(
            "\"{}\" is not of the form property=value",
            crate::table::printable(first)
        ))
        .hint(format!("properties that can be set: {}", props::names(true).join(", "))));
    }
    let assignments: Vec<_> =
        assignments.iter().map(|word| props::parse_assignment(word)).collect::<Result<_>>()?;
    if targets.is_empty() {
        return Err(Failure::usage("which pool?").hint("pagefold set PROPERTY=VALUE POOL"));
    }
    for target in targets {
        let pool = target::pool_name(target)?;
        match target::connect(&pool)? {
            Some(mut client) => {
                for (property, value) in &assignments {
                    let request = Request::Set { name: property.name.into(), value: value.clone() };
                    let Reply::Done {} = client.ask_and_wait(&request)? else {
                        return Err(client.misunderstood());
                    };
                }
            }
            None => pools::set_offline(&Registry::open()?.find(&pool)?, &assignments)
                .context(|| format!("cannot set properties of pool {pool}"))?,
        }
    }
    Ok(())
}
