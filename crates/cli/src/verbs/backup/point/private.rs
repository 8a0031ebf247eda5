//! Mounts a restored dataset where nobody else looks, while its database is prepared.

use std::path::{Path, PathBuf};

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::{files, raw};

use crate::args::{Mount, Unmount};
use crate::verbs::basebackup::temporary;

/// The dataset at a private mount, while its settings are changed.
struct Private(PathBuf);

impl Private {
    fn mount(name: &Name) -> Result<Self> {
        let runtime = files::runtime_dir();
        files::make_private(&runtime)?;
        let own = temporary::own_name(temporary::RESTORE, 1);
        let dir = runtime.join(
            own.ok_or_else(|| Failure::new(format!("cannot name a mount for {name}: /proc/self/stat")))?,
        );
        crate::verbs::mount::run_quietly(&Mount::of(name.to_string(), Some(dir.clone())))?;
        Ok(Self(dir))
    }

    fn unmount(self) -> Result<()> {
        let target = Some(raw::text(&self.0));
        crate::verbs::unmount::run(&Unmount { target, all: false, lazy: false, force: false })?;
        std::fs::remove_dir(&self.0).context(|| format!("cannot remove {}", self.0.display()))
    }
}

/// Does something with the dataset while it is mounted.
pub(super) fn at<T>(name: &Name, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let private = Private::mount(name)?;
    let outcome = work(&private.0);
    let unmounted = private.unmount();
    match (outcome, unmounted) {
        (Err(failure), Err(also)) => {
            eprintln!("pagefold: the mount of {name} is left: {also}");
            Err(failure)
        }
        (outcome, unmounted) => outcome.and_then(|outcome| unmounted.map(|()| outcome)),
    }
}
