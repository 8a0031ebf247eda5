//! Attacks the decoder of requests from /dev/fuse. An input has a code, the length of the arguments' first piece, and
//! the arguments.

use pagefold_fuse::operation::{Arguments, Change, Create, Operation, Query, Span, forgets};

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let codes = (0..64_u8).chain([0xff]);
    let mut seeds = Vec::new();
    for code in codes {
        for head in [0, 8, 16, 24, 40, 88, 128] {
            let mut bytes = vec![code, head];
            bytes.resize(2 + usize::from(head), 0);
            bytes.extend(b"name\0other name\0");
            seeds.push(bytes);
        }
    }
    seeds
}

pub(super) fn request(bytes: &[u8]) -> bool {
    let Some((&[code, cut], arguments)) = bytes.split_first_chunk::<2>() else { return false };
    let code = if code == 0xff { u32::MAX } else { u32::from(code) };
    let one = is_accepted(code, Arguments { head: arguments, tail: None });
    let two = arguments.split_at_checked(usize::from(cut));
    let two = two.is_some_and(|(head, tail)| is_accepted(code, Arguments { head, tail: Some(tail) }));
    one || two
}

/// Returns true if the arguments hold together. Then all bytes that the operation tells of lie among them.
fn is_accepted(code: u32, arguments: Arguments<'_>) -> bool {
    let Ok(operation) = Operation::parse(code, arguments) else { return false };
    let bytes = |span: Span| {
        let bytes = arguments.bytes(span);
        assert_eq!(bytes.len(), span.len() as usize);
        bytes
    };
    match operation {
        Operation::BatchForget(list) => return forgets(bytes(list)).count() < usize::MAX,
        Operation::Write(write) => _ = bytes(write.data),
        Operation::Query(Query::Lookup { name } | Query::GetXattr { name, .. })
        | Operation::Create(Create::Named { name, .. }) => _ = bytes(name),
        Operation::Change(change) => {
            change_spans(change).into_iter().flatten().for_each(|span| _ = bytes(span));
        }
        _ => {}
    }
    !format!("{operation:?}").is_empty()
}

fn change_spans(change: Change) -> [Option<Span>; 2] {
    match change {
        Change::Symlink { name, target: other }
        | Change::Rename { name, new_name: other, .. }
        | Change::SetXattr { name, value: other, .. } => [Some(name), Some(other)],
        Change::MakeNode { name, .. }
        | Change::MakeDir { name, .. }
        | Change::Unlink { name }
        | Change::RemoveDir { name }
        | Change::Link { new_name: name, .. }
        | Change::RemoveXattr { name } => [Some(name), None],
        Change::Attributes(_) | Change::Allocate { .. } | Change::CopyFileRange { .. } => [None, None],
    }
}
