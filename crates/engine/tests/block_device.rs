//! `FileDevice` on a real block device, whose content is lost:
//!
//! ```text
//! PAGEFOLD_TEST_DEVICE=/dev/loop0 cargo test -p pagefold-engine --test block_device -- --ignored
//! ```

use std::path::PathBuf;

use pagefold_engine::Error;
use pagefold_engine::device::{AlignedBuf, Device, FileDevice, OpenMode};

#[test]
#[ignore = "needs root and PAGEFOLD_TEST_DEVICE, a block device of at least 130 MiB that may be overwritten"]
fn a_block_device_is_written_flushed_discarded_and_locked() {
    let path = PathBuf::from(std::env::var_os("PAGEFOLD_TEST_DEVICE").expect("PAGEFOLD_TEST_DEVICE is set"));
    let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    assert!(device.size_bytes() >= 130 << 20);
    let last = device.size_bytes() - 4096;
    for (offset, durable) in [(0, true), (1 << 20, false), (last, true)] {
        device.write(offset, &AlignedBuf::from_bytes(&[0x5A; 4096]), durable).unwrap();
    }
    device.flush().unwrap();
    let mut requests: Vec<_> = [0, 1 << 20, last].map(|at| (at, AlignedBuf::scratch(4096))).into();
    device.read_many(&mut requests.iter_mut().collect::<Vec<_>>()).unwrap();
    assert!(requests.iter().all(|(_, buf)| buf.iter().all(|&b| b == 0x5A)));
    device.discard(0, 4 << 20).unwrap();
    assert!(device.read(device.size_bytes(), &mut requests[0].1).is_err());

    for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
        let refused = FileDevice::open(&path, mode);
        assert!(matches!(refused, Err(Error::Busy(_))), "{mode:?}: {refused:?}");
        println!("{}", refused.unwrap_err());
    }
    drop(device);
    FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
}
