//! `unmount`: ends a mount, and returns when its server has closed the pool and ended.

use std::path::Path;

use crate::args::Unmount;
use crate::control::{Client, Reply, Request, UnmountMode};
use crate::failure::{Failure, Result};
use crate::mounts::{self, MountEntry};
use crate::{holders, target};

/// How many processes that keep a mount busy are listed.
const HOLDERS_SHOWN: usize = 10;
/// Unmounts.
pub fn run(args: &Unmount) -> Result<()> {
    let mode = match (args.force, args.lazy) {
        (true, _) => UnmountMode::Force,
        (_, true) => UnmountMode::Lazy,
        _ => UnmountMode::Normal,
    };
    let pool = match target::pool_name(&args.target) {
        Err(_) if Path::new(&args.target).is_dir() => {
            return Err(Failure::new(format!("no pool is mounted at {}", args.target))
                .hint("see what is: pagefold list"));
        }
        other => other?,
    };
    if let Some(mut client) = target::connect(&pool)? {
        return end(&mut client, mode);
    }
    match mounts::dead(&pool)?.as_slice() {
        [] => target::server(&args.target).map(|_| ()),
        dead => dead.iter().try_for_each(detach_dead),
    }
}

/// Has a server unmount and end.
pub fn end(client: &mut Client, mode: UnmountMode) -> Result<()> {
    match client.ask_and_wait(&Request::Unmount { mode })? {
        Reply::Done {} if mode == UnmountMode::Lazy => Ok(()),
        Reply::Done {} => client.wait_for_end(),
        Reply::Busy {} => Err(busy(client)?),
        _ => Err(client.misunderstood()),
    }
}

fn busy(client: &mut Client) -> Result<Failure> {
    let Reply::Status { figures } = client.ask(&Request::Status {})? else {
        return Err(client.misunderstood());
    };
    let pool = &figures.name;
    let at = figures.mount.map(|mount| mount.dir).unwrap_or_default();
    let holders = mounts::ours()?.iter().find(|mount| mount.dir == at).map(holders::of).unwrap_or_default();
    let dir = at.display();
    let who = match holders.as_slice() {
        [] => "no process of yours holds it: somebody else's does, or another mount namespace".to_owned(),
        some => format!("it is held by\n{}", holders::text(some, HOLDERS_SHOWN)),
    };
    Ok(Failure::new(format!("{dir} is in use")).hint(format!(
        "{who}\n  end what uses it, or detach it: pagefold unmount --lazy {pool} (--force: users get errors)"
    )))
}

/// A mount whose server is gone has nothing to close: it is only taken out of the mount table. The pool
/// recovers when it is mounted again.
fn detach_dead(mount: &MountEntry) -> Result<()> {
    pagefold_fuse::unmount(&mount.dir, true).map_err(|error| Failure::new(error.to_string()))?;
    eprintln!(
        "pagefold: the server of pool {0} had died; its mount at {1} is detached, and the pool recovers when it is mounted again",
        mount.source,
        mount.dir.display()
    );
    Ok(())
}
