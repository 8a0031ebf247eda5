//! A differential test of POSIX behaviour: the same system calls on a Pagefold mount (the subject) and on ext4 (the
//! reference), in lockstep, with the same results.
//!
//! One `u64` seed decides a history of calls, so a failure is a number, and is shrunk to the calls that matter. After
//! each call its result, errno and data are compared, and the attributes of all that it touched, before and after;
//! after each history everything in both trees. Histories run side by side in processes of their own, and races of
//! several processes on the same files are judged by what must hold whoever wins.
//!
//! What is not compared, and why, is in docs/TESTING.md.

pub mod coherence;
pub mod found;
pub mod history;
pub mod observe;
pub mod op;
pub mod race;
pub mod run;
pub mod scene;
pub mod shrink;
pub mod side;
pub mod stage;
pub mod walk;
