//! Opens decoders to fuzz targets. Seals and checksums are made to hold, since an enemy can compute them if nothing is
//! encrypted.

use std::sync::OnceLock;

use pagefold_basebackup::segment;
use xxhash_rust::xxh3::xxh3_64;

use crate::archive::timeline::History;
use crate::archive::{model, object};
use crate::binlog::Scan;
use crate::binlog::crafted::Server;
use crate::chunk;
use crate::commit;
use crate::keys::Sealer;
use crate::pack::{
    HEAD_BYTES, PackBuilder, TAIL_BYTES, open_block, parse, seal_name, squeeze, tail_checksum,
};
use crate::repository::Config;
use crate::root::Root;
use crate::samples::{self, PACK, REPOSITORY};

/// Returns a pack whose head, directory and end have checksums that hold, as far as it has these parts.
fn sealed_pack(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let len = out.len();
    if len < HEAD_BYTES + TAIL_BYTES {
        return out;
    }
    let (head, rest) = out.split_at_mut(HEAD_BYTES);
    let (body, sum) = head.split_at_mut(HEAD_BYTES - 8);
    sum.copy_from_slice(&xxh3_64(body).to_le_bytes());
    let (blocks, tail) = rest.split_at_mut(len - HEAD_BYTES - TAIL_BYTES);
    let (tail, sum) = tail.split_at_mut(TAIL_BYTES - 8);
    sum.copy_from_slice(&tail_checksum(PACK, tail).to_le_bytes());
    let directory_bytes = tail.iter().take(4).rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    if let Some(directory) =
        blocks.len().checked_sub(directory_bytes).and_then(|begin| blocks.get_mut(begin..))
        && let Some(end) = directory.len().checked_sub(16)
    {
        let name = seal_name(&REPOSITORY, crate::block::Kind::Directory, &PACK.0, 0);
        let mut sealed = Vec::new();
        let plain = directory.get(..end).unwrap_or_default();
        if Sealer::plain().seal(&name, plain, &mut sealed).is_ok() && sealed.len() == directory.len() {
            directory.copy_from_slice(&sealed);
        }
    }
    out
}

/// Takes a pack apart and opens its blocks; returns true if all of it is right.
pub fn pack(bytes: &[u8]) -> bool {
    let sealer = Sealer::plain();
    let bytes = sealed_pack(bytes);
    let Ok(blocks) = parse(&bytes, &REPOSITORY, PACK, &sealer) else { return false };
    blocks.iter().all(|(kind, block)| {
        let (begin, end) = (block.offset as usize, block.offset as usize + block.len as usize);
        open_block(bytes.get(begin..end).unwrap_or_default(), &REPOSITORY, *kind, block, &sealer).is_ok()
    })
}

/// Seeds of [`pack()`].
pub fn pack_seeds() -> Vec<Vec<u8>> {
    let sealer = Sealer::plain();
    let mut all = PackBuilder::new(&sealer);
    for kind in 1..5 {
        if let (Some(kind), Ok(block)) = (crate::block::Kind::of_block(kind), squeeze(&[kind; 60])) {
            all.push(kind, &block);
        }
    }
    vec![
        samples::pack(),
        all.finish(&REPOSITORY, PACK, &sealer).map(|pack| pack.to_vec()).unwrap_or_default(),
    ]
}

/// Decodes a chunk. Entries that decode must survive being encoded and decoded again.
pub fn manifest(bytes: &[u8]) -> bool {
    let Ok(entries) = chunk::decode(bytes) else { return false };
    let again = chunk::decode(&chunk::encode(&entries));
    assert!(again.is_ok_and(|again| again == entries), "a chunk changes by being encoded");
    true
}

/// Seeds of [`manifest()`].
pub fn manifest_seeds() -> Vec<Vec<u8>> {
    vec![chunk::encode(&samples::entries())]
}

/// Decodes a root. A root that decodes must survive being encoded and decoded again.
pub fn root(bytes: &[u8]) -> bool {
    let Ok(root) = Root::decode(bytes) else { return false };
    let again = Root::decode(&root.encode());
    assert!(again.is_ok_and(|again| again == root), "a root changes by being encoded");
    true
}

/// Seeds of [`root()`].
pub fn root_seeds() -> Vec<Vec<u8>> {
    vec![samples::root().encode()]
}

/// Decodes the body of a commit, and a description whose checksum is made to hold; returns true if either is right.
pub fn commit(bytes: &[u8]) -> bool {
    let mut description = bytes.to_vec();
    if let Some((body, sum)) = description.split_last_chunk_mut::<8>() {
        *sum = xxh3_64(body).to_le_bytes();
    }
    let described = Config::decode(&description).is_ok();
    let Ok((before, state)) = commit::decode_body(bytes) else { return described };
    let again = commit::decode_body(&commit::encode_body(&[0; 16], before, &state));
    assert!(again.is_ok_and(|again| again == (before, state)), "a commit changes by being encoded");
    true
}

/// Decodes the head of an archived file of a log. A head that decodes must survive being encoded and decoded again.
pub fn wal_head(bytes: &[u8]) -> bool {
    let Ok(head) = object::Head::decode(bytes) else { return false };
    let again = object::Head::decode(&head.encode());
    assert!(again.is_ok_and(|again| again == head), "a head changes by being encoded");
    true
}

/// Seeds of [`wal_head()`].
pub fn wal_head_seeds() -> Vec<Vec<u8>> {
    vec![samples::wal_head().encode()]
}

/// Opens an archived file of a log, and reads it as a segment, a history and a binary log, which servers have written;
/// returns true if it is any of these.
pub fn wal(bytes: &[u8]) -> bool {
    let is_object = object::decode(bytes, "wal", &REPOSITORY, &Sealer::plain()).is_ok();
    let is_history = History::parse(9, bytes).is_some();
    let mut scan = Scan::default();
    let is_binlog =
        scan.feed(bytes, &mut |event| assert!(event.begin < event.end)).is_ok() && scan.mark() != 0;
    segment::times(bytes).is_some() || is_history || is_object || is_binlog
}

/// Decodes a block of a log of two pages and a half, coded by a model.
pub fn wal_block(bytes: &[u8]) -> bool {
    model::decode_block(&log_model().model, bytes, LOG_BLOCK_BYTES, "block").is_ok()
}

/// Seeds of [`wal_block()`].
pub fn wal_block_seeds() -> Vec<Vec<u8>> {
    let log = log_pages().concat();
    let mut odd = log.get(..LOG_BLOCK_BYTES).unwrap_or_default().to_vec();
    let encode = |block: &[u8]| model::encode_block(&log_model().model, block).unwrap_or_default();
    let whole = encode(&odd);
    odd.iter_mut().skip(8192).step_by(2).for_each(|byte| *byte = byte.wrapping_mul(31));
    vec![whole, encode(&odd), encode(&vec![0; LOG_BLOCK_BYTES])]
}

const LOG_BLOCK_BYTES: usize = 20 << 10;

fn log_pages() -> Vec<Vec<u8>> {
    pagefold_codec::testing::logs::wal_pages(&mut pagefold_codec::testing::Random::new(1), 8192, 256)
}

/// Returns a model of some log.
fn log_model() -> &'static model::Stored {
    static MODEL: OnceLock<model::Stored> = OnceLock::new();
    #[allow(clippy::expect_used, reason = "the pages are always the same")]
    MODEL.get_or_init(|| model::Kept::learn(&log_pages().concat()).model.expect("a log can be learned from"))
}

/// Seeds of [`wal()`].
pub fn wal_seeds() -> Vec<Vec<u8>> {
    let mut server = Server::new(100);
    server.rows(101, 300);
    server.query(102, "COMMIT");
    server.close();
    vec![
        samples::wal_object(),
        server.bytes,
        b"1\t0/3000028\tno recovery target specified\n\n2\t0/4000000\twhy\n".to_vec(),
    ]
}

/// Reads frames of a client or a serving host; returns true if any was right.
pub fn frames(bytes: &[u8]) -> bool {
    crate::remote::fuzzing::frames(bytes)
}

/// Seeds of [`frames()`].
pub fn frames_seeds() -> Vec<Vec<u8>> {
    crate::remote::fuzzing::seeds()
}

/// Seeds of [`commit()`].
pub fn commit_seeds() -> Vec<Vec<u8>> {
    vec![commit::encode_body(&[1; 16], 9, &samples::state()), Config::sample().encode()]
}
