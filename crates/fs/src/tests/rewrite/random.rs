//! Random changes of files that are rewritten, beside a model.

use proptest::prelude::*;

use super::super::freeing::{self, P, compare};
use super::super::{Bed, ROOT};
use super::objects;
use crate::{Ended, FsError, FsOptions, Ino, Rewrite, Step};

#[derive(Clone, Debug)]
enum RewriteOp {
    Plain(freeing::FreeOp),
    Begin(usize, u32),
    Step(usize, u8),
    Finish(usize),
    GiveUp(usize),
}

fn op() -> impl Strategy<Value = RewriteOp> {
    prop_oneof![
        8 => freeing::op().prop_map(RewriteOp::Plain),
        2 => (0..2usize, 0..6u32).prop_map(|(f, n)| RewriteOp::Begin(f, 4096 << n)),
        6 => (0..2usize, 1..4u8).prop_map(|(f, n)| RewriteOp::Step(f, n)),
        1 => (0..2usize).prop_map(RewriteOp::Finish),
        1 => (0..2usize).prop_map(RewriteOp::GiveUp),
    ]
}

/// Does a step of a rewrite; returns false if it has ended.
fn go_on(rewrite: &mut Rewrite<'_>) -> bool {
    match rewrite.step().unwrap() {
        Step::More => true,
        Step::Done | Step::Ended(Ended::Moved) => false,
        Step::Ended(why) => panic!("{why:?}"),
    }
}

/// Does the operations before the next crash.
fn run(bed: &Bed, files: [Ino; 2], model: &mut [Vec<u8>; 2], ops: &[RewriteOp]) {
    let mut rewrites = [None, None];
    for op in ops {
        match op {
            RewriteOp::Plain(op) => freeing::step(bed, files, model, op),
            RewriteOp::Begin(f, size) => match bed.fs.rewrite(files[*f], *size) {
                Ok(None) => {}
                Ok(Some(rewrite)) => {
                    assert!(rewrites[*f].is_none());
                    rewrites[*f] = Some(rewrite);
                }
                Err(error) => assert!(matches!(error, FsError::Busy) && rewrites[*f].is_some(), "{error}"),
            },
            RewriteOp::Step(f, n) => {
                for _ in 0..*n {
                    if !rewrites[*f].as_mut().is_some_and(go_on) {
                        rewrites[*f] = None;
                    }
                }
            }
            RewriteOp::Finish(f) => {
                while rewrites[*f].as_mut().is_some_and(go_on) {}
                rewrites[*f] = None;
            }
            RewriteOp::GiveUp(f) => rewrites[*f] = None,
        }
        compare(bed, files, model);
    }
}

proptest! {

    #[test]
    fn rewrites_among_calls_match_plain_bytes(ops in prop::collection::vec(op(), 1..60), few in any::<bool>()) {
        let options = FsOptions {
            recordsize: Some(P as u32),
            free_pages: few.then_some(4),
            piece_bytes: Some(2 * P),
            ..FsOptions::default()
        };
        let mut bed = Bed::with(u64::MAX, options);
        let files = [bed.create(ROOT, "a").ino, bed.create(ROOT, "b").ino];
        let mut model = [Vec::new(), Vec::new()];
        for ops in ops.split(|op| matches!(op, RewriteOp::Plain(freeing::FreeOp::Crash))) {
            run(&bed, files, &mut model, ops);
            bed = bed.crash();
            compare(&bed, files, &model);
        }
        bed.check();
        compare(&bed, files, &model);
        let owned = files.map(|f| bed.fs.object(f).unwrap());
        prop_assert!(objects(&bed).iter().all(|object| owned.contains(object)), "pages of nobody");
        prop_assert!(bed.dataset.values().iter().all(|(key, _)| !(key.object == 0 && key.kind > 3)), "lists are empty");
    }
}
