use proptest::prelude::*;

use super::*;
use crate::limits::{NODE_ENCODED_MAX, VALUE_BYTES_MAX};
use crate::tree::codec::{decode, encode};
use crate::tree::node::Branch;
use crate::tree::node::Leaf;
use crate::tree::node::{Body, Node};

fn ptr(segment: u64, slot: u32, len_bytes: u32) -> Ptr {
    Ptr { addr: Addr::new(segment, slot), len_bytes }
}

const AT: fn() -> Ptr = || ptr(9, 9, 100);

fn leaf(entries: &BTreeMap<Key, Value>) -> Node {
    let mut leaf = Leaf::with_capacity(entries.len());
    entries.iter().for_each(|(key, value)| leaf.push(*key, value.clone()));
    Node::leaf(leaf)
}

fn branch(level: u8, first: Ptr, children: &BTreeMap<Key, Ptr>) -> Node {
    let mut branch = Branch::with_capacity(level, children.len() + 1, Child::clean(first));
    children.iter().for_each(|(key, ptr)| branch.push(*key, Child::clean(*ptr)));
    Node::branch(branch)
}

fn entries(node: &Node) -> BTreeMap<Key, Value> {
    let mut entries = BTreeMap::new();
    if let Body::Leaf(leaf) = node.body() {
        leaf.for_each(&mut |key, value| {
            entries.insert(key, value);
        });
    }
    entries
}

fn any_ptr() -> impl Strategy<Value = Ptr> {
    (0u64..1 << 40, 0u32..1 << 24, any::<u32>())
        .prop_filter("zero is no address", |(segment, slot, _)| *segment | u64::from(*slot) != 0)
        .prop_map(|(segment, slot, len_bytes)| ptr(segment, slot, len_bytes))
}

fn any_key() -> impl Strategy<Value = Key> {
    let near = (0u64..3, 0u8..3, 0u64..50).prop_map(|(object, kind, offset)| Key::new(object, kind, offset));
    let far = (any::<u64>(), any::<u8>(), any::<u64>()).prop_map(|(o, k, offset)| Key::new(o, k, offset));
    prop_oneof![near, far]
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any_ptr().prop_map(Value::Page),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Value::Bytes(bytes.into())),
    ]
}

proptest! {
    #[test]
    fn leaves_come_back(map in prop::collection::btree_map(any_key(), any_value(), 1..80)) {
        let bytes = encode(&leaf(&map)).unwrap();
        let back = decode(AT(), &bytes).unwrap();
        prop_assert_eq!(entries(&back), map);
        prop_assert_eq!(encode(&back).unwrap(), bytes);
    }

    #[test]
    fn branches_come_back(
        level in 1u8..10,
        first in any_ptr(),
        children in prop::collection::btree_map(any_key(), any_ptr(), 0..80),
    ) {
        let bytes = encode(&branch(level, first, &children)).unwrap();
        let back = decode(AT(), &bytes).unwrap();
        let Body::Branch(got) = back.body() else { panic!("a branch came back as a leaf") };
        prop_assert_eq!(got.level(), level);
        prop_assert_eq!(got.separators(), &children.keys().copied().collect::<Vec<_>>());
        let ptrs: Vec<_> = got.children().iter().map(|child| child.stored_ptr().unwrap()).collect();
        prop_assert_eq!(ptrs, std::iter::once(first).chain(children.values().copied()).collect::<Vec<_>>());
        prop_assert_eq!(encode(&back).unwrap(), bytes);
    }

    /// Any bytes are an error, or a node that is encoded to the very same bytes.
    #[test]
    fn damage_is_an_error_or_another_node(
        map in prop::collection::btree_map(any_key(), any_value(), 1..30),
        children in prop::collection::btree_map(any_key(), any_ptr(), 0..30),
        as_leaf in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        more in prop::collection::vec(any::<u8>(), 0..3),
    ) {
        let node = if as_leaf { leaf(&map) } else { branch(1, ptr(1, 1, 1), &children) };
        let mut bytes = encode(&node).unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        bytes.extend(more);
        if let Ok(back) = decode(AT(), &bytes) {
            prop_assert_eq!(encode(&back).unwrap(), bytes);
        }
    }

    #[test]
    fn noise_is_an_error(noise in prop::collection::vec(any::<u8>(), 0..200), level in 0u8..3) {
        prop_assert!(decode(AT(), &noise).is_err() || noise.starts_with(b"PN"));
        let mut bytes = b"PN\x01".to_vec();
        bytes.push(level);
        bytes.extend(noise);
        if let Ok(back) = decode(AT(), &bytes) {
            prop_assert_eq!(encode(&back).unwrap(), bytes);
        }
    }
}

/// The bytes of format version 1.
#[test]
fn golden_leaf() {
    let map = BTreeMap::from([
        (Key::new(5, 1, 300), Value::Bytes(b"abc"[..].into())),
        (Key::page(5, 7), Value::Page(ptr(2, 3, 1000))),
        (Key::page(5, 8), Value::Page(ptr(2, 4, 999))),
        (Key::page(5, 200), Value::Page(ptr(1, 130, 1001))),
        (Key::new(6, 1, 0), Value::Bytes(b""[..].into())),
    ]);
    #[rustfmt::skip]
    let expected = [
        b'P', b'N', 1, 0, 5, 0, 0, 0,
        0, 5, 1, 0, 0xAC, 2, 3, b'a', b'b', b'c', // group: object 5, kind 1, bytes; offset 300
        0, 0, 0xF0, 1, 7, 4, 3, 0xD0, 0x0F,       // group: pages from 7: segment +2, slot 3, 1000 bytes
        1, 0, 2, 1,                               // page 8: same segment, slot +1, length -1
        0xC0, 1, 1, 0x82, 1, 4,                   // page 200: segment -1, slot 130, length +2
        0, 1, 1, 0, 0, 0,                         // group: object +1, kind 1, bytes; offset 0, empty
    ];
    assert_eq!(encode(&leaf(&map)).unwrap(), expected);
    assert_eq!(entries(&decode(AT(), &expected).unwrap()), map);
}

/// The bytes of format version 1.
#[test]
fn golden_branch() {
    let children = BTreeMap::from([
        (Key::page(5, 200), ptr(7, 2, 500)),
        (Key::page(5, 201), ptr(7, 1, 500)),
        (Key::new(9, 1, 0), ptr(8, 0, 501)),
    ]);
    #[rustfmt::skip]
    let expected = [
        b'P', b'N', 1, 2, 4, 0, 0, 0,
        14, 1, 0xE8, 7,                    // segment 7, slot 1, 500 bytes
        0, 5, 0xF0, 0xC8, 1, 0, 2, 0,      // from object 5, kind 0xF0, offset 200: slot +1
        1, 0, 1, 0,                        // from offset 201: slot -1
        0, 4, 1, 0, 2, 0, 2,               // from object 9, kind 1, offset 0: segment +1, slot 0, length +1
    ];
    assert_eq!(encode(&branch(2, ptr(7, 1, 500), &children)).unwrap(), expected);
}

#[test]
fn a_page_of_a_run_takes_few_bytes_and_little_memory() {
    let run: BTreeMap<Key, Value> = (0..2000).map(|n| (Key::page(4, n), super::page(n))).collect();
    let node = leaf(&run);
    let encoded = encode(&node).unwrap().len();
    assert!(encoded <= 2000 * 6, "{encoded} bytes stored for 2000 pages");
    let memory = decode(AT(), &encode(&node).unwrap()).unwrap().footprint_bytes();
    assert!(memory <= 2000 * 21, "{memory} bytes of memory for 2000 pages");
}

#[test]
fn limits_are_kept() {
    let long =
        BTreeMap::from([(Key::new(u64::MAX, 3, u64::MAX), Value::Bytes(vec![1; VALUE_BYTES_MAX].into()))]);
    let bytes = encode(&leaf(&long)).unwrap();
    assert!(bytes.len() <= NODE_ENCODED_MAX);
    assert_eq!(entries(&decode(AT(), &bytes).unwrap()), long);
    let too_long = BTreeMap::from([(Key::new(1, 1, 1), Value::Bytes(vec![1; VALUE_BYTES_MAX + 1].into()))]);
    assert!(decode(AT(), &encode(&leaf(&too_long)).unwrap()).is_err());
}

#[test]
fn a_later_version_is_told_from_damage() {
    let mut bytes = encode(&leaf(&BTreeMap::from([(Key::page(1, 1), super::page(1))]))).unwrap();
    bytes[2] = 2;
    let error = decode(AT(), &bytes).err().unwrap();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    bytes[0] = b'X';
    let error = decode(AT(), &bytes).err().unwrap();
    assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains("9:9"), "{error}");
}
