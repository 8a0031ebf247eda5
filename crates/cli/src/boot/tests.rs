use super::*;

fn machine() -> Machine {
    let pool = |name: &str, devices: &[&str]| Known {
        name: name.into(),
        guid: name.into(),
        devices: devices.iter().map(PathBuf::from).collect(),
        ..Known::default()
    };
    let database = |unit: &str, data: &str| Database { unit: unit.into(), data: data.into() };
    Machine {
        pools: vec![
            pool("tank", &["/dev/sdb", "/dev/mapper/vg-lv"]),
            pool("file", &["/var/lib/my pools/file.pf"]),
        ],
        fstab: fstab::parse(b"tank /srv/tank pagefold nofail\n/var/lib/other.pf /srv/other pagefold\n"),
        databases: vec![
            database("postgresql@15-main.service", "/srv/tank/pg"),
            database("mariadb.service", "/srv/file/db/my"),
            database("postgresql@15-away.service", "/var/lib/postgresql/15/away"),
            database("postgresql@15-near.service", "/srv/tankard/pg"),
        ],
        device_units: true,
    }
}

fn drop_in<'a>(all: &'a DropIns, unit: &str) -> Option<&'a str> {
    all.get(&PathBuf::from(format!("{unit}.d/50-pagefold.conf"))).map(String::as_str)
}

#[test]
fn what_the_generator_writes() {
    let all = machine().generated();
    let devices = "Wants=dev-sdb.device\nAfter=dev-sdb.device\n\
                   Wants=dev-mapper-vg\\x2dlv.device\nAfter=dev-mapper-vg\\x2dlv.device\n";
    let service = drop_in(&all, "pagefold@tank.service").unwrap();
    assert_eq!(service, format!("{MARK}: the pool's devices.\n[Unit]\n{devices}"));
    let file = drop_in(&all, "pagefold@file.service").unwrap();
    assert!(file.ends_with("[Unit]\nRequiresMountsFor=\"/var/lib/my pools/file.pf\"\n"), "{file}");
    let mount = drop_in(&all, "srv-tank.mount").unwrap();
    assert!(mount.ends_with(devices) && mount.contains("After=modprobe@fuse.service\n"), "{mount}");
    assert!(drop_in(&all, "srv-other.mount").unwrap().contains("modprobe"));
    let postgres = drop_in(&all, "postgresql@15-main.service").unwrap();
    assert!(postgres.ends_with("[Unit]\nRequiresMountsFor=/srv/tank/pg\n"), "{postgres}");
    assert_eq!(all.len(), 5, "{all:?}");
}

#[test]
fn a_pool_ends_with_its_only_device_and_not_with_one_of_several() {
    let mut machine = machine();
    machine.pools[0].devices.truncate(1);
    let service = machine.generated();
    let service = drop_in(&service, "pagefold@tank.service").unwrap();
    assert!(service.ends_with("[Unit]\nBindsTo=dev-sdb.device\nAfter=dev-sdb.device\n"), "{service}");
}

#[test]
fn containers_have_no_units_of_devices() {
    let all = Machine { device_units: false, ..machine() }.generated();
    assert_eq!(drop_in(&all, "pagefold@tank.service"), None);
    assert!(!drop_in(&all, "srv-tank.mount").unwrap().contains(".device"));
}

#[test]
fn databases_follow_the_service_that_mounts_their_pool() {
    let served = |pool: &str, dir: &str| ServedDirectory { pool: pool.into(), dir: dir.into() };
    let all = machine().of_services(&[
        served("tank", "/srv"),
        served("file", "/srv/file"),
        served("file", "/srv/file/db"),
    ]);
    let mariadb = drop_in(&all, "mariadb.service").unwrap();
    assert!(
        mariadb.ends_with(
            "Requires=pagefold@file.service\nAfter=pagefold@file.service\nRequiresMountsFor=/srv/file/db/my\n"
        ),
        "{mariadb}"
    );
    assert!(drop_in(&all, "postgresql@15-main.service").unwrap().contains("Requires=pagefold@tank.service"));
    assert_eq!(drop_in(&all, "postgresql@15-away.service"), None);
}

#[test]
fn files_of_ours_are_written_once_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let all = machine().generated();
    let written = write(dir.path(), &all).unwrap();
    assert_eq!(written.len(), all.len());
    assert_eq!(write(dir.path(), &all).unwrap(), Vec::<PathBuf>::new());
    let theirs = dir.path().join("x.service.d");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join(DROP_IN), "[Unit]\n").unwrap();
    assert_eq!(installed(dir.path()).len(), all.len());
}
