use super::*;

fn head(image: &Image) -> CatalogueHead {
    CatalogueHead::decode(&image.encode_head(&[]).concat()).unwrap()
}

#[test]
fn what_is_encoded_is_read() {
    for image in [Image::of_a_new_pool(1, 0), Image::sample()] {
        assert_eq!(Image::of(head(&image), &image.encode_pages()).unwrap(), image);
    }
    assert_eq!(Image::sample().encode_pages().len(), 2);
}

#[test]
fn damaged_heads_are_refused() {
    let bytes = Image::sample().encode_head(&[]).concat();
    for len in 0..bytes.len() {
        assert!(CatalogueHead::decode(&bytes[..len]).is_err(), "{len} bytes of it");
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0xFF;
        // Whatever the head says, there is no panic, and no allocation beyond what is there.
        let _ = CatalogueHead::decode(&bytes);
    }
}

#[test]
fn damaged_pages_are_refused() {
    let (image, pages) = (Image::sample(), Image::sample().encode_pages());
    let read = |page: u64, bytes: &[u8]| {
        let mut pages = pages.clone();
        pages.insert(page, bytes.to_vec());
        Image::of(head(&image), &pages)
    };
    for (page, bytes) in &pages {
        for len in 1..bytes.len() {
            // The bytes may end after a version.
            assert!(
                read(*page, &bytes[..len]).is_ok_and(|read| read.versions.len() < image.versions.len())
                    || read(*page, &bytes[..len]).is_err(),
                "{len} bytes of page {page}"
            );
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0xFF;
            let _ = read(*page, &bytes);
        }
        let twice = [bytes.as_slice(), bytes].concat();
        assert!(read(*page, &twice).is_err(), "page {page} has versions twice");
    }
}

#[test]
fn dead_lists_belong_to_one() {
    let mut image = Image::sample();
    image.unreferenced.push(UnreferencedImage::List { id: 9 });
    let error = Image::of(head(&image), &image.encode_pages()).unwrap_err();
    assert!(error.to_string().contains("two dead lists"), "{error}");
}
