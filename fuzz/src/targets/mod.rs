//! Lists the decoders under attack.

mod backup;
mod codec;
/// Messages of the control socket: the program's own modules.
#[allow(missing_docs, reason = "documented where they live")]
pub mod control;
mod dictionary;
mod doubles;
mod engine;
mod fs;
mod fuse;
mod log_device;
mod logs;
mod models;
mod sqlite;
mod stream;

use crate::Target;

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "label", run: engine::label, seeds: engine::label_seeds },
    Target { name: "superblock", run: engine::superblock, seeds: engine::superblock_seeds },
    Target { name: "root", run: engine::root, seeds: engine::root_seeds },
    Target { name: "batch", run: engine::batch, seeds: engine::batch_seeds },
    Target { name: "replay", run: engine::replay, seeds: engine::replay_seeds },
    Target { name: "log-device", run: log_device::replay, seeds: log_device::seeds },
    Target { name: "redo", run: engine::redo, seeds: engine::redo_seeds },
    Target { name: "node", run: engine::node, seeds: engine::node_seeds },
    Target { name: "space-history", run: engine::space_history, seeds: engine::space_history_seeds },
    Target { name: "directory", run: engine::directory, seeds: engine::directory_seeds },
    Target { name: "table", run: engine::table, seeds: engine::table_seeds },
    Target { name: "record", run: engine::record, seeds: engine::record_seeds },
    Target { name: "delta", run: engine::delta, seeds: engine::delta_seeds },
    Target { name: "stream", run: stream::receive, seeds: stream::seeds },
    Target { name: "backup-pack", run: backup::pack, seeds: backup::pack_seeds },
    Target { name: "backup-chunk", run: backup::manifest, seeds: backup::manifest_seeds },
    Target { name: "backup-root", run: backup::root, seeds: backup::root_seeds },
    Target { name: "backup-commit", run: backup::commit, seeds: backup::commit_seeds },
    Target { name: "backup-log-head", run: backup::wal_head, seeds: backup::wal_head_seeds },
    Target { name: "backup-log", run: backup::wal, seeds: backup::wal_seeds },
    Target { name: "backup-log-block", run: backup::wal_block, seeds: backup::wal_block_seeds },
    Target { name: "backup-frames", run: backup::frames, seeds: backup::frames_seeds },
    Target { name: "inode", run: fs::inode, seeds: fs::seeds },
    Target { name: "entry", run: fs::entry, seeds: fs::seeds },
    Target { name: "acl", run: fs::acl, seeds: fs::acl_seeds },
    Target { name: "header", run: fs::header, seeds: fs::seeds },
    Target { name: "fuse", run: fuse::request, seeds: fuse::seeds },
    Target { name: "control", run: control::message, seeds: control::seeds },
    Target { name: "model", run: codec::model, seeds: codec::model_seeds },
    Target { name: "page", run: codec::page, seeds: codec::page_seeds },
    Target { name: "innodb-model", run: codec::innodb_model, seeds: codec::innodb_model_seeds },
    Target { name: "innodb-record", run: codec::innodb_record, seeds: codec::innodb_record_seeds },
    Target { name: "innodb-page", run: codec::innodb_page, seeds: codec::innodb_page_seeds },
    Target { name: "sqlite-model", run: sqlite::model, seeds: sqlite::model_seeds },
    Target { name: "sqlite-record", run: sqlite::record, seeds: sqlite::record_seeds },
    Target { name: "sqlite-page", run: sqlite::page, seeds: sqlite::page_seeds },
    Target { name: "log-model", run: logs::model, seeds: logs::model_seeds },
    Target { name: "log-record", run: logs::record, seeds: logs::record_seeds },
    Target { name: "log-page", run: logs::page, seeds: logs::page_seeds },
    Target { name: "dictionary-model", run: dictionary::model, seeds: dictionary::model_seeds },
    Target { name: "dictionary-record", run: dictionary::record, seeds: dictionary::record_seeds },
    Target { name: "doubles", run: doubles::record, seeds: doubles::record_seeds },
    Target { name: "doubles-page", run: doubles::page, seeds: doubles::page_seeds },
];
