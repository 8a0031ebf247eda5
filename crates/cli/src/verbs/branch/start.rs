//! `branch start` and `branch stop`.

use pagefold_server::failure::{Failure, Result};

use super::record::Options;
use super::{list, process, reset, server, turn, unfinished};
use crate::args::{StartBranch, StopBranch};
use crate::verbs::dataset::dataset;

/// `branch start`.
pub fn start(args: &StartBranch) -> Result<()> {
    let name = dataset(&args.branch)?;
    let turn = turn::of(&name)?;
    unfinished::tidy(&turn, &name)?;
    let mut branch = super::find(&name)?;
    if branch.record.options == Options::default() && super::has_foreign_options(&branch.name)? {
        eprintln!(
            "pagefold: the pool says what the server of branch {} is to be started with; that is not believed, say it here if need be",
            branch.name
        );
    }
    if branch.figures.mounted.is_none() {
        branch.figures.mounted = Some(super::mount(&branch.name, None)?);
    }
    if unfinished::is_half_reset(&branch)? {
        branch = reset::finish(&branch.name, &branch.record, &branch.mounted()?)?;
    }
    let mut record = branch.record.clone();
    record.options.update(&args.server)?;
    record.port = args.server.port.unwrap_or(record.port);
    let data = server::data_of(&branch)?;
    let running = process::server_of(&data).is_some();
    if running && record != branch.record {
        return Err(Failure::new(format!("the server of branch {} runs already", branch.name)).hint(
            format!("with another port or other settings after: pagefold branch stop {}", branch.name),
        ));
    }
    if record != branch.record {
        super::store(&branch.name, &record)?;
        branch.record = record;
    }
    if !running {
        server::start(&branch.name, &branch.record, &data)?;
    }
    list::print_one(&super::find(&name)?, args.json)
}

/// `branch stop`.
pub fn stop(args: &StopBranch) -> Result<()> {
    let name = dataset(&args.branch)?;
    let _turn = turn::of(&name)?;
    let branch = super::find(&name)?;
    if branch.figures.mounted.is_none() || !server::stop(&branch, false)? {
        eprintln!("pagefold: the server of branch {} does not run", branch.name);
    }
    Ok(())
}
