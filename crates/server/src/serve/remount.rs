//! Changes the options of a mount that is in use.

use std::sync::atomic::Ordering;

use pagefold_engine::pool::Pool;

use super::handover::MountRecord;
use super::mounted::Mounted;
use super::server::Server;
use crate::control::Reply;
use crate::failure::{Context, Failure, Result};
use crate::props::{self, Scope};
use crate::{mountopts, names, settings};

/// Checks the options that a mount is to have, and makes the server's part of the changes; the client makes the
/// kernel's. If no change is named, the mount gets what its options and the dataset's properties say.
pub(super) fn remount(server: &Server, device: u32, words: &[String], dry_run: bool) -> Result<Reply> {
    let mounted = server.exports.of(device)?;
    let changes = mountopts::changes(words)?;
    let path = server.pool.path_of(mounted.id).unwrap_or_default();
    let name = names::full(server.pool.name(), &path);
    let now = mounted.options.lock().clone();
    if let Some(option) = changes.impossible(&now) {
        return Err(Failure::usage(format!("{name} cannot get the option {option} while it is mounted"))
            .hint(format!(
                "it holds from a mount to its end: pagefold unmount {name}, then mount it with {option}"
            )));
    }
    let never = path.contains('@') || server.read_only;
    let by_property = settings::of(&*server.pool, &path, props::find("readonly")?)?.0 == "on";
    let read_only = match changes.read_only {
        _ if changes.is_nothing() => Some(never || by_property || now.read_only),
        wish => wish,
    };
    if read_only == Some(false) {
        may_write(server, &name, &path, by_property)?;
    }
    if !dry_run {
        for (property, value) in &changes.properties {
            set_for_mount(server, &mounted, property, value)?;
        }
        let mut options = mounted.options.lock();
        options.read_only = changes.read_only.unwrap_or(options.read_only);
        options.suid = changes.suid.unwrap_or(options.suid);
        options.dev = changes.dev.unwrap_or(options.dev);
        options.exec = changes.exec.unwrap_or(options.exec);
        drop(options);
        if let Err(failure) = mounted.renew_record() {
            tracing::warn!(%failure, "if this server dies, the next one does not know of this remount");
        }
        // This comes before the kernel allows writes.
        if read_only == Some(false) && mounted.is_read_only() {
            mounted.set_read_only(&server.pool, false)?;
        }
    }
    let mountopts::Changes { suid, dev, exec, .. } = changes;
    Ok(Reply::Remounting { read_only, suid, dev, exec })
}

fn may_write(server: &Server, name: &str, path: &str, by_property: bool) -> Result<()> {
    let pool = server.pool.name();
    let why = |why: String| Failure::new(format!("{name} cannot be mounted for writing: {why}"));
    if path.contains('@') {
        return Err(why("it is a snapshot".into())
            .hint(format!("make a clone of it: pagefold clone {name} {pool}/NAME")));
    }
    if server.read_only {
        return Err(why(format!("pool {pool} is open read-only, as its first mount asked for"))
            .hint(format!(
                "unmount the pool, then mount it again without ro: pagefold unmount {pool}; pagefold mount {name} DIR"
            )));
    }
    if by_property {
        return Err(
            why("its property readonly is on".into()).hint(format!("pagefold set readonly=off {name}"))
        );
    }
    Ok(())
}

/// Applies a property to a mount, as if it had been one of its options from the beginning.
fn set_for_mount(server: &Server, mounted: &Mounted, property: &'static str, value: &str) -> Result<()> {
    if props::find(property)?.scope == Scope::Pool {
        return server.properties.set_temporary(property, value, |temporary| {
            if let Err(failure) = server.handover.note_temporary(temporary) {
                tracing::warn!(%failure, property, "if this server dies, the next one does not know of it");
            }
        });
    }
    mounted.obey(property, value)?;
    let mut options = mounted.options.lock();
    options.properties.retain(|(name, _)| *name != property);
    options.properties.push((property, value.to_owned()));
    Ok(())
}

impl Mounted {
    /// Refuses every change from now on, after making earlier ones durable; or allows changes again.
    pub(super) fn set_read_only(&self, pool: &Pool, on: bool) -> Result<()> {
        if on && !self.is_read_only() {
            if let Some(fs) = self.export.files() {
                fs.flush_times().context(|| "cannot write access times".into())?;
            }
            pool.sync().map_err(|error| Failure::new(error.to_string()))?;
        }
        self.export.set_read_only(on);
        self.read_only.store(on, Ordering::Release);
        tracing::info!(dir = %self.export.place().display(), read_only = on, "remounted");
        self.renew_record()
    }

    /// Has the supervisor keep the mount as it is now.
    fn renew_record(&self) -> Result<()> {
        let (options, state) = (self.options.lock().clone(), self.export.hand_over());
        let read_only = self.is_read_only();
        let record = MountRecord::new(self.kept.connection, self.id, read_only, self.since, &options, &state);
        self.kept.made(&record, state.connection)
    }
}
