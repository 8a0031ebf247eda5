use super::*;
use crate::device::SimDevice;

/// Found by the simulator: a power cut tore the first copy, and the next one the others, which were written first.
#[test]
fn a_device_has_a_label_however_often_the_power_fails_while_it_is_written() {
    for seed in 0..500 {
        let mut device = SimDevice::new(200 << 20, seed);
        let label = |draw| Label {
            version: FORMAT_VERSION,
            device: 0,
            incompat: 0,
            readonly_compat: 0,
            pool: Guid([1; 16]),
            guid: Guid([2; 16]),
            size_bytes: 200 << 20,
            created: 0,
            log: Guid([1; 16]),
            formerly: Guid::NONE,
            membership: Membership { draw, ..Membership::alone(0, 1, 0, 5) },
            name: "tank".into(),
        };
        assert!(label(0).offsets().len() > 1);
        label(0).write(OneDevice::of(&device)).unwrap();
        OneDevice::of(&device).flush().unwrap();
        let mut shown = 0;
        for turn in 1..6 {
            device.cut_after(seed * turn % 6);
            let done = label(turn).rewrite(OneDevice::of(&device));
            device = device.crash_seeded(seed + turn);
            let found = Label::read(OneDevice::of(&device)).unwrap().membership.draw;
            assert!(found == turn || found == shown && done.is_err(), "{found} after {shown} and {turn}");
            shown = found;
        }
    }
}

/// A power cut may have left all of a superblock but one sector; the next opening then writes its own superblock
/// into the slot, and the power goes again when it has written that sector only.
#[test]
fn a_torn_superblock_does_not_become_whole_by_the_next_one() {
    let opening = Opening::first(1, 100);
    let root = Located { device: 0, offset: 1 << 21, len_bytes: 77, checksum: 5 };
    let block = |nonce| Superblock {
        generation: 42,
        log: Guid([7; 16]),
        root,
        second: root,
        addr: Addr::new(9, 5),
        exported: false,
        flushed: 3,
        confirmed: true,
        epoch: 0,
        opening: opening.next(41, 1, nonce, 200).unwrap(),
        log_device: Some(LogGroup { number: 2, is_needed: true }),
    };
    let (torn, next) = (block(34), block(35));
    let (torn_bytes, next_bytes) = (torn.encode(), next.encode());
    assert_eq!((Superblock::decode(&torn_bytes), Superblock::decode(&next_bytes)), (Some(torn), Some(next)));
    for sectors in 1..255_u32 {
        let mut mixed = torn_bytes.to_vec();
        for (at, sector) in mixed.chunks_mut(SECTOR_BYTES).enumerate() {
            if sectors >> at & 1 == 1 {
                sector.copy_from_slice(&next_bytes[at * SECTOR_BYTES..][..SECTOR_BYTES]);
            }
        }
        assert_eq!(Superblock::decode(&mixed), None, "sectors {sectors:08b} of the next one");
    }
    // Any byte that differs, and any other length, is told.
    for at in 0..BLOCK_BYTES {
        let mut damaged = torn_bytes.to_vec();
        damaged[at] ^= 1 << (at % 8);
        assert_eq!(Superblock::decode(&damaged), None, "{at}");
    }
    assert_eq!(Superblock::decode(&torn_bytes[..BLOCK_BYTES - 1]), None);
    assert_eq!(Superblock::decode(&[]), None);
}
