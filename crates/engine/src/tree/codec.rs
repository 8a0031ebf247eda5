//! Encodes and decodes the stored form of nodes: format version 1.
//!
//! All numbers of more than one byte are little-endian; `varint` is as in the module `varint` and must be in
//! its shortest form. A node is stored as one record; the record layer compresses it and keeps its checksum.
//!
//! Header, 8 bytes:
//!
//! | offset | size | field | content |
//! |---|---|---|---|
//! | 0 | 2 | magic | `PN` |
//! | 2 | 1 | version | 1 |
//! | 3 | 1 | level | 0: leaf; n: branch, whose children are of level n - 1 |
//! | 4 | 4 | count | entries of a leaf, children of a branch; at least 1 |
//!
//! Then `count` entries, without padding. Nothing follows the last.
//!
//! A leaf's entry, keys ascending:
//!
//! | size | field | content |
//! |---|---|---|
//! | varint | step | offset - previous offset, at least 1; or 0: a group starts |
//! | varint | object | only after step 0: object - previous object (first entry: object) |
//! | 1 | kind | only after step 0 |
//! | 1 | type | only after step 0: 0 the group's values are bytes, 1 they are pointers |
//! | varint | offset | only after step 0: the whole offset |
//! | | value | type 0: varint length, then that many bytes, at most `VALUE_BYTES_MAX`; type 1: a pointer |
//!
//! A group is a run of entries with the same object, kind and type, as long as possible: a group never starts
//! where the entry could have continued the previous one.
//!
//! A branch's entry: the first is a pointer alone; the others are a separator, the smallest key that may be
//! below the child, followed by the child's pointer. Separators ascend:
//!
//! | size | field | content |
//! |---|---|---|
//! | varint | step | offset - previous separator's offset, at least 1; or 0: first separator, or another object or kind
//! |
//! | varint | object | only after step 0: object - previous object (first separator: object) |
//! | 1 | kind | only after step 0 |
//! | varint | offset | only after step 0: the whole offset |
//! | | child | a pointer |
//!
//! A pointer, relative to the previous pointer of its group (leaf) or node (branch), or to segment 0, slot 0,
//! length 0 where there is none; `zigzag(d)` is 2d for d >= 0 and -2d - 1 otherwise, differences are modulo
//! 2^64:
//!
//! | size | field | content |
//! |---|---|---|
//! | varint | segment | zigzag(segment - previous segment) |
//! | varint | slot | same segment: zigzag(slot - previous slot); otherwise the slot |
//! | varint | length | zigzag(stored length - previous stored length), in bytes |

use super::Value;
use super::entry::{
    Base, HEADER_BYTES, TYPE_BYTES, TYPE_PAGE, decode_key, decode_ptr, encode_entry, encode_key, encode_ptr,
    same_run,
};
use super::node::{Body, Branch, Child, Leaf, Node};
use super::varint::{NodeReader, Sink};
use crate::limits::{NODE_ENCODED_MAX, NODE_FANOUT_MAX, TREE_LEVELS_MAX, VALUE_BYTES_MAX};
use crate::types::{Key, Ptr};
use crate::{Error, Result};

const MAGIC: [u8; 2] = *b"PN";
const VERSION: u8 = 1;

/// Largest number of children above the target that a branch may have: a failed edit can leave it unsplit.
const BRANCH_EXCESS_MAX: usize = NODE_FANOUT_MAX;

fn header(level: u8, count: usize, capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity);
    out.extend_from_slice(&MAGIC);
    out.push(VERSION);
    out.push(level);
    out.extend_from_slice(&(count as u32).to_le_bytes());
    out
}

/// Returns the stored form of `node`. All of its children have to have been written.
pub(super) fn encode(node: &Node) -> Result<Vec<u8>> {
    match node.body() {
        Body::Leaf(leaf) => {
            let mut out = header(0, leaf.len(), leaf.encoded_bytes());
            let mut previous = None;
            for (key, value) in leaf.entries(0..leaf.len()) {
                encode_entry(&mut out, previous, key, value);
                previous = Some((key, value));
            }
            Ok(out)
        }
        Body::Branch(branch) => encode_branch(branch),
    }
}

fn encode_branch(branch: &Branch) -> Result<Vec<u8>> {
    let mut out = header(branch.level(), branch.len(), branch.len() * 16);
    let mut base = Base::default();
    for i in 0..branch.len() {
        let ptr = branch.child(i).stored_ptr().ok_or_else(|| {
            Error::Invalid("a tree node was to be stored before its children: a bug in the checkpoint".into())
        })?;
        if let Some(separator) = i.checked_sub(1).map(|before| branch.separators()[before]) {
            let previous = i.checked_sub(2).map(|before| branch.separators()[before]);
            match previous {
                Some(before) if same_run(before, separator) => out.varint(separator.offset - before.offset),
                _ => encode_key(&mut out, previous, separator, None),
            }
        }
        encode_ptr(&mut out, base, ptr);
        base = Base::from(ptr);
    }
    Ok(out)
}

/// Builds a node from untrusted bytes that were stored at `ptr`.
///
/// # Errors
/// [`Error::Corrupt`] if the bytes are not a well-formed node; [`Error::Unsupported`] for a node of a later format.
pub(super) fn decode(ptr: Ptr, bytes: &[u8]) -> Result<Node> {
    let damaged = |detail: &str| Error::corrupt(format!("tree node {}", ptr.addr), detail);
    if bytes.len() > NODE_ENCODED_MAX {
        return Err(damaged("longer than a node can be"));
    }
    let Some((head, entries)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(damaged("shorter than its header"));
    };
    let [m0, m1, version, level, c0, c1, c2, c3] = *head;
    if [m0, m1] != MAGIC {
        return Err(damaged("not a tree node"));
    }
    if version != VERSION {
        return Err(Error::Unsupported(format!(
            "tree node {} has format version {version}, this program knows version {VERSION}: use a newer one",
            ptr.addr
        )));
    }
    let count = u32::from_le_bytes([c0, c1, c2, c3]) as usize;
    let mut from = NodeReader::new(entries);
    let body = if level == 0 {
        decode_leaf(&mut from, count).map(Body::Leaf)
    } else {
        decode_branch(&mut from, level, count).map(Body::Branch)
    };
    let body = body.map_err(damaged)?;
    if from.remaining() != 0 {
        return Err(damaged("bytes after the last entry"));
    }
    Ok(Node::new(body))
}

fn decode_leaf(from: &mut NodeReader<'_>, count: usize) -> Result<Leaf, &'static str> {
    // An entry takes at least two bytes, so `count` reserves only a small multiple of what was read.
    if count == 0 || count > from.remaining() / 2 {
        return Err("impossible number of entries");
    }
    let mut leaf = Leaf::with_capacity(count);
    let len_bytes = HEADER_BYTES + from.remaining();
    let mut previous: Option<Key> = None;
    let mut value_type = TYPE_BYTES;
    let mut base = Base::default();
    for _ in 0..count {
        let (key, starts) = decode_key(from, previous, true)?;
        if let Some(starts) = starts {
            if starts > TYPE_PAGE {
                return Err("unknown type of values");
            }
            if previous.is_some_and(|p| same_run(p, key)) && starts == value_type {
                return Err("group starts within itself");
            }
            value_type = starts;
            base = Base::default();
        }
        if value_type == TYPE_PAGE {
            let ptr = decode_ptr(from, base)?;
            base = Base::from(ptr);
            leaf.push_decoded(key, Value::Page(ptr));
        } else {
            let len = from.varint()?;
            if len > VALUE_BYTES_MAX as u64 {
                return Err("value too long");
            }
            leaf.push_decoded(key, Value::Bytes(from.bytes(len)?.into()));
        }
        previous = Some(key);
    }
    leaf.decoded_from(len_bytes - from.remaining());
    Ok(leaf)
}

fn decode_branch(from: &mut NodeReader<'_>, level: u8, count: usize) -> Result<Branch, &'static str> {
    if level >= TREE_LEVELS_MAX {
        return Err("level too high");
    }
    if count == 0 || count > NODE_FANOUT_MAX + BRANCH_EXCESS_MAX {
        return Err("impossible number of children");
    }
    let first = decode_ptr(from, Base::default())?;
    let mut branch = Branch::with_capacity(level, count, Child::clean(first));
    let mut base = Base::from(first);
    let mut previous = None;
    for _ in 1..count {
        let (separator, starts) = decode_key(from, previous, false)?;
        if starts.is_some() && previous.is_some_and(|p| same_run(p, separator)) {
            return Err("separator not in shortest form");
        }
        let ptr = decode_ptr(from, base)?;
        base = Base::from(ptr);
        branch.push(separator, Child::clean(ptr));
        previous = Some(separator);
    }
    Ok(branch)
}
