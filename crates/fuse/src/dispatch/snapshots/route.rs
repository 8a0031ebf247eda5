//! Decides who answers a request: the mounted file system, or the tree of its snapshots.

use std::sync::Arc;

use pagefold_engine::dataset::LateFetch;
use pagefold_fs::Ino;

use super::super::Dispatch;
use super::{HIDDEN_DIR, SnapshotTree, is_live};
use crate::operation::{Change, Operation, Query};
use crate::{Agreement, Blocking, Errno, Fetching, Handler, Kernel, Request, Source, Wait};

/// A file system with its snapshots.
pub struct WithSnapshots {
    live: Dispatch,
    tree: Arc<SnapshotTree>,
}

impl WithSnapshots {
    /// Returns a handler for `live`, with `tree` below its root.
    pub fn new(live: Dispatch, tree: Arc<SnapshotTree>) -> Self {
        Self { live, tree }
    }
}

/// Receivers of a request.
enum Route {
    Live,
    Tree,
    Refused(Errno),
}

/// Returns who answers a request.
fn route(request: &Request, operation: &Operation) -> Route {
    if !is_live(request.ino()) {
        // The kernel then copies by reading and writing.
        let copies = matches!(operation, Operation::Change(Change::CopyFileRange { .. }));
        return if copies { Route::Refused(Errno::XDEV) } else { Route::Tree };
    }
    if let Operation::Change(change) = operation {
        return route_change(request, change);
    }
    if let Operation::Query(Query::Lookup { name }) = *operation
        && is_hidden(request.ino(), request.argument(name))
    {
        return Route::Tree;
    }
    Route::Live
}

/// Returns who answers a change of the file system that is mounted: nothing moves between it and a snapshot, and the
/// directory above the snapshots stays.
fn route_change(request: &Request, change: &Change) -> Route {
    let parent = request.ino();
    match *change {
        Change::Unlink { name } | Change::RemoveDir { name } => {
            refused_if(is_hidden(parent, request.argument(name)), Errno::PERM)
        }
        Change::Rename { new_parent, .. } if !is_live(new_parent) => Route::Refused(Errno::ROFS),
        Change::Rename { name, new_parent, new_name, .. } => {
            let from = is_hidden(parent, request.argument(name));
            refused_if(from || is_hidden(new_parent, request.argument(new_name)), Errno::PERM)
        }
        Change::Link { ino, .. } => refused_if(!is_live(ino), Errno::XDEV),
        Change::CopyFileRange { ino_out, .. } => refused_if(!is_live(ino_out), Errno::ROFS),
        Change::Attributes(_)
        | Change::Symlink { .. }
        | Change::MakeNode { .. }
        | Change::MakeDir { .. }
        | Change::SetXattr { .. }
        | Change::RemoveXattr { .. }
        | Change::Allocate { .. } => Route::Live,
    }
}

fn refused_if(refused: bool, errno: Errno) -> Route {
    if refused { Route::Refused(errno) } else { Route::Live }
}

/// Returns true for the directory above the snapshots, by its name in the root.
fn is_hidden(parent: u64, name: &[u8]) -> bool {
    parent == Ino::ROOT.0 && name == HIDDEN_DIR.as_bytes()
}

impl Handler for WithSnapshots {
    fn source(&self) -> Source {
        self.live.source()
    }

    fn agreed(&self, agreement: &Agreement, kernel: &Kernel) {
        self.live.agreed(agreement, kernel);
    }

    fn taken_over(&self, requests: &mut [Request]) {
        self.live.taken_over(requests);
    }

    fn handle(&self, request: Request, blocking: &Blocking) -> Option<Fetching> {
        let operation = match request.parse() {
            Ok(operation) => operation,
            Err(why) => {
                request.refuse(why);
                return None;
            }
        };
        match route(&request, &operation) {
            Route::Live => {
                if let Operation::BatchForget(list) = operation {
                    let others = request.forgets(list).filter(|(node, _)| !is_live(*node));
                    others.for_each(|(node, lookups)| self.tree.forget(node, lookups));
                }
                return self.live.carry_out(request, &operation, blocking);
            }
            Route::Refused(errno) => request.error(errno),
            Route::Tree => {
                let (tree, apart) = (Arc::clone(&self.tree), blocking.for_source(Source::Snapshots));
                apart.run(Wait::Read, move || tree.answer(request, operation));
            }
        }
        None
    }

    fn fetched(&self, fetching: Fetching, filled: bool, blocking: &Blocking) {
        self.live.fetched(fetching, filled, blocking);
    }

    fn overdue(&self, fetching: Fetching, blocking: &Blocking) -> LateFetch {
        self.live.overdue(fetching, blocking)
    }
}
