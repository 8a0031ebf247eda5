//! Requests that no kernel sends: whatever the bytes are, parsing ends in an operation that keeps its promises, or in a
//! refusal.

use pagefold_fuse::operation::{
    Arguments, Change, Create, Operation, ParseError, Query, Span, Write, forgets,
};
use pagefold_fuse::protocol::{self as p, Opcode};
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn is_name(name: &[u8]) -> bool {
    (1..=p::NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0) && !name.contains(&b'/')
}

fn is_new_name(name: &[u8]) -> bool {
    is_name(name) && name != b"." && name != b".."
}

fn is_range(offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64)
}

/// Checks what callers rely on.
fn keeps_promises(operation: &Operation, arguments: Arguments<'_>) -> bool {
    let bytes = |span: Span| {
        let bytes = arguments.bytes(span);
        assert_eq!(bytes.len(), span.len() as usize);
        bytes
    };
    match *operation {
        Operation::Query(query) => match query {
            Query::Lookup { name } => is_name(bytes(name)),
            Query::GetXattr { name, .. } => (1..=p::NAME_BYTES_MAX).contains(&bytes(name).len()),
            _ => true,
        },
        Operation::Create(Create::Named { name, .. }) => is_new_name(bytes(name)),
        Operation::Read { offset, size, .. } => is_range(offset, u64::from(size)),
        Operation::Write(Write { offset, data, .. }) => is_range(offset, bytes(data).len() as u64),
        Operation::Change(change) => change_keeps_promises(change, bytes),
        Operation::BatchForget(list) => forgets(bytes(list)).count() * 16 == bytes(list).len(),
        _ => true,
    }
}

fn change_keeps_promises<'a>(change: Change, bytes: impl Fn(Span) -> &'a [u8]) -> bool {
    match change {
        Change::Symlink { name, target } => {
            let target = bytes(target);
            is_new_name(bytes(name))
                && (1..=p::LINK_BYTES_MAX).contains(&target.len())
                && !target.contains(&0)
        }
        Change::MakeNode { name, .. }
        | Change::MakeDir { name, .. }
        | Change::Unlink { name }
        | Change::RemoveDir { name } => is_new_name(bytes(name)),
        Change::Link { new_name, .. } => is_new_name(bytes(new_name)),
        Change::Rename { name, new_name, .. } => is_new_name(bytes(name)) && is_new_name(bytes(new_name)),
        Change::SetXattr { name, value, .. } => {
            let (name, value) = (bytes(name), bytes(value));
            !name.is_empty() && name.len() <= p::NAME_BYTES_MAX && value.len() <= p::XATTR_BYTES_MAX as usize
        }
        Change::RemoveXattr { name } => (1..=p::NAME_BYTES_MAX).contains(&bytes(name).len()),
        Change::Allocate { offset, len, .. } => is_range(offset, len),
        Change::CopyFileRange { offset_in, offset_out, len, .. } => {
            is_range(offset_in, len) && is_range(offset_out, len)
        }
        Change::Attributes(_) => true,
    }
}

/// Request codes: every known one often, any other sometimes.
fn opcodes() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0u32..64, 1 => any::<u32>()]
}

/// Bytes that look like arguments: zeros, small numbers, names, noise.
fn arguments() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(vec![0u8; 8]),
        any::<u32>().prop_map(|n| n.to_ne_bytes().to_vec()),
        (0u64..100_000).prop_map(|n| n.to_ne_bytes().to_vec()),
        any::<u64>().prop_map(|n| n.to_ne_bytes().to_vec()),
        "[a-z./]{0,300}".prop_map(|name| [name.as_bytes(), &[0]].concat()),
        proptest::collection::vec(any::<u8>(), 0..64),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn any_bytes_in_one_piece(opcode in opcodes(), bytes in arguments()) {
        let arguments = Arguments { head: &bytes, tail: None };
        if let Ok(operation) = Operation::parse(opcode, arguments) {
            prop_assert!(keeps_promises(&operation, arguments), "{operation:?}");
        }
    }

    #[test]
    fn any_bytes_in_two_pieces(opcode in opcodes(), head in arguments(), tail in arguments()) {
        let arguments = Arguments { head: &head, tail: Some(&tail) };
        if let Ok(operation) = Operation::parse(opcode, arguments) {
            prop_assert!(keeps_promises(&operation, arguments), "{operation:?}");
        }
    }

    /// The two transports deliver the same request in different pieces.
    #[test]
    fn one_piece_or_two_is_the_same(offset in 0u64..1 << 62, data in proptest::collection::vec(any::<u8>(), 0..5000), flags: u32) {
        let head = p::WriteIn { offset, size: data.len() as u32, flags, ..p::WriteIn::default() };
        let joined = [head.as_bytes(), &data].concat();
        let joined = Arguments { head: &joined, tail: None };
        // The ring's area for the structure is longer than the structure.
        let padded = [head.as_bytes(), &[0xAA; 88]].concat();
        let parted = Arguments { head: &padded, tail: Some(&data) };
        let (Some(one), Some(two)) = (write(joined), write(parted)) else {
            return Err(TestCaseError::fail("a write is not parsed"));
        };
        prop_assert_eq!(joined.bytes(one.data), &data);
        prop_assert_eq!(parted.bytes(two.data), &data);
        let figures = |write: &Write| (write.offset, write.flags, write.handle, write.write_back, write.from_cache);
        prop_assert_eq!(figures(&one), figures(&two));
        prop_assert_eq!(figures(&one), (offset, flags, 0, false, true));
    }
}

fn write(arguments: Arguments<'_>) -> Option<Write> {
    match Operation::parse(Opcode::Write as u32, arguments) {
        Ok(Operation::Write(write)) => Some(write),
        _ => None,
    }
}

fn parse(op: Opcode, bytes: &[u8]) -> Result<Operation, ParseError> {
    Operation::parse(op as u32, Arguments { head: bytes, tail: None })
}

#[test]
fn refuses_what_does_not_hold_together() {
    let malformed = |op: Opcode, bytes: &[u8]| matches!(parse(op, bytes), Err(ParseError::Malformed { .. }));
    assert!(malformed(Opcode::Lookup, b""));
    assert!(malformed(Opcode::Lookup, b"no end"));
    assert!(malformed(Opcode::Lookup, b"\0"));
    assert!(malformed(Opcode::Lookup, b"a/b\0"));
    assert!(malformed(Opcode::Unlink, b"..\0"));
    let long = [&[b'x'; 256][..], b"\0"].concat();
    assert_eq!(parse(Opcode::Lookup, &long).map(|_| ()), Err(ParseError::NameTooLong));
    assert!(parse(Opcode::Lookup, &[&[b'x'; 255][..], b"\0"].concat()).is_ok());
    let write = p::WriteIn { size: 5, ..p::WriteIn::default() };
    assert!(malformed(Opcode::Write, &[write.as_bytes(), b"four"].concat()));
    let beyond = p::WriteIn { offset: i64::MAX as u64, size: 1, ..p::WriteIn::default() };
    assert!(malformed(Opcode::Write, &[beyond.as_bytes(), b"x"].concat()));
    let forget = p::BatchForgetIn { count: u32::MAX, dummy: 0 };
    assert!(malformed(Opcode::BatchForget, forget.as_bytes()));
    let time = p::SetattrIn { valid: p::fattr::MTIME, mtimensec: 1_000_000_000, ..p::SetattrIn::default() };
    assert!(malformed(Opcode::Setattr, time.as_bytes()));
    assert!(malformed(Opcode::Init, &[0; 15]));
    assert!(matches!(
        Operation::parse(9, Arguments { head: &[0; 8], tail: None }),
        Err(ParseError::Malformed { .. })
    ));
    assert_eq!(
        Operation::parse(4096, Arguments { head: &[], tail: None }).map(|_| ()),
        Err(ParseError::UnknownOpcode(4096))
    );
}
