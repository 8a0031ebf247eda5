//! The example for programs that embed the engine works.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../examples/embed.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod embed;

#[test]
fn the_example_runs() {
    let dir = tempfile::tempdir().unwrap();
    embed::run(&dir.path().join("pool.pf")).unwrap();
}
