//! Gives fuzz targets access to the decoders of this module.

use super::Value;
use super::codec::{decode, encode};
use super::node::{Body, Branch, Child, Leaf, Node};
use crate::{Addr, Key, Ptr};

fn ptr(slot: u32) -> Ptr {
    Ptr { addr: Addr::new(5, slot), len_bytes: 3000 + slot }
}

/// Returns stored nodes: leaves of values, of pages and of both, and a branch.
pub fn node_seeds() -> Vec<Vec<u8>> {
    let leaf = |values: u64, pages: u64| {
        let mut leaf = Leaf::with_capacity((values + pages) as usize);
        for n in 0..values {
            leaf.push_decoded(
                Key::new(n / 3, 2, n * 1000),
                Value::Bytes(vec![n as u8; n as usize % 90].into()),
            );
        }
        for n in 0..pages {
            leaf.push_decoded(Key::new(values + n / 20, 7, n * 2), Value::Page(ptr(n as u32)));
        }
        Node::leaf(leaf)
    };
    let mut branch = Branch::with_capacity(1, 40, Child::clean(ptr(0)));
    for n in 1..40 {
        branch.push(Key::new(n / 7, 7, n * 50), Child::clean(ptr(n as u32)));
    }
    let nodes = [leaf(30, 0), leaf(0, 60), leaf(10, 30), Node::branch(branch)];
    nodes.iter().filter_map(|node| encode(node).ok()).collect()
}

/// Decodes a node. Returns whether it was one. Panics if a node that decodes cannot be searched or stored again.
pub fn node(bytes: &[u8]) -> bool {
    let Ok(node) = decode(ptr(1), bytes) else { return false };
    match node.body() {
        Body::Leaf(leaf) => {
            let keys: Vec<Key> = leaf.entries(0..leaf.len()).map(|(key, _)| key).collect();
            assert!(keys.is_sorted_by(|a, b| a < b));
            for (at, key) in keys.iter().enumerate() {
                assert_eq!(leaf.search(key), Ok(at));
            }
        }
        Body::Branch(branch) => {
            assert!(branch.separators().is_sorted_by(|a, b| a < b));
            assert_eq!(branch.separators().len() + 1, branch.len());
        }
    }
    let again = encode(&node).ok();
    assert!(again.is_some_and(|again| decode(ptr(1), &again).is_ok()));
    true
}
