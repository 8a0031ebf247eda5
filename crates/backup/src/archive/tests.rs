//! Archived logs in stores in memory.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use pagefold_engine::pool::{Guid, Origin};

use super::*;
use crate::archive::timeline::Reach;
use crate::commit::Cluster;
use crate::keys::Secret;
use crate::repository::InitOptions;
use crate::seen::Seen;
use crate::store::Store;

const SYSTEM: u64 = 7;
const SIZE: u32 = 1 << 20;

fn repository(secret: Option<&str>) -> (Arc<InMemory>, Repository) {
    let memory = Arc::new(InMemory::new());
    let store = Store::new(Arc::clone(&memory) as Arc<dyn ObjectStore>, "").unwrap();
    let secret = secret.map(|text| Secret::new(text.into()).unwrap());
    let options = InitOptions { secret, ..InitOptions::default() };
    (memory, Repository::init(store, Seen::default(), &options).unwrap())
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let word = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..len as u64).map(|at| (word.rotate_left((at / 64) as u32) >> (at % 7)) as u8).collect()
}

fn push(repository: &Repository, system: u64, name: &str, content: &[u8]) -> Result<Pushed> {
    let name = Name::parse(name).unwrap();
    let times = (name.part == Part::Segment)
        .then(|| (i64::from(name.segment) * 10_000_000, i64::from(name.segment) * 10_000_000 + 9_000_000));
    let segment_bytes = if name.part == Part::Segment { SIZE } else { 0 };
    repository.push_log(&LogFile { system, name, segment_bytes, times, content })
}

fn segment(timeline: u32, number: u32) -> String {
    format!("{timeline:08X}00000000{number:08X}")
}

fn backup(number: u64, timeline: u32, redo: u64, created: u64) -> Backup {
    let cluster = Cluster {
        data: ".".into(),
        system: SYSTEM,
        timeline,
        redo,
        end: redo + 8192,
        segment_bytes: SIZE,
        last_us: None,
    };
    let mut backup = crate::samples::state().backups.remove(0);
    backup.number = number;
    backup.origin = Origin { pool: Guid([1; 16]), number, created };
    backup.clusters = Some(vec![cluster]);
    backup
}

fn with_backups(repository: &Repository, backups: &[Backup]) {
    let change = &mut |state: &mut crate::commit::State| {
        state.backups = backups.to_vec();
        Ok(())
    };
    repository.commit(change).unwrap();
}

#[test]
fn a_file_comes_back_and_is_there_once() {
    for secret in [None, Some("horse")] {
        let (memory, repository) = repository(secret);
        for len in [0, 1, 100, (2 << 20) - 1, 2 << 20, (5 << 20) + 3] {
            let bytes = content(len as u64, len);
            let name = segment(1, len as u32);
            assert_eq!(push(&repository, SYSTEM, &name, &bytes).unwrap(), Pushed::New);
            assert_eq!(push(&repository, SYSTEM, &name, &bytes).unwrap(), Pushed::Same);
            let found = repository.fetch_log(SYSTEM, &Name::parse(&name).unwrap()).unwrap();
            assert_eq!(found.unwrap(), bytes, "{len}");
            // Another content under the name is refused, and the first one stays.
            let refused = push(&repository, SYSTEM, &name, b"other").unwrap_err();
            assert!(matches!(refused, Error::Exists(_)) && refused.to_string().contains(&name), "{refused}");
            assert_eq!(repository.fetch_log(SYSTEM, &Name::parse(&name).unwrap()).unwrap().unwrap(), bytes);
        }
        // Another cluster has files of the same names.
        assert_eq!(repository.fetch_log(8, &Name::parse(&segment(1, 1)).unwrap()).unwrap(), None);
        assert_eq!(push(&repository, 8, &segment(1, 1), b"of the other").unwrap(), Pushed::New);
        assert_eq!(push(&repository, SYSTEM, "00000002.history", b"1\t0/1000000\n").unwrap(), Pushed::New);
        assert_eq!(repository.logs().unwrap().len(), 8);
        // One request, whatever the repository holds.
        let before = repository.store.requests();
        push(&repository, SYSTEM, &segment(1, 77), b"x").unwrap();
        let after = repository.store.requests();
        assert_eq!((after.puts - before.puts, after.gets, after.lists), (1, before.gets, before.lists));
        drop(memory);
    }
}

#[test]
fn damage_and_files_that_were_swapped_are_told() {
    for secret in [None, Some("horse")] {
        let (memory, repository) = repository(secret);
        let name = Name::parse(&segment(1, 1)).unwrap();
        push(&repository, SYSTEM, &segment(1, 1), &content(1, 3 << 20)).unwrap();
        push(&repository, SYSTEM, &segment(1, 2), &content(2, 3 << 20)).unwrap();
        let place = Path::from(path(SYSTEM, &name));
        let read =
            |at: &Path| repository.store.wait(async { memory.get(at).await.unwrap().bytes().await.unwrap() });
        let write =
            |bytes: Vec<u8>| repository.store.wait(async { memory.put(&place, bytes.into()).await.unwrap() });
        let whole = read(&place);
        for (n, at) in (0..whole.len()).step_by(whole.len() / 300).enumerate() {
            let mut damaged = whole.to_vec();
            damaged[at] ^= 1;
            write(damaged);
            let error = repository.fetch_log(SYSTEM, &name).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "byte {at}: {error}");
            write(whole[..at].to_vec());
            assert!(matches!(repository.fetch_log(SYSTEM, &name), Err(Error::Damaged { .. })), "cut at {at}");
            // A second push does not take the damaged object for the same file, and mends it if it is at hand.
            let other = push(&repository, SYSTEM, &segment(1, 1), b"other");
            assert!(matches!(other, Ok(Pushed::New) | Err(Error::Exists(_))), "{other:?}");
            if n % 50 > 0 {
                continue;
            }
            write(whole[..at].to_vec());
            assert_eq!(push(&repository, SYSTEM, &segment(1, 1), &content(1, 3 << 20)).unwrap(), Pushed::New);
            assert_eq!(
                push(&repository, SYSTEM, &segment(1, 1), &content(1, 3 << 20)).unwrap(),
                Pushed::Same
            );
        }
        // A newer version of the program may read it.
        let mut newer = whole.to_vec();
        newer[6] += 1;
        write(newer);
        let refused = push(&repository, SYSTEM, &segment(1, 1), &content(1, 3 << 20));
        assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
        write([&whole[..], b"x"].concat());
        assert!(repository.fetch_log(SYSTEM, &name).is_err());
        // Another file in its place, whole.
        write(read(&Path::from(path(SYSTEM, &Name::parse(&segment(1, 2)).unwrap()))).to_vec());
        let error = repository.fetch_log(SYSTEM, &name).unwrap_err();
        assert!(error.to_string().contains("under another name"), "{error}");
        let mut checked = Checked::default();
        repository.verify_logs(1.0, 1, &mut checked, &mut |_| {}).unwrap();
        assert_eq!((checked.damages, checked.log_files), (1, 2));
    }
}

/// Returns segments of a log of PostgreSQL, of 2 MiB each.
fn log(seed: u64, segments: usize) -> Vec<Vec<u8>> {
    let mut random = pagefold_codec::testing::Random::new(seed);
    let pages = pagefold_codec::testing::logs::wal_pages(&mut random, 8192, segments * 256);
    pages.chunks(256).map(<[Vec<u8>]>::concat).collect()
}

fn push_segment(repository: &Repository, number: u32, content: &[u8]) {
    let (name, segment_bytes) = (Name::parse(&segment(1, number)).unwrap(), 2 << 20);
    let file = LogFile { system: SYSTEM, name, segment_bytes, times: None, content };
    assert_eq!(repository.push_log(&file).unwrap(), Pushed::New);
    assert!(repository.fetch_log(SYSTEM, &name).unwrap().unwrap() == content, "segment {number}");
}

/// Returns the age of the model that a segment has, and the bytes of its blocks and of the model.
fn of_segment(repository: &Repository, number: u32) -> (u32, u64, usize) {
    let object = path(SYSTEM, &Name::parse(&segment(1, number)).unwrap());
    let bytes = repository.store.get(&object, WAL_OBJECT_BYTES_MAX).unwrap().unwrap();
    let head = object::open_head(&bytes, &object, &repository.id, &repository.sealer).unwrap().head;
    let kept = object::open_kept(&bytes, &object, &repository.id, &repository.sealer).unwrap().unwrap();
    let blocks = head.blocks.iter().map(|len| u64::from(*len)).sum();
    (head.past.unwrap().age, blocks, kept.model.map_or(0, |stored| stored.bytes.len()))
}

#[test]
fn segments_are_coded_by_the_model_of_the_one_before() {
    for secret in [None, Some("horse")] {
        let (memory, repository) = repository(secret);
        let log = log(1, 4);
        push_segment(&repository, 1, &log[0]);
        let before = repository.store.requests();
        push_segment(&repository, 2, &log[1]);
        let after = repository.store.requests();
        // Two for the model, and one that reads the segment back.
        assert_eq!((after.puts - before.puts, after.gets - before.gets, after.lists), (1, 3, before.lists));
        let (first, second) = (of_segment(&repository, 1), of_segment(&repository, 2));
        assert_eq!((first.0, second.0, first.2), (0, 1, second.2));
        let squeezed = zstd::bulk::compress(&log[1], 3).unwrap().len() as u64;
        assert!(second.1 < squeezed, "{} bytes, and {squeezed} by zstd", second.1);
        // A segment that is missing or damaged has no model for the next one.
        push_segment(&repository, 4, &log[3]);
        assert_eq!(of_segment(&repository, 4).0, 0);
        let place = Path::from(path(SYSTEM, &Name::parse(&segment(1, 2)).unwrap()));
        let damage = async {
            let mut bytes = memory.get(&place).await.unwrap().bytes().await.unwrap().to_vec();
            let at = object::begin_bytes(&bytes, "", &repository.id).unwrap() as usize - 30;
            bytes[at] ^= 1;
            memory.put(&place, bytes.into()).await.unwrap()
        };
        repository.store.wait(damage);
        push_segment(&repository, 3, &log[2]);
        assert_eq!(of_segment(&repository, 3).0, 0);
    }
}

#[test]
fn a_model_that_has_become_worse_is_learned_again() {
    let (_memory, repository) = repository(None);
    let mut random = pagefold_codec::testing::Random::new(7);
    let noise: Vec<u8> = (0..1 << 20).map(|_| random.next() as u8).collect();
    let log = log(2, 1);
    let ages = |numbers: std::ops::RangeInclusive<u32>| -> Vec<_> {
        numbers
            .map(|number| of_segment(&repository, number))
            .map(|(age, _, model)| (age, model > 0))
            .collect()
    };
    // Nothing can be learned of noise: that is found out after ever more segments.
    (1..=40).for_each(|number| push_segment(&repository, number, &noise));
    let waits = [1, 2, 4, 8, 16].into_iter().flat_map(|wait| 0..wait);
    assert_eq!(ages(1..=40), waits.chain(0..9).map(|age| (age, false)).collect::<Vec<_>>());
    // A model makes this log hardly shorter than zstd does, so none is taken where there was none.
    (41..=49).for_each(|number| push_segment(&repository, number, &log[0]));
    assert_eq!(ages(47..=49), [(15, false), (0, false), (1, false)]);
    // A model stays where it makes what it made.
    (100..=120).for_each(|number| push_segment(&repository, number, &log[0]));
    assert_eq!(ages(120..=120), [(20, true)]);
    // Half a log and half noise is worse. A new model makes no less of it, so the old one stays.
    let half = [&log[0][..1 << 20], &noise].concat();
    (121..=124).for_each(|number| push_segment(&repository, number, &half));
    assert_eq!(ages(121..=124), [(0, true), (1, true), (2, true), (3, true)]);
    assert_eq!(of_segment(&repository, 124).2, of_segment(&repository, 100).2);
    // Zeros behind a switch of segments are no reason to learn, and something else is.
    let switched = [&log[0][..1 << 19], &vec![0; 3 << 19]].concat();
    push_segment(&repository, 200, &switched);
    push_segment(&repository, 201, &noise);
    push_segment(&repository, 202, &log[0]);
    assert_eq!(ages(200..=202), [(0, true), (0, true), (1, true)]);
}

#[test]
fn pages_that_no_model_describes_come_back() {
    let log = log(3, 1);
    let Some(stored) = Kept::learn(&log[0]).model else { panic!("no model") };
    let mut odd = log[0].clone();
    odd[8192 * 3..8192 * 4].fill(0);
    odd[8192 * 5 + 100..8192 * 6].reverse();
    for len in [0, 1, 8191, 8192, 8193, 30_000, 8192 * 7, odd.len()] {
        let block = &odd[..len];
        let coded = model::encode_block(&stored.model, block).unwrap();
        assert!(model::decode_block(&stored.model, &coded, len, "block").unwrap() == block, "{len} bytes");
    }
}

/// The coder is at fault, as far as anybody knows: nothing of the file is lost.
#[test]
fn a_file_that_would_come_back_otherwise_is_archived_without_a_model() {
    let (_, repository) = repository(Some("secret"));
    let (name, path) = (segment(1, 4), "wal/4");
    let file = |content| File {
        system: SYSTEM,
        name: &name,
        segment_bytes: SIZE,
        times: None,
        is_last: false,
        is_inside: false,
        content,
    };
    let (ours, others) = (content(1, SIZE as usize), content(2, SIZE as usize));
    let decode = |bytes: &[u8]| object::decode(bytes, path, &repository.id, &repository.sealer).unwrap();
    let encode = |file: &File<'_>| repository.encode_log(file, None).unwrap();
    let right = encode(&file(&ours));
    assert_eq!(repository.proven_log(&file(&ours), path, right.clone()).unwrap(), right);
    let mut cut = right.clone();
    cut.truncate(right.len() - 1);
    for wrong in [encode(&file(&others)), cut] {
        let proven = repository.proven_log(&file(&ours), path, wrong).unwrap();
        let (head, content) = decode(&proven);
        assert!(content == ours && head.name == name);
    }
}

#[test]
fn gaps_are_told_and_times_found() {
    let (_memory, repository) = repository(None);
    let backups = [backup(1, 1, 2 << 20, 15), backup(2, 1, 5 << 20, 45), backup(3, 1, 20 << 20, 300)];
    with_backups(&repository, &backups);
    for number in [1, 2, 3, 5, 6, 7] {
        push(&repository, SYSTEM, &segment(1, number), b"x").unwrap();
    }
    // Of one that has no transactions the one before is asked.
    let name = Name::parse(&segment(1, 8)).unwrap();
    repository
        .push_log(&LogFile { system: SYSTEM, name, segment_bytes: SIZE, times: None, content: b"" })
        .unwrap();
    let logs = repository.cluster_logs(&repository.backups().unwrap()).unwrap();
    let [log] = logs.as_slice() else { panic!("{logs:?}") };
    assert_eq!(log.stretches.len(), 2);
    assert_eq!(log.missing(), [Name::parse(&segment(1, 4)).unwrap()]);
    let told: Vec<_> =
        log.lines.iter().map(|line| (line.backup, line.until, line.until_us, line.missing)).collect();
    let missing = |number| Some(Name::parse(&segment(1, number)).unwrap());
    assert_eq!(told[0], (1, Some(4 << 20), Some(39_000_000), missing(4)));
    assert_eq!(told[1], (2, Some(9 << 20), Some(79_000_000), None));
    assert_eq!(told[2], (3, None, None, None));
    // The log in a backup may go on behind what is archived.
    let mut further = log.lines[1].clone();
    further.from = 10 << 20;
    let until = [&log.lines[1], &further, &log.lines[2]].map(Line::whole_until);
    assert_eq!(until, [Some(9 << 20), Some(10 << 20), None]);
    let line = &log.lines[0];
    assert_eq!(line.reaches_time(15_999_999), Reach::TooEarly);
    assert_eq!(line.reaches_time(16_000_000), Reach::Within);
    assert_eq!(line.reaches_time(39_000_000), Reach::TooLate);
    // Where it is known which transaction was the last, no second is lost.
    let mut exact = backups[0].clone();
    exact.clusters.as_mut().unwrap()[0].last_us = Some(15_300_000);
    let line = log.line(&exact, &exact.clusters.as_ref().unwrap()[0], None).unwrap();
    assert_eq!(line.reaches_time(15_299_999), Reach::TooEarly);
    assert_ne!(line.reaches_time(15_300_000), Reach::TooEarly);
    let line = &log.lines[0];
    assert_eq!(line.reaches_place((2 << 20) + 8191), Reach::TooEarly);
    assert_eq!(line.reaches_place((4 << 20) - 1), Reach::Within);
    assert_eq!(line.reaches_place(4 << 20), Reach::TooLate);
    // `check` takes it for damage.
    let checked = &mut Checked::default();
    repository.check_logs(&repository.backups().unwrap(), checked).unwrap();
    assert_eq!((checked.damages, checked.log_files), (1, 7));
    assert!(checked.told[0].what.contains(&segment(1, 4)), "{checked:?}");
}

#[test]
fn timelines_are_followed_where_they_begin() {
    let (_memory, repository) = repository(None);
    // From the first to the second in segment 4, from there to the third in 6. The first one went on to 6 by itself.
    for (timeline, numbers) in [(1, 1..7), (2, 4..7), (3, 6..9)] {
        for number in numbers {
            push(&repository, SYSTEM, &segment(timeline, number), b"x").unwrap();
        }
    }
    push(&repository, SYSTEM, "00000002.history", b"1\t0/480000\tno recovery target specified\n").unwrap();
    push(&repository, SYSTEM, "00000003.history", b"1\t0/480000\twhy\n\n2\t0/600000\tx\n").unwrap();
    let (early, late) = (backup(1, 1, 2 << 20, 15), backup(2, 1, 5 << 20, 45));
    with_backups(&repository, &[early.clone(), late.clone()]);
    let log = repository.cluster_logs(&repository.backups().unwrap()).unwrap().remove(0);
    assert!(log.missing().is_empty());
    let told: Vec<_> = log.lines.iter().map(|line| (line.timeline, line.until)).collect();
    // The later backup is of what the first timeline wrote after it was left.
    assert_eq!(told, [(3, Some(9 << 20)), (1, Some(7 << 20))]);
    let cluster = |backup: &Backup| backup.clusters.clone().unwrap().remove(0);
    let until = |backup: &Backup, timeline| {
        let line = repository.line(&log, backup, &cluster(backup), Some(timeline)).unwrap();
        line.map(|line| line.until)
    };
    assert_eq!((until(&early, 1), until(&early, 2)), (Some(Some(7 << 20)), Some(Some(7 << 20))));
    assert_eq!((until(&late, 2), until(&late, 9)), (None, None));
    for bad in ["x", "1\n", "1 y\n", "2 0/1\n1 0/2\n", "3 0/1\n"] {
        assert_eq!(History::parse(3, bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn a_recovery_that_ended_before_its_timeline_began_is_followed() {
    let (_memory, repository) = repository(None);
    // The second timeline begins in segment 6. A recovery along it was ended in segment 4, where the third one begins.
    for (timeline, numbers) in [(1, 1..7), (2, 6..8), (3, 4..9)] {
        for number in numbers {
            push(&repository, SYSTEM, &segment(timeline, number), b"x").unwrap();
        }
    }
    push(&repository, SYSTEM, "00000002.history", b"1\t0/680000\tbefore a time\n").unwrap();
    push(&repository, SYSTEM, "00000003.history", b"1\t0/680000\tbefore\n\n2\t0/480000\tearlier\n").unwrap();
    let (early, late) = (backup(1, 1, 2 << 20, 15), backup(2, 1, 5 << 20, 45));
    with_backups(&repository, &[early, late]);
    let log = repository.cluster_logs(&repository.backups().unwrap()).unwrap().remove(0);
    let told: Vec<_> = log.lines.iter().map(|line| (line.timeline, line.until, line.missing)).collect();
    // The changes in the later backup were written after the third timeline had left the first one.
    assert_eq!(told, [(3, Some(9 << 20), None), (2, Some(8 << 20), None)]);
}

/// The history of a timeline that is damaged hides that timeline, and no other one.
#[test]
fn a_history_or_a_segment_that_cannot_be_read_hides_nothing_else() {
    let (memory, repository) = repository(None);
    for (timeline, numbers) in [(1, 1..7), (2, 4..9)] {
        for number in numbers {
            push(&repository, SYSTEM, &segment(timeline, number), b"x").unwrap();
        }
    }
    push(&repository, SYSTEM, "00000002.history", b"1\t0/480000\twhy\n").unwrap();
    push(&repository, 8, &segment(1, 1), b"of a cluster without a backup").unwrap();
    let early = backup(1, 1, 2 << 20, 15);
    with_backups(&repository, std::slice::from_ref(&early));
    let list = || repository.cluster_logs(&repository.backups().unwrap()).unwrap();
    assert_eq!(list()[0].lines[0].timeline, 2);
    let damage = |system, name: &str| {
        let place = Path::from(path(system, &Name::parse(name).unwrap()));
        repository.store.wait(async { memory.put(&place, vec![7; 99].into()).await.unwrap() });
    };
    damage(SYSTEM, "00000002.history");
    let logs = list();
    let (log, line) = (&logs[0], &logs[0].lines[0]);
    assert_eq!((line.timeline, line.until, line.until_us), (1, Some(7 << 20), Some(69_000_000)));
    assert_eq!(log.unreadable[0].name, Name::parse("00000002.history").unwrap());
    let cluster = early.clusters.clone().unwrap().remove(0);
    let line = |timeline| repository.line(log, &early, &cluster, timeline);
    assert_eq!(line(Some(1)).unwrap().unwrap().until, Some(7 << 20));
    assert_eq!(line(Some(3)).unwrap(), None);
    // The newest timeline may be the one that is not known.
    for timeline in [None, Some(2)] {
        let error = line(timeline).unwrap_err();
        assert!(
            matches!(error, Error::Damaged { .. }) && error.to_string().contains("timeline 2"),
            "{error}"
        );
    }
    // A segment tells no times, and what length segments have.
    damage(SYSTEM, &segment(1, 6));
    damage(8, &segment(1, 1));
    let logs = list();
    assert_eq!((logs[0].lines[0].until, logs[0].lines[0].until_us), (Some(7 << 20), Some(59_000_000)));
    assert_eq!((logs[1].segment_bytes, logs[1].files), (0, 1));
    let checked = &mut Checked::default();
    repository.check_logs(&repository.backups().unwrap(), checked).unwrap();
    assert_eq!(checked.damages, 1, "{checked:?}");
}

#[test]
fn prune_keeps_what_a_kept_backup_needs() {
    let (_memory, repository) = repository(None);
    for number in 1..10 {
        push(&repository, SYSTEM, &segment(1, number), b"x").unwrap();
        push(&repository, 8, &segment(1, number), b"of a cluster without a backup").unwrap();
    }
    push(&repository, SYSTEM, &format!("{}.00000028.backup", segment(1, 2)), b"x").unwrap();
    push(&repository, SYSTEM, "00000001.history", b"").unwrap();
    // A file that no server has made would keep the whole archive from being listed.
    let refused = push(&repository, SYSTEM, "00000005.history", b"x\n").unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    let backups = [backup(1, 1, (3 << 20) + 5, 15), backup(2, 1, 6 << 20, 45)];
    let names = || {
        let of = |file: &Archived| (file.system == SYSTEM).then(|| file.name.to_string());
        repository.logs().unwrap().iter().filter_map(of).collect::<Vec<_>>()
    };
    let change = |backups: &[Backup], now| {
        let files = repository.logs().unwrap();
        let state = repository.head().unwrap().state;
        let (doomed, floors, pruned) = unneeded(&files, backups, &state.floors, now);
        let objects: Vec<String> = paths(&doomed).collect();
        repository
            .commit(&mut |state| {
                state.floors.clone_from(&floors);
                Ok(())
            })
            .unwrap();
        repository.store.delete(&objects).unwrap();
        pruned
    };
    // One whose databases are not known keeps everything.
    let mut unknown = backups.to_vec();
    unknown[1].clusters = None;
    let pruned = change(&unknown, true);
    assert_eq!((pruned.deleted_files, pruned.unknown_backups), (0, vec![2]));
    // Two prunes have to find it.
    let pruned = change(&backups, false);
    assert_eq!((pruned.deleted_files, pruned.left_files), (0, 3));
    assert_eq!(names().len(), 11);
    let pruned = change(&backups[1..], false);
    assert_eq!((pruned.deleted_files, pruned.left_files), (3, 3));
    assert_eq!(names()[0], "00000001.history");
    assert_eq!(names()[1], segment(1, 3));
    // Without a backup of the cluster nothing goes.
    assert_eq!(change(&[], true).deleted_files, 0);
    assert_eq!(change(&backups[1..], true).deleted_files, 3);
    assert_eq!(names()[1], segment(1, 6));
    assert_eq!(repository.logs().unwrap().iter().filter(|file| file.system == 8).count(), 9);
}

/// Two that prune at once choose the same backups.
#[test]
fn backups_that_others_have_forgotten_are_no_error() {
    let (_memory, repository) = repository(None);
    with_backups(&repository, &[backup(1, 1, 0, 1), backup(2, 1, 0, 2), backup(3, 1, 0, 3)]);
    repository.forget(&[1]).unwrap();
    assert!(matches!(repository.forget(&[1, 2]), Err(Error::NotFound(_))));
    assert_eq!(repository.forget_any(&[1, 2]).unwrap(), [2]);
    assert_eq!(repository.backups().unwrap().iter().map(|backup| backup.number).collect::<Vec<_>>(), [3]);
}

#[test]
fn commits_of_before_have_neither_clusters_nor_properties() {
    let state = crate::samples::state();
    let body = crate::commit::encode_body(&[1; 16], 9, &state);
    let mut old = state.clone();
    (old.backups[0].binlogs, old.binlog_floors) = (Vec::new(), Vec::new());
    // Commits of the second version have nothing of binary logs, those of the first one neither of clusters.
    for cut in [2, 5] {
        let mut without = crate::commit::encode_body(&[1; 16], 9, &old);
        assert_eq!(&without[without.len() - cut..], &[0; 5][..cut]);
        without.truncate(without.len() - cut);
        assert_eq!(crate::commit::decode_body(&without).unwrap().1, old);
        (old.backups[0].clusters, old.floors, old.described) = (None, Vec::new(), Vec::new());
    }
    assert_eq!(crate::commit::decode_body(&body).unwrap().1, state);
}
