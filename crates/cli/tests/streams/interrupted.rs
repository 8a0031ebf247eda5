//! Streams that end early, and are gone on with.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Stdio};

use serde_json::Value;

use super::{
    assert_sound, kill_server, names, receive, received, same_files, send, spawn, token, with_files,
    with_pools,
};
use crate::common::{Sandbox, assert_failure, can_mount, outcome, wait_until};

#[test]
fn what_came_in_part_is_kept_and_gone_on_with() {
    let sandbox = with_pools();
    sandbox.ok(&["snapshot", "tank/db@one"]);
    send(&sandbox, &["tank/db@one"], "one");
    let stream = fs::read(sandbox.path("one")).unwrap();
    fs::write(sandbox.path("part"), &stream[..stream.len() - 9]).unwrap();
    let cut = receive(&sandbox, &["vault/copy"], "part");
    assert_failure(
        &cut,
        1,
        &[
            "cannot receive into vault/copy",
            "it ends too early",
            "what came is kept",
            "pagefold send --resume 1-",
            "pagefold receive --abort vault/copy",
        ],
    );
    assert_eq!(names(&sandbox, "vault"), ["vault"]);
    let partial = sandbox.json(&["list", "-t", "partial"])["partials"][0].clone();
    let token = token(&sandbox, "vault/copy").unwrap();
    assert_eq!(
        (&partial["name"], &partial["receive_resume_token"]),
        (&"vault/copy".into(), &token.clone().into())
    );
    assert_failure(
        &receive(&sandbox, &["vault/copy"], "one"),
        1,
        &["part of another stream", "send --resume"],
    );
    for hidden in ["vault/%copy", "vault/%copy@x"] {
        assert_failure(&sandbox.run(&["snapshot", hidden]), 2, &["is no name"]);
    }
    send(&sandbox, &["--resume", &token], "rest");
    assert_failure(&receive(&sandbox, &["vault/other"], "rest"), 1, &["no part of that was received"]);
    received(&sandbox, &["vault/copy"], "rest");
    assert_eq!(names(&sandbox, "vault"), ["vault", "vault/copy", "vault/copy@one"]);

    // Given up: by itself, and with what it came on top of.
    sandbox.ok(&["snapshot", "tank/db@two"]);
    send(&sandbox, &["-i", "@one", "tank/db@two"], "two");
    let stream = fs::read(sandbox.path("two")).unwrap();
    fs::write(sandbox.path("part"), &stream[..stream.len() - 9]).unwrap();
    // There may be nothing in it but its end.
    if receive(&sandbox, &["vault/copy"], "part").stderr.contains("what came is kept") {
        assert_failure(
            &sandbox.run(&["destroy", "vault/copy@one"]),
            1,
            &["received on top of", "--abort vault/copy"],
        );
        sandbox.ok(&["receive", "--abort", "vault/copy"]);
    }
    assert_failure(&sandbox.run(&["receive", "--abort", "vault/copy"]), 1, &["nothing was received in part"]);
    sandbox.ok(&["destroy", "-r", "vault/copy"]);
    receive(&sandbox, &["vault/copy"], "part");
    let first = fs::read(sandbox.path("one")).unwrap();
    sandbox.ok(&["dataset", "create", "vault/up"]);
    fs::write(sandbox.path("part"), &first[..first.len() - 9]).unwrap();
    receive(&sandbox, &["vault/up/copy"], "part");
    assert_failure(&sandbox.run(&["destroy", "vault/up"]), 1, &["--abort vault/up/copy"]);
    sandbox.ok(&["destroy", "-r", "vault/up"]);
    assert_eq!(sandbox.json(&["list", "-t", "partial"])["partials"], Value::Array(vec![]));
    ["tank", "vault"].iter().for_each(|pool| assert_sound(&sandbox, pool));
}

#[test]
fn a_destroy_that_is_refused_leaves_what_came_in_part() {
    let sandbox = with_pools();
    sandbox.ok(&["snapshot", "tank/db@one"]);
    send(&sandbox, &["tank/db@one"], "one");
    let stream = fs::read(sandbox.path("one")).unwrap();
    fs::write(sandbox.path("part"), &stream[..stream.len() - 9]).unwrap();
    sandbox.ok(&["dataset", "create", "vault/up"]);
    sandbox.ok(&["dataset", "create", "vault/up/side"]);
    receive(&sandbox, &["vault/up/copy"], "part");
    let token_of = || token(&sandbox, "vault/up/copy");
    let kept = token_of();
    assert!(kept.is_some());
    // A dry run and the act itself tell the same.
    let refused = |text: &str| {
        for words in [&["destroy", "-rn", "vault/up"][..], &["destroy", "-r", "vault/up"]] {
            assert_failure(&sandbox.run(words), 1, &[text]);
            assert_eq!(token_of(), kept, "{words:?}");
        }
    };
    sandbox.ok(&["snapshot", "vault/up@held"]);
    sandbox.ok(&["hold", "keep", "vault/up@held"]);
    refused("vault/up@held is held by keep");
    sandbox.ok(&["release", "keep", "vault/up@held"]);
    sandbox.ok(&["clone", "vault/up@held", "vault/elsewhere"]);
    refused("vault/up@held has a clone: vault/elsewhere");
    sandbox.ok(&["destroy", "vault/elsewhere"]);
    if can_mount() {
        sandbox.ok(&["mount", "-o", "takeover=off", "vault/up/side", "a"]);
        assert_failure(&sandbox.run(&["destroy", "-r", "vault/up"]), 1, &["vault/up/side is mounted at"]);
        assert_eq!(token_of(), kept);
        sandbox.ok(&["unmount", "vault"]);
    }
    assert!(sandbox.ok(&["destroy", "-rn", "vault/up"]).contains("would destroy vault/up\n"));
    assert_eq!(token_of(), kept);
    sandbox.ok(&["destroy", "-r", "vault/up"]);
    assert_eq!(sandbox.json(&["list", "-t", "partial"])["partials"], Value::Array(vec![]));
    assert_eq!(names(&sandbox, "vault"), ["vault"]);
    assert_sound(&sandbox, "vault");
}

#[test]
fn what_came_on_top_of_a_snapshot_goes_with_it_and_is_counted() {
    if !can_mount() {
        return;
    }
    let sandbox = with_files();
    send(&sandbox, &["tank/db@one"], "one");
    send(&sandbox, &["-i", "@one", "tank/db@two"], "two");
    received(&sandbox, &["vault/copy"], "one");
    let freed = || {
        let told = sandbox.json(&["destroy", "-rn", "vault/copy"]);
        assert_eq!(told["destroyed"].as_array().map(Vec::len), Some(2), "{told}");
        told["freed_bytes"].as_u64().unwrap()
    };
    let before = freed();
    let stream = fs::read(sandbox.path("two")).unwrap();
    fs::write(sandbox.path("part"), &stream[..stream.len() / 2]).unwrap();
    assert_failure(&receive(&sandbox, &["vault/copy"], "part"), 1, &["what came is kept"]);
    let partial = sandbox.json(&["list", "-t", "partial"])["partials"][0]["used_bytes"].as_u64().unwrap();
    assert!(partial > 100_000 && freed() >= before + partial - 100_000, "{before} {partial} {}", freed());
    assert_failure(&sandbox.run(&["destroy", "-rn", "vault/copy@one"]), 1, &["received on top of"]);
    assert_failure(&sandbox.run(&["destroy", "-r", "vault/copy@one"]), 1, &["received on top of"]);
    assert!(token(&sandbox, "vault/copy").is_some());
    sandbox.ok(&["destroy", "-r", "vault/copy"]);
    assert_eq!(names(&sandbox, "vault"), ["vault"]);
    assert_sound(&sandbox, "vault");
    sandbox.ok(&["unmount", "tank"]);
}

/// A `receive` that was given the first half of a stream.
fn half_received(sandbox: &Sandbox, file: &str) -> Child {
    let stream = fs::read(sandbox.path(file)).unwrap();
    let mut child = spawn(sandbox, &["receive", "vault/copy"], Stdio::piped(), Stdio::piped());
    child.stdin.as_mut().unwrap().write_all(&stream[..stream.len() / 2]).unwrap();
    child
}

#[test]
fn killed_receivers_and_their_servers_leave_what_can_be_gone_on_with() {
    if !can_mount() {
        return;
    }
    let sandbox = with_files();
    send(&sandbox, &["tank/db@one"], "one");
    sandbox.ok(&["mount", "-o", "takeover=off", "vault", "b"]);
    let partial = || sandbox.json(&["list", "-t", "partial", "vault"])["partials"][0]["used_bytes"].as_u64();
    // The client is killed.
    let mut child = half_received(&sandbox, "one");
    wait_until(|| partial().is_some_and(|bytes| bytes > 2_000_000));
    child.kill().unwrap();
    outcome(child);
    let first = token(&sandbox, "vault/copy").unwrap();
    send(&sandbox, &["--resume", &first], "rest");
    assert!(
        fs::metadata(sandbox.path("rest")).unwrap().len() < fs::metadata(sandbox.path("one")).unwrap().len()
    );
    // The server is killed.
    let mut child = half_received(&sandbox, "rest");
    wait_until(|| partial().is_some_and(|bytes| bytes > 5_000_000));
    sandbox.ok(&["sync", "vault"]);
    kill_server(&sandbox, "vault");
    let stdin = child.stdin.take();
    assert_failure(
        &outcome(child),
        1,
        &["lost the server of pool vault", "get receive_resume_token vault/copy"],
    );
    drop(stdin);
    sandbox.ok(&["unmount", "vault"]);
    sandbox.ok(&["mount", "vault", "b"]);
    let second = token(&sandbox, "vault/copy").unwrap();
    assert_ne!(first, second);
    send(&sandbox, &["--resume", &second], "rest");
    // The sender is gone, and its reader knows.
    let stream = fs::read(sandbox.path("rest")).unwrap();
    fs::write(sandbox.path("part"), &stream[..stream.len() - 100]).unwrap();
    assert_failure(&receive(&sandbox, &["vault/copy"], "part"), 1, &["it ends too early", "send --resume"]);
    send(&sandbox, &["--resume", &token(&sandbox, "vault/copy").unwrap(), "tank"], "rest");
    received(&sandbox, &["vault/copy"], "rest");
    sandbox.ok(&["mount", "vault/copy", "c"]);
    assert!(same_files(&sandbox, "a/.pagefold/snapshot/one", "c"));
    sandbox.ok(&["unmount", "-a"]);
    ["tank", "vault"].iter().for_each(|pool| assert_sound(&sandbox, pool));
}

#[test]
fn senders_tell_who_has_gone() {
    if !can_mount() {
        return;
    }
    let sandbox = with_files();
    // This child reads the pool.
    let mut child = spawn(&sandbox, &["send", "tank/db@one"], Stdio::null(), Stdio::piped());
    let mut head = [0; 1000];
    child.stdout.as_mut().unwrap().read_exact(&mut head).unwrap();
    drop(child.stdout.take());
    assert_failure(&outcome(child), 1, &["whoever read it has ended"]);
    // The last mount: the server stays for the stream.
    let mut child = spawn(&sandbox, &["send", "tank/db@two"], Stdio::null(), Stdio::piped());
    child.stdout.as_mut().unwrap().read_exact(&mut head).unwrap();
    let unmounted = sandbox.run(&["unmount", "tank"]);
    assert!(unmounted.status.success() && unmounted.stderr.contains("stays open"), "{}", unmounted.stderr);
    let mut rest = Vec::new();
    child.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
    assert!(outcome(child).status.success());
    let state = || sandbox.json(&["status", "tank"])["pools"][0]["state"].as_str().unwrap().to_owned();
    wait_until(|| state() == "EXPORTED");
    fs::write(sandbox.path("two"), [&head[..], &rest].concat()).unwrap();
    received(&sandbox, &["vault/copy"], "two");
    // Told to go, it does not.
    sandbox.ok(&["mount", "tank/db", "a"]);
    let mut child = spawn(&sandbox, &["send", "tank/db@two"], Stdio::null(), Stdio::piped());
    child.stdout.as_mut().unwrap().read_exact(&mut head).unwrap();
    sandbox.ok(&["unmount", "--force", "tank"]);
    child.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
    assert_failure(&outcome(child), 1, &["the stream is not complete", "send --resume"]);
    // The server dies.
    sandbox.ok(&["mount", "-o", "takeover=off", "tank/db", "a"]);
    let mut child = spawn(&sandbox, &["send", "tank/db@two"], Stdio::null(), Stdio::piped());
    child.stdout.as_mut().unwrap().read_exact(&mut head).unwrap();
    kill_server(&sandbox, "tank");
    child.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
    assert_failure(&outcome(child), 1, &["the stream is not complete", "lost the server of pool tank"]);
    sandbox.ok(&["unmount", "tank"]);
    ["tank", "vault"].iter().for_each(|pool| assert_sound(&sandbox, pool));
}
