//! docs/BACKUP-FORMAT.md against the code: the examples of each table, one behind the other, are what the code writes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use xxhash_rust::xxh3::xxh3_64;

use crate::remote::{frame, fuzzing as messages};
use crate::repository::Config;
use crate::samples;
use crate::{chunk, commit, limits};

const FORMAT: &str = include_str!("../../../docs/BACKUP-FORMAT.md");

/// The rows of a table, as cells.
fn table(name: &str) -> Vec<Vec<&'static str>> {
    let start = FORMAT.find(&format!("<!-- table: {name} -->")).unwrap_or_else(|| panic!("no table {name}"));
    let lines = FORMAT[start..].lines().skip(3).take_while(|line| line.starts_with('|'));
    lines
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The table's examples are these bytes, each as long as its size says.
fn assert_table(name: &str, bytes: &[u8]) {
    let mut at = 0;
    for row in table(name) {
        let (size, what, example) = (row[0], row[1], row[2]);
        let len: usize =
            size.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{name}: size of {what}"));
        let found = bytes.get(at..at + len).map(hex).unwrap_or_default();
        assert_eq!(found, example, "{name}: {what}");
        at += len;
    }
    assert_eq!(at, bytes.len(), "{name} goes on: {}", hex(&bytes[at..]));
}

#[test]
fn tables_are_what_is_written() {
    let described = Config::sample().encode();
    assert_table("repository", &described);
    assert_eq!(xxh3_64(&described[..described.len() - 8]).to_le_bytes(), described[described.len() - 8..]);
    assert_table("pack", &samples::pack());
    assert_table("chunk", &chunk::encode(&samples::entries()));
    assert_table("root", &samples::root().encode());
    assert_table("commit", &commit::encode_body(b"random 16 bytes.", 1, &samples::state()));
    assert_table("greeting", &frame::greeting("1.2"));
    assert_table(
        "requests",
        &messages::whole(messages::some_requests().iter().zip(0..).map(|(one, number)| one.encode(number))),
    );
    assert_table(
        "answers",
        &messages::whole(messages::some_answers().iter().zip(0..).map(|(one, number)| one.encode(number))),
    );
    assert_table("log head", &samples::wal_head().encode());
    assert_table("log object", &samples::wal_object());
    let codes: Vec<_> = table("kinds").iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(codes.len(), 8);
    for (number, kind) in
        [(1, crate::block::Kind::Records), (4, crate::block::Kind::Root), (8, crate::block::Kind::Wal)]
    {
        assert_eq!((codes[number - 1].0, kind as usize), (number.to_string().as_str(), number));
    }
    for row in table("limits") {
        let found = match row[0] {
            "PACK_BYTES" => limits::PACK_BYTES as u64,
            "PACK_BYTES_MAX" => limits::PACK_BYTES_MAX,
            "BLOCK_BYTES" => limits::BLOCK_BYTES as u64,
            "BLOCK_BYTES_MAX" => limits::BLOCK_BYTES_MAX as u64,
            "CHUNK_ENTRIES" => limits::CHUNK_ENTRIES as u64,
            "CHUNK_BYTES" => limits::CHUNK_BYTES as u64,
            "ROOT_PART_BYTES" => limits::ROOT_PART_BYTES as u64,
            "COMMIT_BYTES_MAX" => limits::COMMIT_BYTES_MAX as u64,
            "WAL_BLOCK_BYTES" => limits::WAL_BLOCK_BYTES as u64,
            "WAL_FILE_BYTES_MAX" => limits::WAL_FILE_BYTES_MAX as u64,
            "BINLOG_PART_BYTES_MAX" => limits::BINLOG_PART_BYTES_MAX as u64,
            "WAL_MODEL_BYTES_MAX" => limits::WAL_MODEL_BYTES_MAX as u64,
            "WAL_HEAD_BYTES_MAX" => limits::WAL_HEAD_BYTES_MAX as u64,
            other => panic!("{other} is no limit"),
        };
        assert_eq!(row[1], found.to_string(), "{}", row[0]);
    }
}

/// Seeds of all decoders with bytes changed, taken out and repeated: told or harmless. PAGEFOLD_MUTATIONS says how many of each.
#[test]
fn hostile_objects_are_told() {
    use crate::fuzzing;
    type Decoder = (fn(&[u8]) -> bool, fn() -> Vec<Vec<u8>>);
    let decoders: [Decoder; 8] = [
        (fuzzing::pack, fuzzing::pack_seeds),
        (fuzzing::manifest, fuzzing::manifest_seeds),
        (fuzzing::root, fuzzing::root_seeds),
        (fuzzing::commit, fuzzing::commit_seeds),
        (fuzzing::frames, fuzzing::frames_seeds),
        (fuzzing::wal_head, fuzzing::wal_head_seeds),
        (fuzzing::wal, fuzzing::wal_seeds),
        (fuzzing::wal_block, fuzzing::wal_block_seeds),
    ];
    let count = std::env::var("PAGEFOLD_MUTATIONS").map_or(5000, |count| count.parse().unwrap());
    let mut state = 1_u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) as usize % bound.max(1)
    };
    for (decode, seeds) in decoders {
        let seeds = seeds();
        assert!(seeds.iter().all(|seed| decode(seed)));
        for round in 0..count {
            let mut bytes = seeds[round % seeds.len()].clone();
            for _ in 0..=below(4) {
                let at = below(bytes.len());
                match below(5) {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, below(256) as u8),
                    2 => drop(bytes.drain(at..(at + below(9)).min(bytes.len()))),
                    3 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][below(5)],
                    _ if !bytes.is_empty() => bytes[at] ^= 1 << below(8),
                    _ => {}
                }
            }
            decode(&bytes);
        }
    }
}
