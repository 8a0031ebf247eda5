use super::*;
use crate::device::SimDevice;
use crate::limits::DEVICE_BYTES_MIN;

fn label() -> SpareLabel {
    SpareLabel { pool: Guid(*b"0123456789abcdef"), id: 77, name: "tank".into() }
}

#[test]
fn a_label_reads_back_from_any_of_its_places() {
    let sim = SimDevice::new(DEVICE_BYTES_MIN, 1);
    let one = OneDevice::of(&sim);
    assert_eq!(SpareLabel::read(one).unwrap(), None);
    label().take_over(one).unwrap();
    assert_eq!(SpareLabel::read(one).unwrap(), Some(label()));
    assert!(Label::read(one).unwrap_err().to_string().contains("is a spare"));
    one.write(0, &AlignedBuf::zeroed(BLOCK_BYTES)).unwrap();
    assert_eq!(SpareLabel::read(one).unwrap(), Some(label()));
    label().take_back(one).unwrap();
    SpareLabel::prepare(one).unwrap();
    assert_eq!(SpareLabel::read(one).unwrap(), Some(label()), "the first one stays");
}

#[test]
fn what_is_no_label_of_a_spare_is_refused() {
    let block = label().encode();
    assert_eq!(SpareLabel::decode(&block).unwrap(), label());
    for at in [0, 9, 13, 40, 4000] {
        let mut bad = AlignedBuf::from_bytes(&block);
        bad[at] ^= 1;
        assert!(SpareLabel::decode(&bad).is_err(), "byte {at}");
    }
    let other = [&SPARE_MAGIC[..], &(FORMAT_VERSION + 1).to_le_bytes(), &[0; 88]].concat();
    assert!(matches!(SpareLabel::decode(&checksummed_block(&other)), Err(Error::Unsupported(_))));
}
