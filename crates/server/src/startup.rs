//! Properties of a pool that its server has to know before it opens the pool: mount options that are kept in the pool.
//!
//! A process that confines itself first ([`probe`]) reads them from the pool's last checkpoint, because the contents of
//! devices are not trusted. Setting one of them makes a checkpoint, so that the last checkpoint has it. They become
//! options of the server (`--pool-options`); options that the user gives come after them and win.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use pagefold_engine::device::{Device, FileDevice, OpenMode};
use pagefold_engine::pool::Pool;

use crate::failure::{Context, Failure, Result};
use crate::mountopts::{self, Confine, MountOptions};
use crate::props::Property;
use crate::registry::Known;
use crate::{confine, engine_errors, props};

/// Names of these properties, which are those of the mount options, too.
pub(crate) const NAMES: [&str; 3] = ["cache", "io_uring", "takeover"];

/// Returns true if `name` is one of them.
pub(crate) fn is_one(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Returns all options of a mount: those of its pool, as far as they were read, and those that were given.
pub fn options(of_pool: &[String], given: &[String]) -> Result<MountOptions> {
    let words: Vec<&String> = of_pool.iter().chain(given).collect();
    mountopts::parse(&words)
}

/// Returns those of these properties that were given as mount options, with values in stored form.
pub fn given(options: &[String]) -> Result<Vec<(&'static str, String)>> {
    let words = options.iter().filter_map(|word| word.split_once('='));
    let ours = words.filter(|(name, _)| is_one(name));
    ours.map(|(name, value)| {
        let property = props::find(name)?;
        Ok((property.name, property.parse(value)?))
    })
    .collect()
}

/// Returns those of these properties that are set on a pool, as mount options.
///
/// Errors: a value that this version does not know. For a pool that cannot be read there are none: the server, which
/// reads all of it, reports what is wrong.
pub fn of_pool(known: &Known) -> Result<Vec<String>> {
    let program = std::env::current_exe().context(|| "cannot find this program's own file".into())?;
    let output = Command::new(program)
        .args(["probe", "--"])
        .args(&known.devices)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .context(|| format!("cannot look at pool {}", known.name))?;
    if !output.status.success() {
        return Ok(Vec::new());
    }
    let values: BTreeMap<String, String> = serde_json::from_slice(&output.stdout)
        .context(|| format!("cannot read the properties of pool {}", known.name))?;
    let known_here = |(name, value): (String, String)| {
        let parsed = props::find(&name).and_then(|property| property.parse(&value));
        match parsed {
            Ok(value) => Ok(format!("{name}={value}")),
            Err(_) => Err(Failure::new(format!(
                "pool {} has the property {name}={}, which is unknown here",
                known.name,
                crate::raw::printable(&value)
            ))
            .hint("use the version of pagefold that set it, or a newer one")),
        }
    };
    values.into_iter().map(known_here).collect()
}

/// Does the work of the process that reads them: returns those that are set, as JSON. The process confines itself.
pub fn probe(paths: &[PathBuf]) -> Result<String> {
    let open = |path: &PathBuf| -> Result<Arc<dyn Device>> {
        let opened = FileDevice::open(path, OpenMode::Unlocked);
        Ok(Arc::new(opened.map_err(|error| engine_errors::failed("cannot open a device", &error))?))
    };
    // A device may be missing: whether the pool can be opened without it is found out below.
    let (devices, refused): (Vec<_>, Vec<_>) = paths.iter().map(open).partition(Result::is_ok);
    let devices: Vec<Arc<dyn Device>> = devices.into_iter().flatten().collect();
    if let (true, Some(Err(failure))) = (devices.is_empty(), refused.into_iter().next()) {
        return Err(failure);
    }
    confine::server(Confine::Auto)?;
    let stored = Pool::stored_properties(devices);
    let mut stored =
        stored.map_err(|error| engine_errors::failed("cannot read the pool's properties", &error))?;
    stored.retain(|name, _| is_one(name));
    serde_json::to_string(&stored).context(|| "cannot print".into())
}

/// Returns an error if properties that are to be set together exclude each other; nothing has been made then.
pub fn check_together(properties: &[(&Property, String)]) -> Result<()> {
    let on = |name: &str| {
        let last = properties.iter().rev().find(|(property, _)| property.name == name);
        last.is_some_and(|(_, value)| value == "on")
    };
    if on("takeover") && on("io_uring") {
        return Err(
            Failure::usage("takeover=on and io_uring=on exclude each other").hint("leave one of them out")
        );
    }
    Ok(())
}

/// Returns an error if a property that is to be set on a pool excludes one that the pool has.
pub(crate) fn check_pair(pool: &Pool, name: &str, value: Option<&str>) -> Result<()> {
    let other = match name {
        "takeover" => "io_uring",
        "io_uring" => "takeover",
        _ => return Ok(()),
    };
    let has =
        pool.property(other).map_err(|error| engine_errors::failed("cannot read properties", &error))?;
    if value == Some("on") && has.as_deref() == Some("on") {
        return Err(Failure::usage(format!(
            "{name}=on and {other}=on exclude each other, and pool {} has {other}=on",
            pool.name()
        ))
        .hint(format!("first: pagefold inherit {other} {}", pool.name())));
    }
    Ok(())
}

/// Makes a checkpoint if one of these properties was set or cleared on the pool, so that the last checkpoint has it.
pub fn store(pool: &Pool, path: &str, name: &str) -> Result<()> {
    if !path.is_empty() || !is_one(name) {
        return Ok(());
    }
    pool.checkpoint(false).map_err(|error| engine_errors::failed(format!("cannot store {name}"), &error))
}
