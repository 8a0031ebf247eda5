//! Backups of a small data directory that was made up; those of real servers are in lab/tests/test_basebackup.py.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use pagefold_basebackup::compress::Compression;
use pagefold_basebackup::manifest::Checksums;
use pagefold_basebackup::tablespace::{self, Tablespace};
use pagefold_basebackup::wal::{Range, segment_name};
use pagefold_basebackup::{Done, Error, Format, Options, Source, Start, make};

const SEGMENT: usize = 1 << 20;
const PAGE: usize = 8192;
/// Behind the header of segment 1.
const REDO: u64 = SEGMENT as u64 + 40;

/// State of a cluster that was shut down.
const SHUT_DOWN: u32 = 1;
/// State of a cluster that is in use.
const IN_USE: u32 = 6;

fn control(state: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &77_u64.to_le_bytes());
    put(8, &1300_u32.to_le_bytes());
    put(16, &state.to_le_bytes());
    put(32, &REDO.to_le_bytes());
    put(40, &REDO.to_le_bytes());
    put(48, &1_u32.to_le_bytes());
    for (at, size) in [(216, 8192_u32), (220, 131_072), (224, 8192), (228, 1 << 20), (252, 1)] {
        put(at, &size.to_le_bytes());
    }
    let crc = crc32c::crc32c(&bytes[..288]);
    bytes[288..292].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// A segment with one record, of 40 bytes.
fn segment() -> Vec<u8> {
    let mut bytes = vec![0; SEGMENT];
    bytes[..4].copy_from_slice(&[0x10, 0xD1, 2, 0]);
    bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
    bytes[8..16].copy_from_slice(&(SEGMENT as u64).to_le_bytes());
    let record = &mut bytes[40..80];
    record[..4].copy_from_slice(&40_u32.to_le_bytes());
    record[24..].fill(9);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&record[24..]), &record[..20]);
    record[20..24].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// A page whose checksum is right.
fn page(block: u32) -> Vec<u8> {
    let mut page = vec![block as u8 ^ 0x5A; PAGE];
    let sum = pagefold_codec::postgres_checksum(&page, block);
    page[8..10].copy_from_slice(&sum.to_le_bytes());
    page
}

struct Cluster {
    dir: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        let cluster = Self { dir: tempfile::tempdir().unwrap() };
        cluster.put("PG_VERSION", b"15\n");
        cluster.put("global/pg_control", &control(IN_USE));
        cluster.put(&format!("pg_wal/{}", segment_name(1, 1, SEGMENT as u64)), &segment());
        cluster.put(&format!("pg_wal/{}", segment_name(1, 2, SEGMENT as u64)), &vec![0; SEGMENT]);
        cluster.put("base/1/16384", &[page(0), vec![0; PAGE], page(2)].concat());
        cluster.put("base/1/16384.2", &page(2 * 131_072));
        // Unlogged; temporary; of the server that runs.
        for name in ["16390", "16390_fsm", "16390_init", "16390.1", "t3_16395", "pg_internal.init"] {
            cluster.put(&format!("base/1/{name}"), b"");
        }
        for name in [
            "postmaster.pid",
            "postmaster.opts",
            "pg_replslot/one/state",
            "pg_stat_tmp/x",
            "base/pgsql_tmp/pgsql_tmp1.0",
        ] {
            cluster.put(name, b"x");
        }
        fs::create_dir(cluster.data().join("pg_tblspc")).unwrap();
        cluster
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.data().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn source(&self) -> Source {
        Source { data: self.data(), wal: self.data().join("pg_wal"), tablespaces: Vec::new() }
    }

    fn to(&self) -> PathBuf {
        self.dir.path().join("to")
    }

    fn make(&self, format: Format) -> (Result<Done, Error>, Vec<String>) {
        self.make_of(&self.source(), &Start::Crash, format, &AtomicBool::new(false))
    }

    fn make_of(
        &self,
        source: &Source,
        start: &Start,
        format: Format,
        stop: &AtomicBool,
    ) -> (Result<Done, Error>, Vec<String>) {
        let told = RefCell::new(Vec::new());
        let options = Options {
            to: Some(self.to()),
            format,
            manifest: Some(Checksums::Sha256),
            verify: true,
            sync: true,
            rate: None,
            stop,
            progress: &|_, _| {},
            warn: &|text| told.borrow_mut().push(text.to_owned()),
        };
        let done = make(source, start, &options);
        (done, told.into_inner())
    }
}

const TAR: Format = Format::Tar(Compression::NONE);

/// Names in an archive, in order; their content.
fn entries(path: &Path) -> (Vec<String>, BTreeMap<String, Vec<u8>>) {
    let (mut names, mut contents) = (Vec::new(), BTreeMap::new());
    let mut archive = tar::Archive::new(fs::File::open(path).unwrap());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        names.push(name.clone());
        contents.insert(name, bytes);
    }
    (names, contents)
}

#[test]
fn an_archive_has_what_belongs_into_a_backup() {
    let cluster = Cluster::new();
    let (done, told) = cluster.make(TAR);
    let done = done.unwrap();
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(
        (done.start_lsn.as_str(), done.end_lsn.as_str(), done.wrong_pages),
        ("0/100028", "0/100050", 0)
    );
    let mut there: Vec<String> = fs::read_dir(cluster.to())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    assert_eq!(there, ["backup_manifest", "base.tar"]);
    let (names, contents) = entries(&cluster.to().join("base.tar"));
    assert_eq!(names.last().unwrap(), "global/pg_control");
    let segment_one = format!("pg_wal/{}", segment_name(1, 1, SEGMENT as u64));
    for name in [
        "PG_VERSION",
        "base/1/16384.2",
        "base/1/16390_init",
        "pg_replslot",
        "pg_stat_tmp",
        "pg_wal/archive_status",
        &segment_one,
    ] {
        assert!(contents.contains_key(name), "{name} in {names:?}");
    }
    assert_eq!(contents[&segment_one], segment());
    assert_eq!(contents["base/1/16384"].len(), 3 * PAGE);
    // Nothing else but the mark that the segment need not be archived.
    let files = ["PG_VERSION", "base/1/16384", "base/1/16384.2", "base/1/16390_init", "global/pg_control"];
    assert_eq!(done.files as usize, files.len() + 2, "{names:?}");
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(cluster.to().join("backup_manifest")).unwrap()).unwrap();
    let listed: Vec<&str> =
        manifest["Files"].as_array().unwrap().iter().map(|f| f["Path"].as_str().unwrap()).collect();
    assert_eq!(listed, files);
}

/// A server resets unlogged relations when it recovers, and only then.
#[test]
fn unlogged_relations_are_there_if_no_recovery_resets_them() {
    let told = |tablespace_map: &str| Start::Server {
        label: "START WAL LOCATION: 0/100028".into(),
        tablespace_map: tablespace_map.into(),
        wal: Range { timeline: 1, start: REDO, end: REDO + 40 },
    };
    for (state, start, kept) in
        [(SHUT_DOWN, Start::Crash, true), (IN_USE, Start::Crash, false), (SHUT_DOWN, told(""), false)]
    {
        let cluster = Cluster::new();
        cluster.put("global/pg_control", &control(state));
        cluster.make_of(&cluster.source(), &start, TAR, &AtomicBool::new(false)).0.unwrap();
        let (names, _) = entries(&cluster.to().join("base.tar"));
        let has = |name: &str| names.iter().any(|found| found == name);
        for name in ["base/1/16390", "base/1/16390_fsm", "base/1/16390.1"] {
            assert_eq!(has(name), kept, "{name} in state {state}: {names:?}");
        }
        assert!(has("base/1/16390_init") && !has("base/1/t3_16395"), "{names:?}");
    }
}

#[test]
fn plain_files_are_as_they_were() {
    let cluster = Cluster::new();
    fs::set_permissions(cluster.data(), fs::Permissions::from_mode(0o700)).unwrap();
    cluster.make(Format::Plain).0.unwrap();
    for name in ["base/1/16384", "global/pg_control", "PG_VERSION"] {
        assert_eq!(
            fs::read(cluster.to().join(name)).unwrap(),
            fs::read(cluster.data().join(name)).unwrap(),
            "{name}"
        );
    }
    assert_eq!(fs::metadata(cluster.to()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::read_dir(cluster.to().join("pg_replslot")).unwrap().count(), 0);
    // It is not written over.
    let again = cluster.make(Format::Plain).0.unwrap_err();
    assert!(again.to_string().ends_with("is not empty"), "{again}");
    assert!(cluster.to().join("PG_VERSION").exists());
}

#[test]
fn a_wrong_checksum_is_told_and_does_not_stop() {
    let cluster = Cluster::new();
    let mut bytes = [page(0), page(1), page(2)].concat();
    bytes[PAGE + 5000] ^= 1;
    cluster.put("base/1/16384", &bytes);
    // The number of a page counts from the relation's beginning.
    cluster.put("base/1/16384.2", &page(0));
    let (done, told) = cluster.make(TAR);
    assert_eq!(done.unwrap().wrong_pages, 2);
    assert!(
        told[0].contains("base/1/16384, block 1:") && told[1].contains("16384.2, block 262144:"),
        "{told:?}"
    );
    assert!(cluster.to().join("base.tar").exists());
}

#[test]
fn what_is_stopped_or_fails_leaves_nothing() {
    for format in [TAR, Format::Plain, Format::Tar("zstd".parse().unwrap())] {
        let cluster = Cluster::new();
        let stop = AtomicBool::new(true);
        let stopped = cluster.make_of(&cluster.source(), &Start::Crash, format, &stop).0;
        assert!(matches!(stopped, Err(Error::Interrupted)));
        assert!(!cluster.to().exists());
        // A directory that was there stays as it was, empty.
        fs::create_dir(cluster.to()).unwrap();
        fs::set_permissions(cluster.to(), fs::Permissions::from_mode(0o750)).unwrap();
        assert!(cluster.make_of(&cluster.source(), &Start::Crash, format, &stop).0.is_err());
        assert_eq!(fs::read_dir(cluster.to()).unwrap().count(), 0);
        assert_eq!(fs::metadata(cluster.to()).unwrap().permissions().mode() & 0o777, 0o750);
        stop.store(false, Ordering::Relaxed);
        // Longer than an archive can have it; in a directory it is fine.
        let long = "x".repeat(120);
        cluster.put(&long, b"");
        let made = cluster.make_of(&cluster.source(), &Start::Crash, format, &stop).0;
        assert_eq!(made.is_ok(), format == Format::Plain);
        assert_eq!(fs::read_dir(cluster.to()).unwrap().next().is_some(), format == Format::Plain);
    }
}

#[test]
fn links_are_told_and_a_database_that_is_not_whole_is_refused() {
    let cluster = Cluster::new();
    symlink("/etc/hostname", cluster.data().join("notes")).unwrap();
    let (done, told) = cluster.make(TAR);
    done.unwrap();
    assert!(told[0].contains("notes is neither a file nor a directory, and is left out"), "{told:?}");
    symlink("/etc", cluster.data().join("base/2")).unwrap();
    fs::remove_dir_all(cluster.to()).unwrap();
    let refused = cluster.make(TAR).0.unwrap_err();
    assert!(matches!(&refused, Error::Unsuited(why) if why.contains("base/2")), "{refused}");
}

#[test]
fn a_link_on_the_way_leads_nowhere() {
    let cluster = Cluster::new();
    let elsewhere = cluster.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, cluster.to()).unwrap();
    for format in [TAR, Format::Plain] {
        assert!(cluster.make(format).0.is_err());
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }
}

#[test]
fn a_directory_that_was_there_keeps_its_owner_and_mode_for_archives() {
    use std::os::unix::fs::{MetadataExt, chown};
    let cluster = Cluster::new();
    fs::create_dir(cluster.to()).unwrap();
    fs::set_permissions(cluster.to(), fs::Permissions::from_mode(0o755)).unwrap();
    // Only root can give it away; others see that the mode stays.
    let _best_effort = chown(cluster.to(), Some(12_345), None);
    let before = fs::metadata(cluster.to()).unwrap();
    cluster.make(TAR).0.unwrap();
    let after = fs::metadata(cluster.to()).unwrap();
    assert_eq!((before.uid(), before.mode()), (after.uid(), after.mode()));
    // Plain files belong to whom the database belongs, and so does their directory.
    fs::remove_dir_all(cluster.to()).unwrap();
    fs::set_permissions(cluster.data(), fs::Permissions::from_mode(0o750)).unwrap();
    let _best_effort = chown(cluster.data(), Some(12_345), None);
    cluster.make(Format::Plain).0.unwrap();
    let (of, to) = (fs::metadata(cluster.data()).unwrap(), fs::metadata(cluster.to()).unwrap());
    assert_eq!((of.uid(), of.mode()), (to.uid(), to.mode()));
}

#[test]
fn without_its_log_there_is_no_backup() {
    let cluster = Cluster::new();
    let path = cluster.data().join("pg_wal").join(segment_name(1, 1, SEGMENT as u64));
    let mut bytes = segment();
    bytes[70] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(cluster.make(TAR).0, Err(Error::Damaged(_))));
    fs::remove_file(&path).unwrap();
    assert!(matches!(cluster.make(TAR).0, Err(Error::Damaged(_))));
    assert!(!cluster.to().exists());
}

#[test]
fn a_backup_of_a_backup_that_never_ran_is_refused() {
    let cluster = Cluster::new();
    cluster.put("backup_label", b"START WAL LOCATION");
    assert!(matches!(cluster.make(TAR).0, Err(Error::Unsuited(_))));
}

#[test]
fn tablespaces_are_archives_or_directories_of_their_own() {
    let cluster = Cluster::new();
    let folder = cluster.dir.path().join("space");
    fs::create_dir_all(folder.join("PG_15_202209061/1")).unwrap();
    fs::create_dir_all(folder.join("PG_14_202107181/1")).unwrap();
    fs::write(folder.join("PG_15_202209061/1/17000"), page(0)).unwrap();
    symlink("/srv/space", cluster.data().join("pg_tblspc/16500")).unwrap();
    assert_eq!(tablespace::links(&cluster.data()).unwrap(), [(16500, PathBuf::from("/srv/space"))]);
    let restored = cluster.dir.path().join("restored");
    let space = Tablespace {
        oid: 16500,
        target: "/srv/space".into(),
        folder: folder.clone(),
        restored: restored.clone(),
        moved: false,
    };
    let moved = Tablespace { moved: true, restored: "/srv/mo\\ved".into(), ..space.clone() };
    let moved = Source { tablespaces: vec![moved], ..cluster.source() };
    let source = Source { tablespaces: vec![space], ..cluster.source() };
    let make = |start: &Start, format| cluster.make_of(&source, start, format, &AtomicBool::new(false)).0;
    make(&Start::Crash, TAR).unwrap();
    let (names, _) = entries(&cluster.to().join("16500.tar"));
    assert_eq!(names, ["PG_15_202209061", "PG_15_202209061/1", "PG_15_202209061/1/17000"].map(String::from));
    assert!(entries(&cluster.to().join("base.tar")).0.contains(&"pg_tblspc/16500".to_owned()));
    let manifest = fs::read_to_string(cluster.to().join("backup_manifest")).unwrap();
    assert!(manifest.contains("pg_tblspc/16500/PG_15_202209061/1/17000"));
    fs::remove_dir_all(cluster.to()).unwrap();
    // With a label the server makes the links, from what it said.
    let wal = pagefold_basebackup::wal::Range { timeline: 1, start: REDO, end: REDO + 40 };
    let start = Start::Server { label: "LABEL\n".into(), tablespace_map: "16500 /srv/space\n".into(), wal };
    make(&start, TAR).unwrap();
    let (names, contents) = entries(&cluster.to().join("base.tar"));
    assert_eq!(names[..2], ["backup_label".to_owned(), "tablespace_map".into()]);
    assert_eq!(contents["tablespace_map"], b"16500 /srv/space\n");
    assert!(!names.contains(&"pg_tblspc/16500".to_owned()));
    fs::remove_dir_all(cluster.to()).unwrap();
    // Archives of a tablespace that is moved lead to its new place.
    let map = "16499 /srv/kept\n16500 /srv/space\n".into();
    let Start::Server { label, wal, .. } = start.clone() else { panic!("another start") };
    let elsewhere = Start::Server { label, tablespace_map: map, wal };
    cluster.make_of(&moved, &elsewhere, TAR, &AtomicBool::new(false)).0.unwrap();
    let (_, contents) = entries(&cluster.to().join("base.tar"));
    assert_eq!(contents["tablespace_map"], b"16499 /srv/kept\n16500 /srv/mo\\\\ved\n");
    fs::remove_dir_all(cluster.to()).unwrap();
    make(&start, Format::Plain).unwrap();
    assert_eq!(fs::read_link(cluster.to().join("pg_tblspc/16500")).unwrap(), restored);
    assert_eq!(fs::read(restored.join("PG_15_202209061/1/17000")).unwrap(), page(0));
    assert!(!cluster.to().join("tablespace_map").exists());
    // Of another version there is nothing.
    fs::remove_dir_all(folder.join("PG_15_202209061")).unwrap();
    fs::remove_dir_all(cluster.to()).unwrap();
    assert!(matches!(make(&Start::Crash, TAR), Err(Error::Unsuited(_))));
}
