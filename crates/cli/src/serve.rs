//! `serve`: runs as the server of a pool, as the supervisor of servers, or as a mounter.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::serve::{self, ServerOptions};
use pagefold_server::{mounter, spawn, startup};

use crate::args::Mount;
use crate::plan;

/// Runs as the server of a mount until that ends, as the supervisor of servers, or as a mounter.
pub fn run(args: &Mount) -> Result<()> {
    spawn::settle(args.supervisor.or(args.mounts_for), args.report && args.supervisor.is_none())?;
    crate::ignore_sigpipe();
    if let Some(line) = args.mounts_for {
        return mounter::run(args.source.as_deref().unwrap_or_default(), &args.options, line);
    }
    serve::run(args.report, || {
        if args.supervisor.is_none() {
            // A mount of a dead server may wait for requests that nobody answers, and stand at this directory.
            pagefold_server::abandoned::abort_all();
        }
        settle(args)?;
        serve::start(server_options(args)?, args)
    })
}

fn server_options(args: &Mount) -> Result<ServerOptions> {
    Ok(ServerOptions {
        options: plan::options(args)?,
        given: startup::given(&args.options)?,
        supervisor: args.supervisor,
        report: args.report,
    })
}

/// Finds the directory and the pool's own options, and runs the program again with them, if this process was started
/// without them, as by systemd. Finding the directory opens the pool, which may start threads; these must not exist
/// when a process confines itself.
fn settle(args: &Mount) -> Result<()> {
    if args.pool_options.is_some() || args.supervisor.is_some() {
        return Ok(());
    }
    let plan = plan::make(args)?;
    let program = std::env::current_exe().context(|| "cannot find this program's own file".into())?;
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let verb = words.iter().position(|word| word == "serve").map_or(0, |at| at + 1);
    words.insert(verb, format!("--pool-options={}", plan.pool_options()?.join(",")).into());
    if args.dir.is_none() {
        words.push(plan.wanted.dir.into());
    }
    let error = Command::new(program).args(words).exec();
    Err(Failure::new(format!("cannot start the server: {error}")))
}
