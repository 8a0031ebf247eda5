//! Predictions beside what the engine's encoder makes of all pages.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use pagefold_codec::testing::logs::wal_pages;
use pagefold_codec::testing::{Random, Schema, heap_page};
use pagefold_codec::{files, registry};
use pagefold_engine::record::{Compression, Encoder};
use tempfile::TempDir;

use crate::{Estimate, FileReport, Finding, Kind, Options, Report, analyze, walk};

const PAGE: usize = 8192;

/// Deterministic text that compresses by some factor, another one per page.
fn text_page(number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let words = ["order", "customer", "street", "delivery", "amount", "pending"];
    let mut page = Vec::new();
    while page.len() < PAGE {
        let noise = random.u32(..) % (1 + number as u32 * 50);
        page.extend_from_slice(format!("{} {noise} ", random.choice(words).unwrap()).as_bytes());
    }
    page.truncate(PAGE);
    page
}

fn options(compression: Compression) -> Options {
    Options { compression, ..Options::default() }
}

fn predict(dir: &TempDir, options: &Options) -> Report {
    let walked = walk(&[dir.path().to_path_buf()], || {}).unwrap();
    assert_eq!((walked.problems, walked.notes), (vec![], vec![]));
    analyze(&walked.files, options, |_| {})
}

#[test]
fn the_estimate_of_a_whole_population_is_its_sum() {
    let all = [10.0, 20.0, 60.0];
    let estimate = Estimate::of(&all, 3);
    assert_eq!((estimate.bytes(), estimate.margin_bytes()), (90, 0));
    assert_eq!(Estimate::of(&[], 5).bytes(), 0);
}

#[test]
fn the_range_holds_the_truth_as_often_as_it_says() {
    let mut random = fastrand::Rng::with_seed(3);
    let population: Vec<f64> = (0..5000).map(|_| f64::from(random.u32(100..4000))).collect();
    let truth = population.iter().sum::<f64>() as u64;
    let held = (0..400).filter(|_| {
        let sample: Vec<f64> = random.choose_multiple(population.iter().copied(), 200);
        let estimate = Estimate::of(&sample, 5000);
        estimate.bytes().abs_diff(truth) <= estimate.margin_bytes()
    });
    let held = held.count();
    assert!((360..400).contains(&held), "{held} of 400 ranges hold the truth");
}

#[test]
fn a_sample_predicts_what_all_pages_take() {
    let dir = TempDir::new().unwrap();
    let pages: Vec<Vec<u8>> = (0..3000).map(text_page).collect();
    fs::write(dir.path().join("table"), pages.concat()).unwrap();
    let report = predict(&dir, &options(Compression::Zstd(3)));
    // The recordsize of what no database wrote is 16 KiB.
    let mut record = Vec::new();
    for pair in pages.concat().chunks(2 * PAGE) {
        Encoder::new().encode(pair, Compression::Zstd(3), &mut record);
    }
    let file = &report.files[0];
    assert_eq!((file.recordsize_bytes, file.pages, file.tried_pages), (16384, 1500, 400));
    let (predicted, truth) = (file.stored.bytes(), record.len() as u64);
    assert!(predicted.abs_diff(truth) * 50 < truth, "{predicted} predicted, {truth} taken");
    assert!(file.stored.margin_bytes() > 0);
}

#[test]
fn a_small_file_is_predicted_exactly() {
    let dir = TempDir::new().unwrap();
    let pages: Vec<Vec<u8>> = (0..50).map(text_page).collect();
    fs::write(dir.path().join("table"), pages.concat()).unwrap();
    let report = predict(&dir, &options(Compression::Lz4));
    let mut record = Vec::new();
    for pair in pages.concat().chunks(2 * PAGE) {
        Encoder::new().encode(pair, Compression::Lz4, &mut record);
    }
    assert_eq!(report.files[0].stored, Estimate::exact(record.len() as u64));
    assert_eq!(report.total.logical, Estimate::exact(50 * PAGE as u64));
}

#[test]
fn relations_of_postgres_are_predicted_with_a_model() {
    let dir = TempDir::new().unwrap();
    let mut random = Random::new(7);
    let pages: Vec<Vec<u8>> =
        (0..1200).map(|block| heap_page(&mut random, &Schema::simple(false), block)).collect();
    fs::write(dir.path().join("16384"), pages.concat()).unwrap();
    let with = predict(&dir, &options(Compression::Page(3)));
    let without = predict(&dir, &options(Compression::Zstd(3)));
    let file = &with.files[0];
    assert_eq!((file.kind.name(), file.recordsize_bytes), ("PostgreSQL tables", PAGE as u32));
    assert!(file.model_bytes > 0);
    assert!(file.stored.bytes() < without.files[0].stored.bytes());
    assert!(matches!(with.findings[..], [Finding::FreeSpace { free_bytes: 1.., .. }]), "{:?}", with.findings);
}

#[test]
fn holes_and_zeros_take_nothing() {
    let dir = TempDir::new().unwrap();
    let mut file = fs::File::create(dir.path().join("sparse")).unwrap();
    file.seek(SeekFrom::Start(1 << 40)).unwrap();
    file.write_all(&text_page(1)).unwrap();
    file.write_all(&[0; 4 * PAGE]).unwrap();
    let report = predict(&dir, &options(Compression::Zstd(3)));
    let file = &report.files[0];
    assert_eq!(file.size_bytes, (1 << 40) + 5 * PAGE as u64);
    assert!(file.pages <= 64, "{} pages with data", file.pages);
    assert!((1..PAGE as u64).contains(&file.stored.bytes()));
    assert_eq!(file.logical.bytes(), 16384);
}

#[test]
fn the_last_page_counts_up_to_the_end_of_the_file() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("short"), text_page(1).get(..100).unwrap()).unwrap();
    let report = predict(&dir, &options(Compression::Zstd(3)));
    assert_eq!(report.total.logical, Estimate::exact(100));
    assert!(report.total.metadata.bytes() > 200, "its one page has metadata, too");
}

#[test]
fn a_file_with_two_names_is_counted_once_and_links_are_noted() {
    let dir = TempDir::new().unwrap();
    let elsewhere = TempDir::new().unwrap();
    fs::write(dir.path().join("a"), b"x").unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
    for (to, name) in
        [(elsewhere.path(), "pg_tblspc"), ("a".as_ref(), "file"), ("nowhere".as_ref(), "broken")]
    {
        std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
    }
    let walked = walk(&[dir.path().to_path_buf()], || {}).unwrap();
    assert_eq!((walked.files.len(), walked.problems.len(), walked.notes.len()), (1, 0, 2));
    assert!(walked.notes[0].ends_with("pg_tblspc is a link to a directory, and was not followed"));
    assert_eq!(walked.notes[1], "1 link to a file was not followed");
    // A path that was given is followed.
    std::os::unix::fs::symlink(dir.path(), elsewhere.path().join("data")).unwrap();
    assert_eq!(walk(&[elsewhere.path().join("data")], || {}).unwrap().files.len(), 1);
}

#[test]
fn what_cannot_be_looked_at_is_told() {
    let error = walk(&["/nowhere/at/all".into()], || {}).unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}

/// Programs read the first words, people the others; reports have them in this order.
#[test]
fn kinds_have_these_names() {
    let kinds: Vec<(&str, &str)> = Kind::all().map(|kind| (kind.key(), kind.name())).collect();
    let expected = [
        ("postgres-heap", "PostgreSQL tables"),
        ("postgres-btree", "PostgreSQL B-trees"),
        ("postgres-other", "PostgreSQL, other pages"),
        ("postgres-log", "PostgreSQL log"),
        ("innodb", "InnoDB tablespaces"),
        ("innodb-log", "InnoDB log"),
        ("sqlite", "SQLite"),
        ("rrd", "RRD"),
        ("lmdb", "LMDB"),
        ("bbolt", "bbolt"),
        ("berkeley-db", "Berkeley DB"),
        ("other", "other"),
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn files_of_postgresql_are_named_by_most_of_their_pages() {
    let format = |name: &str| registry().by_name(name).unwrap();
    let [heap, btree, gin] = ["postgres-heap", "postgres-btree", "postgres-gin"].map(format);
    let (postgres, innodb) = (Some(files::POSTGRES), Some(files::INNODB));
    assert_eq!(Kind::of(postgres, &[btree, heap, heap], 3), Kind::Pages(heap));
    assert_eq!(Kind::of(postgres, &[btree, heap, heap], 4), Kind::Other, "half of them are not most");
    assert_eq!(Kind::of(None, &[btree, heap], 3).key(), "other");
    assert_eq!(Kind::of(None, &[btree, heap, gin, gin], 3), Kind::File(files::POSTGRES));
    assert_eq!(Kind::of(innodb, &[heap, heap], 2), Kind::File(files::INNODB));
}

/// PostgreSQL removes and renames files of its log while it runs.
#[test]
fn a_log_that_is_deleted_meanwhile_leaves_the_others_their_model() {
    let dir = TempDir::new().unwrap();
    let pages = wal_pages(&mut Random::new(4), PAGE, 360);
    for (number, log) in pages.chunks(120).enumerate() {
        fs::write(dir.path().join(format!("{number:024X}")), log.concat()).unwrap();
    }
    let options = options(Compression::Page(3));
    let files = walk(&[dir.path().to_path_buf()], || {}).unwrap().files;
    let looked_at = AtomicUsize::new(0);
    let report = analyze(&files, &options, |_| {
        if looked_at.fetch_add(1, Ordering::Relaxed) + 1 == files.len() {
            fs::remove_file(&files[0].path).unwrap();
        }
    });
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.files.len(), 3);
    let figures = |files: &[FileReport]| -> Vec<_> {
        files.iter().map(|file| (file.path.clone(), file.stored, file.model_bytes)).collect()
    };
    assert_eq!(figures(&report.files[1..]), figures(&predict(&dir, &options).files));
}
