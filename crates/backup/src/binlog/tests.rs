//! Binary logs as MariaDB 10.11 writes them, and their archive in a store in memory.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use pagefold_engine::pool::{Guid, Origin};

use super::crafted::Server;
use super::*;
use crate::archive::timeline::Reach;
use crate::commit::{BinlogEnd, State};
use crate::repository::InitOptions;
use crate::seen::Seen;
use crate::store::Store;

/// Archives everything of a file from a place on, as one part.
fn push(server: &Server, repository: &Repository, place: BinlogPlace) -> Result<BinlogPlace> {
    let is_last = scan(&server.bytes)?.0.is_closed();
    Ok(push_as(server, repository, place, is_last)?.end)
}

fn push_as(server: &Server, repository: &Repository, place: BinlogPlace, is_last: bool) -> Result<PartFacts> {
    let (scan, events) = scan(&server.bytes)?;
    let ends = events.iter().filter(|event| matches!(event.role, Role::Ends(_)) && event.end > place.offset);
    let times: Vec<u32> = ends.map(|event| event.time_s).collect();
    let times = times.iter().min().copied().zip(times.iter().max().copied());
    let mut content = server.bytes[place.offset as usize..scan.whole() as usize].to_vec();
    if place.offset == 0 {
        clear_in_use(&mut content);
    }
    let (log, mark) = (&shop(), scan.mark());
    repository.push_binlog(&BinlogPart {
        log,
        place,
        mark,
        times,
        is_last,
        is_inside: false,
        content: &content,
    })
}

fn begin_of(file: u32) -> BinlogPlace {
    BinlogPlace { file, offset: 0 }
}

fn scan(bytes: &[u8]) -> Result<(Scan, Vec<Event>)> {
    let (mut scan, mut events) = (Scan::default(), Vec::new());
    scan.feed(bytes, &mut |event| events.push(event))?;
    Ok((scan, events))
}

/// Returns the places at which transactions begin and end, and their times.
fn groups(events: &[Event]) -> Vec<(u64, u64, u32)> {
    let ends = events.iter().filter_map(|event| match event.role {
        Role::Ends(begin) => Some((begin, event.end, event.time_s)),
        _ => None,
    });
    ends.collect()
}

fn repository() -> (Arc<InMemory>, Repository) {
    let memory = Arc::new(InMemory::new());
    let store = Store::new(Arc::clone(&memory) as Arc<dyn ObjectStore>, "").unwrap();
    (memory, Repository::init(store, Seen::default(), &InitOptions::default()).unwrap())
}

fn shop() -> BinlogName {
    "shop".parse().unwrap()
}

#[test]
fn transactions_end_where_the_server_ends_them() {
    for checksums in [true, false] {
        let mut server = Server::with(100, checksums);
        let mut expected = Vec::new();
        let mut transaction = |server: &mut Server, time_s: u32, write: &dyn Fn(&mut Server)| {
            let begin = server.bytes.len() as u64;
            write(server);
            expected.push((begin, server.bytes.len() as u64, time_s));
        };
        transaction(&mut server, 101, &|server| server.rows(101, 10_000));
        // A statement that changes a schema is alone.
        transaction(&mut server, 102, &|server| {
            server.gtid(102, 1);
            server.query(102, "CREATE TABLE t (i int)");
        });
        // A table without transactions: the server writes the commit as text.
        transaction(&mut server, 103, &|server| {
            server.gtid(103, 0);
            server.event(5, 103, 0, &[1; 9]);
            server.query(103, "INSERT INTO t VALUES (1)");
            server.query(103, "SAVEPOINT a");
            server.query(103, "ROLLBACK TO a");
            server.query(103, "COMMIT");
        });
        server.event(161, 103, 0, b"\x0a\0\0\0bin.000001");
        transaction(&mut server, 104, &|server| {
            server.gtid(104, 0);
            server.query(104, "XA START 'x'");
            server.event(38, 104, 0, &[1; 20]);
        });
        transaction(&mut server, 105, &|server| {
            server.gtid(105, 0);
            server.query(105, "XA COMMIT X'78',X'',1");
        });
        let (found, events) = scan(&server.bytes).unwrap();
        assert_eq!(groups(&events), expected, "{checksums}");
        assert_eq!((found.whole(), found.is_closed()), (server.bytes.len() as u64, false));
        // Half a transaction, as a server that is writing leaves it.
        let whole = server.bytes.len() as u64;
        server.gtid(106, 0);
        server.query(106, "INSERT INTO t VALUES (2)");
        assert_eq!(scan(&server.bytes).unwrap().0.whole(), whole);
        server.event(16, 106, 0, &[9; 8]);
        server.close();
        let (found, events) = scan(&server.bytes).unwrap();
        assert_eq!((found.whole(), found.is_closed()), (server.bytes.len() as u64, true));
        assert_eq!(events.last().unwrap().role, Role::Last);

        // However the bytes come, and wherever the scan goes on, it finds the same.
        for step in [1, 7, 19, 4099] {
            let (mut again, mut events_again) = (Scan::default(), Vec::new());
            for bytes in server.bytes.chunks(step) {
                again.feed(bytes, &mut |event| events_again.push(event)).unwrap();
            }
            assert_eq!((&events_again, again.mark()), (&events, found.mark()), "{step}");
        }
        for (begin, ..) in &expected {
            let (mut again, mut rest) = (scan(&server.bytes[..300]).unwrap().0, Vec::new());
            again.go_on_at(*begin);
            again.feed(&server.bytes[*begin as usize..], &mut |event| rest.push(event)).unwrap();
            assert_eq!(
                rest,
                events.iter().copied().filter(|event| event.begin >= *begin).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn what_is_no_log_of_this_server_is_told() {
    let told = |bytes: &[u8]| scan(bytes).unwrap_err().to_string();
    let sound = Server::new(100);
    assert!(told(b"\xfebim and more").contains("does not begin as a binary log"));
    let mut other = sound.bytes.clone();
    other[4 + 19 + 2..4 + 19 + 10].copy_from_slice(b"8.0.35\0\0");
    other[4 + 19 + 10..4 + 19 + 22].fill(0);
    assert!(told(&other).contains("no binary log of MariaDB"));
    let mut unknown = sound.bytes.clone();
    let end = u32::from_le_bytes(unknown[13..17].try_into().unwrap()) as usize + 4;
    unknown[end - 5] = 7;
    assert!(told(&unknown).contains("checksums of a kind that is not known"));
    let mut encrypted = Server::new(100);
    encrypted.event(164, 100, 0, &[1; 17]);
    assert!(told(&encrypted.bytes).contains("encrypt_binlog"));
    let mut broken = Server::new(100);
    broken.gtid(101, 0);
    broken.close();
    assert!(told(&broken.bytes).contains("within a transaction"));
    // Damage anywhere is told, or changes nothing in how the log is divided; it never panics.
    let mut server = Server::new(100);
    (0..20).for_each(|n| server.rows(101 + n, 30));
    for at in 0..server.bytes.len() {
        let mut damaged = server.bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        scan(&damaged).ok();
        scan(&damaged[..at]).ok();
    }
}

#[test]
fn the_mark_is_that_of_the_file_whether_it_is_being_written_or_not() {
    let mut server = Server::new(100);
    let open = scan(&server.bytes).unwrap().0.mark();
    server.rows(101, 10);
    server.close();
    assert_eq!(scan(&server.bytes).unwrap().0.mark(), open);
    assert_ne!(scan(&Server::new(101).bytes).unwrap().0.mark(), open);
    assert_eq!(scan(&server.bytes[..100]).unwrap().0.mark(), 0);
}

#[test]
fn names_are_plain_and_ids_lead_back() {
    for bad in ["", "-a", "A", "a_b", "a.b", "a/b", "ä", &"a".repeat(33)] {
        assert!(bad.parse::<BinlogName>().is_err(), "{bad}");
    }
    for name in ["a", "shop-2-1", &"9".repeat(32)] {
        let place = BinlogPlace { file: u32::MAX, offset: (1 << 48) - 1 };
        let id = id(&name.parse().unwrap(), place);
        let part = ArchivedPart::parse(&id, 5).unwrap();
        assert_eq!((part.log.to_string().as_str(), part.place, part.id()), (name, place, id));
    }
    for other in ["shop", "shop-1-2", "shop-0000000001-00000000000g", "x-y-0000000001-0000000000001"] {
        assert!(ArchivedPart::parse(other, 5).is_none(), "{other}");
    }
}

#[test]
fn a_log_is_archived_part_by_part_and_comes_back() {
    let (_memory, repository) = repository();
    let log = shop();
    assert_eq!(repository.binlog_end(&log).unwrap(), None);
    let mut first = Server::new(100);
    first.rows(110, 5000);
    let end = push(&first, &repository, begin_of(1)).unwrap();
    assert_eq!((end.file, end.offset), (1, first.bytes.len() as u64));
    // The same again is there already. Another one who has seen more finds where to go on.
    assert_eq!(push(&first, &repository, begin_of(1)).unwrap(), end);
    first.rows(109, 70);
    first.rows(120, 70);
    first.close();
    assert_eq!(push(&first, &repository, begin_of(1)).unwrap(), end);
    push(&first, &repository, end).unwrap();
    let second = Server::new(121);
    push(&second, &repository, begin_of(2)).unwrap();

    let parts = repository.binlog_parts().unwrap().remove(&log).unwrap();
    let facts = repository.binlog_chain(&parts).unwrap();
    assert_eq!(
        facts.iter().map(|facts| facts.times).collect::<Vec<_>>(),
        [Some((110, 110)), Some((109, 120)), None]
    );
    let contents = parts.iter().map(|part| repository.binlog_part(part).unwrap().1);
    let contents: Vec<Vec<u8>> = contents.collect();
    assert_eq!(contents[..2].concat(), first.bytes);
    let listed = repository.binlogs(&[]).unwrap().remove(0);
    assert_eq!((listed.parts, listed.last_s, listed.until.file), (3, Some(120), 2));
    assert_eq!(listed.until.offset, second.bytes.len() as u64);

    // A backup in which the log ends after the first transaction can be restored to points behind that.
    let mut backup = ended(BinlogPlace { file: 1, offset: end.offset }, scan(&first.bytes).unwrap().0.mark());
    (backup.binlogs[0].last_s, backup.origin.created) = (Some(110), 115);
    let line = repository.binlogs(&[backup.clone()]).unwrap().remove(0).lines.remove(0);
    let reach = |second: f64| line.reaches_time((second * 1e6) as i64);
    assert_eq!((line.since_s, line.until_s), (110, Some(120)));
    assert_eq!([reach(110.0), reach(110.5), reach(120.0)], [Reach::TooEarly, Reach::Within, Reach::Within]);
    // Another transaction of that second may follow.
    assert_eq!(reach(120.5), Reach::TooLate);
    backup.binlogs[0].mark ^= 1;
    assert!(repository.binlogs(&[backup]).unwrap()[0].lines.is_empty());

    // Another server's log under the same name is refused, and what is there stays.
    let mut other = Server::new(555);
    other.rows(556, 10);
    let refused = push(&other, &repository, begin_of(1)).unwrap_err();
    assert!(
        matches!(refused, Error::Exists(_)) && refused.to_string().contains("shop at 000001:0"),
        "{refused}"
    );
    assert_eq!(repository.binlog_part(&parts[0]).unwrap().1, contents[0]);
    // Parts of more than the bound are refused, as are empty ones.
    let too_long = vec![0; BINLOG_PART_BYTES_MAX + 1];
    for content in [too_long.as_slice(), &[]] {
        let part = BinlogPart {
            log: &log,
            place: begin_of(3),
            mark: 1,
            times: None,
            is_last: false,
            is_inside: false,
            content,
        };
        assert!(repository.push_binlog(&part).is_err());
    }
}

#[test]
fn gaps_damage_and_parts_that_were_swapped_are_told() {
    let (memory, repository) = repository();
    let log = shop();
    for file in 1..=3 {
        let mut server = Server::new(100 * file);
        let mut end = push(&server, &repository, begin_of(file)).unwrap();
        for n in 0..3 {
            server.rows(100 * file + n, 100);
            end = push(&server, &repository, end).unwrap();
        }
        // The server was killed: nothing says that the file ends, but that the next one is there.
        let last = push_as(&server, &repository, end, true).unwrap();
        assert_eq!((last.end, last.next()), (end, begin_of(file + 1)));
    }
    let parts = repository.binlog_parts().unwrap().remove(&log).unwrap();
    assert_eq!(parts.len(), 15);
    repository.binlog_chain(&parts).unwrap();
    let mut checked = Checked::default();
    repository.verify_logs(1.0, 1, &mut checked, &mut |_| {}).unwrap();
    assert_eq!((checked.log_files, checked.damages), (15, 0));
    // Without any one part but the first and the last, the log has a gap, and the part that is missing is named.
    for gap in 1..14 {
        let mut some = parts.clone();
        let missing = some.remove(gap);
        let told = repository.binlog_chain(&some);
        assert!(
            matches!(&told, Err(Error::Missing { object }) if *object == missing.path()),
            "{gap}: {told:?}"
        );
    }
    let place = |n: usize| object_store::path::Path::from(parts[n].path());
    let get = |n: usize| {
        repository.store.wait(async {
            memory.get_opts(&place(n), Default::default()).await.unwrap().bytes().await.unwrap()
        })
    };
    let put = |n: usize, bytes: Bytes| {
        repository.store.wait(memory.put_opts(&place(n), bytes.into(), Default::default())).unwrap();
    };
    let (one, other) = (get(1), get(2));
    put(1, other);
    let told = repository.binlog_part(&parts[1]).unwrap_err().to_string();
    assert!(told.contains("under another name"), "{told}");
    for at in [0, 50, one.len() - 1] {
        let mut damaged = one.to_vec();
        damaged[at] ^= 4;
        put(1, damaged.into());
        assert!(matches!(repository.binlog_part(&parts[1]), Err(Error::Damaged { .. })), "{at}");
    }
    let mut checked = Checked::default();
    repository.verify_logs(1.0, 1, &mut checked, &mut |_| {}).unwrap();
    assert!(checked.damages > 0);
    put(1, one);
}

#[test]
fn a_prune_deletes_what_lies_before_the_oldest_backup() {
    let (_memory, repository) = repository();
    let log = shop();
    let mut marks = Vec::new();
    for file in 1..=3 {
        let mut server = Server::new(100 * file);
        marks.push(scan(&server.bytes).unwrap().0.mark());
        let mut end = push(&server, &repository, begin_of(file)).unwrap();
        for n in 0..3 {
            server.rows(100 * file + n, 100);
            end = push(&server, &repository, end).unwrap();
        }
    }
    let left = || repository.binlog_parts().unwrap().remove(&log).unwrap();
    let all = left();
    let with = |places: &[(u64, BinlogPlace, u64)], known: bool| {
        let change = &mut |state: &mut State| {
            state.backups = places
                .iter()
                .map(|(number, place, mark)| {
                    let mut backup = crate::samples::state().backups.remove(0);
                    backup.number = *number;
                    backup.origin = Origin { pool: Guid([1; 16]), number: *number, created: *number };
                    backup.root.clear();
                    backup.clusters = known.then(Vec::new);
                    backup.binlogs =
                        vec![BinlogEnd { data: ".".into(), place: *place, mark: *mark, last_s: None }];
                    backup
                })
                .collect();
            Ok(())
        };
        repository.commit(change).unwrap();
    };
    let inside = BinlogPlace { offset: all[5].place.offset + 1, ..all[5].place };
    // Of a log of another server with files of the same number nothing goes, nor if databases are unknown.
    let floor = |mark| {
        crate::binlog::unneeded(&repository.binlog_marks().unwrap(), &[ended(inside, mark)], &[], true)
    };
    assert!(floor(marks[1] ^ 1).doomed.is_empty());
    let doomed = floor(marks[1]).doomed;
    assert_eq!(doomed, all[..5]);
    with(&[(1, inside, marks[1])], false);
    let unknown = repository.head().unwrap().state;
    assert!(
        crate::binlog::unneeded(&repository.binlog_marks().unwrap(), &unknown.backups, &[], true)
            .doomed
            .is_empty()
    );
    // Two prunes have to find it.
    with(&[(1, inside, marks[1])], true);
    let state = repository.head().unwrap().state;
    assert_eq!(state.backups[0].binlogs[0].place, inside);
    let first = crate::binlog::unneeded(
        &repository.binlog_marks().unwrap(),
        &state.backups,
        &state.binlog_floors,
        false,
    );
    assert_eq!((first.doomed.len(), first.left, first.floors.len()), (0, 5, 1));
    let second =
        crate::binlog::unneeded(&repository.binlog_marks().unwrap(), &state.backups, &first.floors, false);
    assert_eq!((second.doomed, second.left), (all[..5].to_vec(), 0));
}

/// One damaged head failed each list and each prune of the repository, and whoever archived ended.
#[test]
fn a_part_whose_head_is_damaged_hides_nothing_else_and_is_archived_again() {
    let (memory, repository) = repository();
    let log = shop();
    let mut servers = Vec::new();
    for file in 1..=3 {
        let mut server = Server::new(100 * file);
        let mut end = push(&server, &repository, begin_of(file)).unwrap();
        for n in 0..3 {
            server.rows(100 * file + n, 100);
            end = push_as(&server, &repository, end, n == 2 && file < 3).unwrap().end;
        }
        servers.push(server);
    }
    let mark = |file: usize| scan(&servers[file - 1].bytes).unwrap().0.mark();
    let parts = repository.binlog_parts().unwrap().remove(&log).unwrap();
    assert_eq!(parts.len(), 12);
    let damage = |part: &ArchivedPart| {
        let place = object_store::path::Path::from(part.path());
        let bytes = Bytes::from(vec![7; 99]);
        repository.store.wait(memory.put_opts(&place, bytes.into(), Default::default())).unwrap();
    };
    let doomed = |backups: &[Backup]| {
        crate::binlog::unneeded(&repository.binlog_marks().unwrap(), backups, &[], true).doomed.len()
    };
    let (early, late) = (ended(parts[5].place, mark(2)), ended(parts[9].place, mark(3)));
    damage(&parts[4]);
    assert_eq!((doomed(std::slice::from_ref(&early)), doomed(std::slice::from_ref(&late))), (5, 9));
    let listed = repository.binlogs(std::slice::from_ref(&early)).unwrap().remove(0);
    assert_eq!((listed.parts, listed.last_s, listed.lines.len()), (12, Some(302), 1));
    // If nothing tells whose file it is, what a backup may need of it stays; of a log that no other backup is known to
    // have, all stays.
    parts[5..8].iter().for_each(damage);
    assert_eq!((doomed(&[early.clone(), late.clone()]), doomed(std::slice::from_ref(&early))), (5, 0));
    assert!(repository.binlogs(&[early]).unwrap()[0].lines.is_empty());

    // Who archives goes on before the damage, and mends it.
    assert_eq!(repository.binlog_end(&log).unwrap().unwrap().end.file, 3);
    damage(&parts[11]);
    let end = repository.binlog_end(&log).unwrap().unwrap();
    assert_eq!(end.next(), parts[11].place);
    assert_eq!(repository.binlogs(&[late]).unwrap()[0].until, parts[11].place);
    let whole = push(&servers[2], &repository, end.next()).unwrap();
    assert_eq!(repository.binlog_end(&log).unwrap().unwrap().end, whole);
    assert_eq!(push(&servers[2], &repository, end.next()).unwrap(), whole);
    // A part that would leave a gap, or overlap the next one, takes no other one's place.
    damage(&parts[9]);
    let refused = push(&servers[2], &repository, parts[9].place);
    assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
}

/// Returns a backup in which the log ends there.
fn ended(place: BinlogPlace, mark: u64) -> Backup {
    let mut backup = crate::samples::state().backups.remove(0);
    backup.binlogs = vec![BinlogEnd { data: ".".into(), place, mark, last_s: None }];
    backup
}
