//! Damaged, swapped and truncated objects.

use pagefold_backup::{Error, InitOptions, Repository, Secret, Seen, Store};

use super::bench::{BeforeCommit, Bench, Chance, PAGE, create, noise, pool, restore, write};

#[test]
fn damaged_swapped_truncated_and_replayed_objects_are_told() {
    for secret in [None, Some("horse")] {
        let bench = Bench::new(40);
        let repository = bench.init(secret);
        let one = bench.snapshot("one");
        create(&repository, &bench.stream(&one, None)).unwrap();
        write(&*bench.pool.open_dataset("db").unwrap(), 3, 1, &noise(12, PAGE as usize));
        let two = bench.snapshot("two");
        create(&repository, &bench.stream(&two, Some(&one))).unwrap();
        let expected = restore(&repository, "2", None).unwrap();
        let objects = bench.objects();
        // The description has to be opened each time, which takes Argon2id: it comes once.
        let opened = || {
            Repository::open(
                bench.store(),
                Seen::default(),
                secret.map(|text| Secret::new(text.into()).unwrap()).as_ref(),
            )
        };
        let outcome = |repository: &Repository| match restore(repository, "2", None) {
            Ok(stream) => assert!(stream == expected, "restored wrong"),
            Err(
                Error::Damaged { .. } | Error::Missing { .. } | Error::Unsupported(_) | Error::NotFound(_),
            ) => {}
            Err(error) => panic!("told as something else: {error}"),
        };
        let mut told = 0;
        for (name, bytes) in objects.iter().filter(|(name, _)| !name.ends_with("repository")) {
            let places = (0..12).map(|at| at * bytes.len() / 12);
            let flipped = places.clone().map(|at| {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << (at % 8);
                bytes
            });
            let cut = places.map(|at| bytes[..at].to_vec());
            let other = objects.iter().filter(|(other, _)| *other != name).map(|(_, bytes)| bytes.clone());
            for bytes in flipped.chain(cut).chain(other) {
                bench.set(name, Some(&bytes));
                outcome(&repository);
                let all = repository.backups();
                let found = all.and_then(|all| repository.verify(&all, 1.0, 0, &mut |_| {}));
                let checked = repository.check();
                let is_told = !matches!((&found, &checked), (Ok(found), Ok(checked)) if found.damages + checked.damages == 0);
                told += usize::from(is_told);
            }
            bench.set(name, None);
            outcome(&repository);
            bench.set(name, Some(bytes));
        }
        assert!(told > 60, "{told}");
        let name = objects.keys().find(|name| name.ends_with("repository")).unwrap();
        // Without its copy nobody knows the repository, or its key.
        let copy = format!("{name}-copy");
        bench.set(&copy, None);
        for at in 0..objects[name].len() {
            let mut bytes = objects[name].clone();
            bytes[at] ^= 1;
            bench.set(name, Some(&bytes));
            assert!(opened().is_err());
        }
        bench.set(name, Some(&objects[name]));
        bench.set(&copy, Some(&objects[&copy]));
        outcome(&opened().unwrap());
        let wrong = Secret::new(b"cow".to_vec()).unwrap();
        let error = Repository::open(bench.store(), Seen::default(), Some(&wrong)).err().unwrap();
        assert!(matches!(error, Error::Key(_)), "{error}");
        let none = Repository::open(bench.store(), Seen::default(), None);
        assert_eq!(none.is_err(), secret.is_some());
        if secret.is_some() {
            assert!(objects.values().all(|bytes| !bytes.windows(4).any(|part| part == b"row ")));
        }
    }
}

/// PAGEFOLD_DAMAGES says how many. An object is changed in some bytes, cut, swapped with another one, replaced by an older one, or taken away; half
/// of the time a restore is under way on top of what is there. What comes back is right, or it is told.
#[test]
fn damaged_by_the_thousand_and_nothing_comes_back_wrong() {
    let count: u64 = std::env::var("PAGEFOLD_DAMAGES").map_or(300, |count| count.parse().unwrap());
    let (mut told, mut harmless) = (0, 0);
    for secret in [None, Some("horse")] {
        let bench = Bench::new(60);
        let repository = bench.init(secret);
        let mut last: Option<String> = None;
        for number in 0..4_u64 {
            write(&*bench.pool.open_dataset("db").unwrap(), 3, number, &noise(number + 12, PAGE as usize));
            let path = bench.snapshot(&format!("s{number}"));
            create(&repository, &bench.stream(&path, last.as_deref())).unwrap();
            last = Some(path);
        }
        let expected =
            [restore(&repository, "4", None).unwrap(), restore(&repository, "4", Some("2")).unwrap()];
        let objects = bench.objects();
        let names: Vec<&String> = objects.keys().filter(|name| !name.ends_with("repository")).collect();
        let mut chance = Chance(7);
        for round in 0..count / 2 {
            let name = names[chance.below(names.len() as u64) as usize];
            let other = names[chance.below(names.len() as u64) as usize];
            let mut bytes = objects[name].clone();
            let mut also = None;
            match chance.below(5) {
                0 => bytes.truncate(chance.below(bytes.len() as u64) as usize),
                1 => {
                    also = Some((other, bytes));
                    bytes = objects[other].clone();
                }
                2 => bytes.clone_from(&objects[other]),
                _ => {
                    for _ in 0..=chance.below(3) {
                        let at = chance.below(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << chance.below(8);
                    }
                }
            }
            bench.set(name, (chance.below(20) > 0).then_some(&bytes[..]));
            if let Some((other, bytes)) = &also {
                bench.set(other, Some(bytes));
            }
            let which = (round % 2) as usize;
            match restore(&repository, "4", [None, Some("2")][which]) {
                Ok(stream) => {
                    assert!(
                        stream == expected[which],
                        "round {round}: {name} was damaged, and something else came back"
                    );
                    harmless += 1;
                }
                Err(
                    Error::Damaged { .. }
                    | Error::Missing { .. }
                    | Error::Unsupported(_)
                    | Error::NotFound(_),
                ) => told += 1,
                Err(error) => panic!("round {round}: {name}: told as something else: {error}"),
            }
            for name in [Some(name), also.map(|(other, _)| other)].into_iter().flatten() {
                bench.set(name, Some(&objects[name]));
            }
        }
        assert!(restore(&repository, "4", None).unwrap() == expected[0]);
    }
    println!("{count} damaged objects: {told} told, {harmless} of which nothing was needed");
    assert!(told >= count / 10, "{told}");
}

#[test]
fn a_lost_commit_hides_none_behind_it() {
    let bench = Bench::new(20);
    let repository = bench.init(None);
    for name in ["one", "two", "three"] {
        let snapshot = bench.snapshot(name);
        create(&repository, &bench.stream(&snapshot, None)).unwrap();
    }
    let objects = bench.objects();
    let four = bench.snapshot("four");
    let stream = bench.stream(&four, None);
    let stranger = || Repository::open(bench.store(), Seen::default(), None).unwrap();
    let name_of =
        |number: u64| objects.keys().find(|name| name.ends_with(&format!("{number:016x}"))).unwrap();
    // The newest one is 3; a machine that has not seen it tries 1, 3 and 7.
    let name = name_of(1);
    bench.set(name, None);
    let missing = |error: Error| match error {
        Error::Missing { object } => assert!(name.ends_with(&object), "{object}"),
        error => panic!("told as something else: {error}"),
    };
    // Readers find the newest one all the same; nothing is written.
    assert_eq!(stranger().backups().unwrap().len(), 3);
    restore(&stranger(), "3", None).unwrap();
    let told = stranger().check().unwrap();
    assert!(
        told.told.iter().any(|damage| damage.what.contains(&format!("{:016x} is missing", 1))),
        "{told:?}"
    );
    missing(create(&stranger(), &stream).unwrap_err());
    missing(stranger().prune(None, true, false).unwrap_err());
    // Without a copy of it, a repair takes its number, and writers go on.
    assert_eq!(stranger().repair_log().unwrap().len(), 1);
    assert_eq!(create(&stranger(), &stream).unwrap().backup.number, 4);
    let after = bench.objects();
    after.keys().filter(|name| !objects.contains_key(*name)).for_each(|name| bench.set(name, None));
    bench.set(name, Some(&objects[name]));
    // One that the newest one does not hide behind costs nothing, and is told.
    bench.set(name_of(2), None);
    assert_eq!(stranger().backups().unwrap().len(), 3);
    assert_eq!(stranger().check().unwrap().damages, 1);
    bench.set(name_of(2), Some(&objects[name_of(2)]));
    assert_eq!(bench.objects(), objects);
}

#[test]
fn what_has_lost_its_description_is_not_made_anew() {
    let bench = Bench::new(20);
    let repository = bench.init(None);
    let one = bench.snapshot("one");
    create(&repository, &bench.stream(&one, None)).unwrap();
    let objects = bench.objects();
    let name = objects.keys().find(|name| name.ends_with("repository")).unwrap();
    let copy = format!("{name}-copy");
    bench.set(name, None);
    let error = Repository::init(bench.store(), Seen::default(), &InitOptions::default()).err().unwrap();
    assert!(matches!(error, Error::Exists(_)), "{error}");
    bench.set(&copy, None);
    let error = Repository::open(bench.store(), Seen::default(), None).err().unwrap();
    assert!(matches!(&error, Error::Missing { object } if object == "repository"), "{error}");
    let error = Repository::init(bench.store(), Seen::default(), &InitOptions::default()).err().unwrap();
    assert!(matches!(error, Error::Exists(_)), "{error}");
    bench.set(name, Some(&objects[name]));
    bench.set(&copy, Some(&objects[&copy]));
    assert_eq!(bench.objects(), objects);
}

#[test]
fn a_damaged_description_is_read_from_its_copy_and_written_anew() {
    for secret in [None, Some("horse")] {
        let bench = Bench::new(20);
        let repository = bench.init(secret);
        create(&repository, &bench.stream(&bench.snapshot("one"), None)).unwrap();
        let secret = secret.map(|text| Secret::new(text.into()).unwrap());
        let open = || Repository::open(bench.store(), Seen::default(), secret.as_ref()).unwrap();
        let objects = bench.objects();
        let name = objects.keys().find(|name| name.ends_with("repository")).unwrap();
        let copy = format!("{name}-copy");
        let mut version = objects[name].clone();
        version[6] ^= 2;
        for (one, bytes) in [(name, Some(version)), (name, None), (&copy, Some(b"no copy".to_vec()))]
            .into_iter()
            .chain(damaged(&objects[name]).into_iter().map(|bytes| (name, Some(bytes))))
        {
            bench.set(one, bytes.as_deref());
            let repository = open();
            assert_eq!(repository.backups().unwrap().len(), 1);
            restore(&repository, "1", None).unwrap();
            assert_eq!(repository.check().unwrap().damages, 1);
            assert_eq!(repository.repair_description().unwrap().len(), 1);
            assert_eq!(open().check().unwrap().damages, 0);
            assert_eq!(bench.objects(), objects);
        }
        // A repository of the first versions has no copy, which is no damage.
        bench.set(&copy, None);
        assert_eq!(open().check().unwrap().damages, 0);
        assert_eq!(open().repair_description().unwrap().len(), 1);
        assert_eq!(bench.objects(), objects);
    }
}

/// Returns an object as damage leaves it: a bit flipped, empty, cut.
fn damaged(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut flipped = bytes.to_vec();
    flipped[bytes.len() / 2] ^= 4;
    vec![flipped, Vec::new(), bytes[..bytes.len() - 1].to_vec()]
}

#[test]
fn a_damaged_newest_commit_costs_what_it_added_and_is_repaired() {
    for secret in [None, Some("horse")] {
        let bench = Bench::new(20);
        let folder = tempfile::tempdir().unwrap();
        let repository = bench.init(secret);
        for name in ["one", "two", "three"] {
            write(&*bench.pool.open_dataset("db").unwrap(), 3, 1, &noise(name.len() as u64, PAGE as usize));
            create(&repository, &bench.stream(&bench.snapshot(name), None)).unwrap();
        }
        let expected = restore(&repository, "2", None).unwrap();
        let secret = secret.map(|text| Secret::new(text.into()).unwrap());
        let open = |seen: Seen| Repository::open(bench.store(), seen, secret.as_ref()).unwrap();
        // This machine has seen the newest one; the other one has not.
        let seen = Seen { folder: Some(folder.path().into()) };
        assert_eq!(open(seen.clone()).backups().unwrap().len(), 3);
        let objects = bench.objects();
        let name = objects.keys().rfind(|name| name.contains("/log/")).unwrap();
        let late = bench.stream(&bench.snapshot("late"), None);
        for (at, bytes) in damaged(&objects[name]).iter().enumerate() {
            bench.set(name, Some(bytes));
            for seen in [Seen::default(), seen.clone()] {
                let reader = open(seen);
                assert_eq!(reader.backups().unwrap().len(), 2);
                assert!(restore(&reader, "2", None).unwrap() == expected);
                // The backup that it listed is not said to be none.
                let named = |error: Error| match error {
                    Error::Damaged { object, .. } => assert!(name.ends_with(&object), "{object}"),
                    error => panic!("told as something else: {error}"),
                };
                named(restore(&reader, "3", None).unwrap_err());
                assert_eq!(reader.check().unwrap().damages, 1);
                // A commit on top of an older one would undo what may only have been read wrong.
                named(create(&reader, &late).unwrap_err());
                named(reader.prune(None, true, false).unwrap_err());
                named(reader.forget(&[1]).unwrap_err());
            }
            // A writer that began before the repair may build on what a lost prune has deleted.
            let repairer = open(if at % 2 == 0 { Seen::default() } else { seen.clone() });
            assert_eq!(repairer.repair_log().unwrap().len(), 1);
            assert!(repairer.repair_log().unwrap().is_empty());
            for seen in [Seen::default(), seen.clone()] {
                let writer = open(seen);
                assert_eq!(writer.check().unwrap().damages, 0, "{:?}", writer.check().unwrap().told);
                assert!(restore(&writer, "2", None).unwrap() == expected);
            }
            // No number comes twice.
            assert_eq!(create(&open(seen.clone()), &late).unwrap().backup.number, 4);
            open(Seen::default()).prune(None, false, false).unwrap();
            open(Seen::default()).prune(None, false, false).unwrap();
            assert!(restore(&open(Seen::default()), "2", None).unwrap() == expected);
            let after = bench.objects();
            after.keys().filter(|name| !objects.contains_key(*name)).for_each(|name| bench.set(name, None));
            objects.iter().for_each(|(name, bytes)| bench.set(name, Some(bytes)));
            std::fs::remove_dir_all(folder.path()).unwrap();
            assert_eq!(open(seen.clone()).backups().unwrap().len(), 3);
        }
        // A commit that this machine saw, and others came after, costs nothing.
        let sealed = open(seen.clone());
        create(&repository, &late).unwrap();
        bench.set(name, Some(&[]));
        assert_eq!(sealed.backups().unwrap().len(), 4);
        // Without any intact commit nothing is known, and nothing is repaired.
        for name in bench.objects().keys().filter(|name| name.contains("/log/")) {
            bench.set(name, Some(b"damaged"));
        }
        assert!(matches!(open(Seen::default()).backups(), Err(Error::Damaged { .. })));
        assert!(matches!(open(Seen::default()).repair_log(), Err(Error::Damaged { .. })));
        assert!(open(Seen::default()).check().unwrap().damages > 0);
    }
}

#[test]
fn writers_that_began_before_a_repair_are_refused() {
    let bench = Bench::new(20);
    let repository = bench.init(None);
    let one = bench.snapshot("one");
    create(&repository, &bench.stream(&one, None)).unwrap();
    let two = bench.snapshot("two");
    let (memory, open) = (bench.memory.clone(), Repository::open);
    let other = Store::new(memory.clone(), "some/where").unwrap();
    let late = BeforeCommit::store(&bench, move || {
        let other = open(other, Seen::default(), None).unwrap();
        other.prune(None, true, false).unwrap();
        let bench = Bench { memory, pool: pool(9) };
        let newest = bench.objects().into_keys().rfind(|name| name.contains("/log/")).unwrap();
        bench.set(&newest, Some(b""));
        assert_eq!(other.repair_log().unwrap().len(), 1);
    });
    let late = create(&open(late, Seen::default(), None).unwrap(), &bench.stream(&two, None));
    assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
}

#[test]
fn a_new_repository_whose_only_commit_is_damaged_is_repaired() {
    let bench = Bench::new(20);
    let repository = bench.init(None);
    let name = bench.objects().into_keys().rfind(|name| name.contains("/log/")).unwrap();
    bench.set(&name, Some(b""));
    assert!(matches!(repository.backups(), Err(Error::Damaged { .. })));
    assert_eq!(repository.repair_log().unwrap().len(), 1);
    create(&repository, &bench.stream(&bench.snapshot("one"), None)).unwrap();
    assert_eq!(repository.check().unwrap().damages, 0);
}
