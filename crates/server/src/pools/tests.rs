use std::fs::File;

use super::*;

const SIZE: u64 = 134 << 20;

#[test]
fn a_device_that_has_left_the_pool_keeps_it_from_nothing_whoever_uses_that() {
    let folder = tempfile::tempdir().unwrap();
    let [device, former] = ["device", "former"].map(|name| {
        let path = folder.path().join(name);
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        path
    });
    let guid = Guid(*b"who has left has");
    let options = CreateOptions { force: false, created: 0, guid };
    pool::create_groups("tank", &[vec![device.clone()]], &[], &options, false).unwrap();
    let devices = vec![former.clone(), device.clone()];
    let known = Known { name: "tank".into(), guid: guid.to_string(), devices, ..Known::default() };
    assert_eq!(
        usable(&known, false, false).unwrap(),
        std::slice::from_ref(&device),
        "it is locked for nothing"
    );
    let user = FileDevice::open(&former, OpenMode::ReadWrite).unwrap();
    assert_eq!(usable(&known, false, false).unwrap(), std::slice::from_ref(&device));
    // Its own devices are another matter.
    let server = FileDevice::open(&device, OpenMode::ReadWrite).unwrap();
    assert!(usable(&known, false, false).is_err());
    drop((user, server));
    std::fs::remove_file(&device).unwrap();
    assert!(usable(&known, false, false).is_err());
}
