//! Tests POSIX behaviour by comparison: the same system calls on a Pagefold mount (the subject) and on ext4 (the
//! reference), in lockstep, must have the same results.
//!
//! One `u64` seed decides a history of calls, so a failure is a number, and is shrunk to the calls that matter. After
//! each call its result, errno and data are compared, and the attributes of all files that it touched, from before and
//! after it. After each history all files in both trees are compared. Histories run side by side in processes of their
//! own. Races of several processes on the same files are judged by the properties that hold whoever wins.
//!
//! docs/TESTING.md tells what is not compared, and why.

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
