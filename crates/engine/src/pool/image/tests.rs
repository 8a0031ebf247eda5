use super::*;

#[test]
fn what_is_encoded_is_read() {
    for image in [Image::of_a_new_pool(1, 0), Image::sample()] {
        assert_eq!(Image::decode(&image.encode().concat()).unwrap(), image);
    }
}

#[test]
fn damaged_catalogues_are_refused() {
    let bytes = Image::sample().encode().concat();
    for len in 0..bytes.len() {
        assert!(Image::decode(&bytes[..len]).is_err(), "{len} bytes of it");
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0xFF;
        // Whatever it says: no panic, no allocation beyond what is there.
        let _ = Image::decode(&bytes);
    }
}
