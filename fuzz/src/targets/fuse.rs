//! Attacks the decoder of requests from /dev/fuse. An input has a code, the length of the arguments' first piece, and
//! the arguments.

use pagefold_fuse::operation::{Arguments, Operation};

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
    let one = Operation::parse(code, Arguments { head: arguments, tail: None });
    let told = |operation: Result<Operation<'_>, _>| match operation {
        Ok(Operation::BatchForget(list)) => list.iter().count() < usize::MAX,
        Ok(operation) => !format!("{operation:?}").is_empty(),
        Err(_) => false,
    };
    let accepted = told(one);
    if let Some((head, tail)) = arguments.split_at_checked(usize::from(cut)) {
        return told(Operation::parse(code, Arguments { head, tail: Some(tail) })) || accepted;
    }
    accepted
}
