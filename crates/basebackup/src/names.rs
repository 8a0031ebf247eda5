//! Decides by their names which files of a data directory belong into a backup.
//!
//! The rules are those of PostgreSQL's documentation: "Making a Data Directory Backup" in "Continuous Archiving", and
//! "BASE_BACKUP" in "Streaming Replication Protocol".

/// Directories that are backed up without their content: it belongs to the running server, or is made again when a
/// server starts.
const EMPTIED: [&str; 7] =
    ["pg_stat_tmp", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_subtrans"];
/// Files that tell of the running server, or of another backup.
const LEFT_OUT: [&str; 7] = [
    "postgresql.auto.conf.tmp",
    "current_logfiles.tmp",
    "backup_label",
    "tablespace_map",
    "backup_manifest",
    "postmaster.pid",
    "postmaster.opts",
];
/// Files beside relations that have no pages with checksums.
const WITHOUT_PAGES: [&str; 4] = ["pg_control", "pg_filenode.map", "PG_VERSION", "pg_internal.init"];

/// Returns true if the directory at this path below the data directory is backed up without its content.
pub(crate) fn is_emptied(path: &str) -> bool {
    EMPTIED.contains(&path)
}

/// Returns true for names that are left out wherever they are found; `at_top` is true in the data directory itself.
pub(crate) fn is_left_out(name: &str, at_top: bool) -> bool {
    name.starts_with("pgsql_tmp")
        || name.starts_with("pg_internal.init")
        // Temporary relations belong to the server that made them.
        || Relation::is_temporary(name)
        || (at_top && LEFT_OUT.contains(&name))
}

/// Name of a relation's file: `16384`, `16384_fsm`, `16384_vm.1`, `16384_init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relation<'a> {
    /// File number of the relation.
    pub(crate) node: &'a str,
    /// Fork: `fsm`, `vm` or `init`; `None` for the main fork.
    pub(crate) fork: Option<&'a str>,
    /// Number of the segment: files end at 1 GiB.
    pub(crate) segment: u32,
}

impl<'a> Relation<'a> {
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let (stem, segment) = match name.split_once('.') {
            Some((stem, segment)) if is_number(segment) => (stem, segment.parse().ok()?),
            Some(_) => return None,
            None => (name, 0),
        };
        let (node, fork) = stem.split_once('_').map_or((stem, None), |(node, fork)| (node, Some(fork)));
        let known = fork.is_none_or(|fork| ["fsm", "vm", "init"].contains(&fork));
        (is_number(node) && known).then_some(Self { node, fork, segment })
    }

    /// Returns true for a relation of one session: `t3_16384`.
    fn is_temporary(name: &'a str) -> bool {
        let parts = name.strip_prefix('t').and_then(|rest| rest.split_once('_'));
        parts.is_some_and(|(backend, rest)| is_number(backend) && Relation::parse(rest).is_some())
    }
}

/// Returns the number of the segment that a file in a directory of relations is; `None` if it has no pages with
/// checksums.
pub(crate) fn segment_with_pages(name: &str) -> Option<u32> {
    if WITHOUT_PAGES.contains(&name) {
        return None;
    }
    Relation::parse(name).map(|relation| relation.segment)
}

pub(crate) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_relations() {
        let of = |node, fork, segment| Some(Relation { node, fork, segment });
        assert_eq!(Relation::parse("16384"), of("16384", None, 0));
        assert_eq!(Relation::parse("16384_vm.12"), of("16384", Some("vm"), 12));
        assert_eq!(Relation::parse("16384_init"), of("16384", Some("init"), 0));
        for name in ["PG_VERSION", "16384_x", "16384.", "16384.x", "_vm", "", "pg_filenode.map", "t3_16384"] {
            assert_eq!(Relation::parse(name), None, "{name}");
        }
        assert_eq!((segment_with_pages("16384.3"), segment_with_pages("PG_VERSION")), (Some(3), None));
    }

    #[test]
    fn what_is_left_out() {
        for name in [
            "pgsql_tmp",
            "pgsql_tmp123.0",
            "pg_internal.init",
            "pg_internal.init.77",
            "t3_16384",
            "t3_16384_fsm.1",
        ] {
            assert!(is_left_out(name, false), "{name}");
        }
        for name in ["t3_x", "tx_16384", "16384", "pg_filenode.map", "table_1", "t_1"] {
            assert!(!is_left_out(name, false), "{name}");
        }
        assert!(is_left_out("postmaster.pid", true) && !is_left_out("postmaster.pid", false));
        assert!(is_left_out("backup_label", true) && !is_left_out("backup_label.old", true));
        assert!(is_emptied("pg_replslot") && !is_emptied("base") && !is_emptied("base/pg_replslot"));
    }
}
