//! `unmount`: ends a mount, and returns when its server has closed the pool and ended.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::args::Unmount;
use crate::control::{Client, Reply, Request, UnmountMode};
use crate::failure::{Failure, Result};
use crate::holders::Holder;
use crate::mounts::{self, MountEntry};
use crate::{holders, target};

/// How many processes that keep a mount busy are listed.
const HOLDERS_SHOWN: usize = 10;
/// How long a mount that no process holds is waited for.
const KERNEL_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried meanwhile.
const KERNEL_STEP: Duration = Duration::from_millis(50);

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

/// Has a server unmount and end. What no process holds is asked for again for a while: the kernel lets go of the files of a
/// process that used io_uring only after its end.
pub fn end(client: &mut Client, mode: UnmountMode) -> Result<()> {
    let started = Instant::now();
    loop {
        match client.ask_and_wait(&Request::Unmount { mode })? {
            Reply::Done {} if mode == UnmountMode::Lazy => return Ok(()),
            Reply::Done {} => return client.wait_for_end(),
            Reply::Busy {} => {}
            _ => return Err(client.misunderstood()),
        }
        let Reply::Status { figures } = client.ask(&Request::Status {})? else {
            return Err(client.misunderstood());
        };
        let at = figures.mount.map(|mount| mount.dir).unwrap_or_default();
        let holders =
            mounts::ours()?.iter().find(|mount| mount.dir == at).map(holders::of).unwrap_or_default();
        if !holders.is_empty() || started.elapsed() > KERNEL_PATIENCE {
            return Err(busy(&figures.name, &at, &holders));
        }
        std::thread::sleep(KERNEL_STEP);
    }
}

fn busy(pool: &str, at: &Path, holders: &[Holder]) -> Failure {
    let dir = at.display();
    let who = match holders {
        [] => "no process of yours holds it: somebody else's does, or another mount namespace".to_owned(),
        some => format!("it is held by\n{}", holders::text(some, HOLDERS_SHOWN)),
    };
    Failure::new(format!("{dir} is in use")).hint(format!(
        "{who}\n  end what uses it, or detach it: pagefold unmount --lazy {pool} (--force: users get errors)"
    ))
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
