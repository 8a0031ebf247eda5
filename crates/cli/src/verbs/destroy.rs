//! `destroy`: destroys a pool, or datasets and snapshots.

use std::io::{self, IsTerminal, Write};

use pagefold_server::control::UnmountMode;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::registry::{Known, Registry, paths_text};
use pagefold_server::{event_log, mounts, pools};

use crate::args::Destroy;
use crate::target;

/// Destroys after the user has confirmed it.
pub fn run(args: &Destroy) -> Result<()> {
    let pool = match args.what.as_slice() {
        [pool] if !pool.contains(['/', '@']) => pool,
        _ => return super::dataset::destroy(args),
    };
    if args.recursive || args.dry_run {
        return Err(Failure::usage(format!("{pool} is a pool: all of it goes, and -r and -n say nothing"))
            .hint(format!("pagefold destroy {pool}")));
    }
    let registry = Registry::open()?;
    let known = registry.find(pool)?;
    let mounted = target::connect(&known.name)?;
    if !args.force {
        if mounted.is_some() {
            return Err(Failure::new(format!("pool {} is mounted", known.name)).hint(format!(
                "unmount it first (pagefold unmount {0}), or lose everything at once: pagefold destroy -f {0}",
                known.name
            )));
        }
        confirm(&known)?;
    }
    if let Some(mut client) = mounted {
        super::unmount::whole_pool(&mut client, UnmountMode::Force)?;
    }
    pools::destroy(&known)?;
    let left: Vec<String> = mounts::dead(&known.name)?.into_iter().map(|mount| mount.source).collect();
    super::unmount::detach_left(&left)?;
    if let Err(failure) = event_log::remove(&known.guid) {
        eprintln!("pagefold: {failure}");
    }
    registry.remove(&known.guid)
}

/// Asks for the pool's name once more.
fn confirm(known: &Known) -> Result<()> {
    let refused = || {
        Failure::new(format!("pool {} was not destroyed", known.name))
            .hint(format!("to destroy it without being asked: pagefold destroy -f {}", known.name))
    };
    if !io::stdin().is_terminal() {
        return Err(refused());
    }
    eprint!(
        "Everything in pool {} on {} will be lost.\nType its name to destroy it: ",
        known.name,
        paths_text(&known.devices)
    );
    io::stderr().flush().context(|| "cannot ask".into())?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context(|| "cannot read the answer".into())?;
    if answer.trim() == known.name { Ok(()) } else { Err(refused()) }
}
