//! `pagefold analyze`: its table, JSON and page, and what it says of bad input.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod common;

use common::{Sandbox, assert_failure};

/// A directory with a file of text of 1 MiB in it.
fn text(sandbox: &Sandbox) -> String {
    let dir = sandbox.dir("data");
    let line = "the quick database jumps over the lazy file system\n";
    std::fs::write(dir.join("a<b>.txt"), line.repeat((1 << 20) / line.len())).unwrap();
    dir.to_string_lossy().into_owned()
}

#[test]
fn a_directory_is_predicted_in_a_table() {
    let sandbox = Sandbox::new();
    let result = sandbox.run(&["analyze", "-a", &text(&sandbox)]);
    assert!(result.status.success(), "{}", result.stderr);
    let lines: Vec<&str> = result.stdout.lines().collect();
    assert!(lines[0].trim_start().starts_with("FILES"), "{}", result.stdout);
    assert!(lines[1].contains("1.00M") && lines[1].ends_with("a<b>.txt"), "{}", result.stdout);
    assert!(lines[2].ends_with("other") && lines[3].ends_with("(total)"), "{}", result.stdout);
    assert!(result.stdout.contains("compression=page"));
}

#[test]
fn a_ratio_counts_no_holes() {
    let sandbox = Sandbox::new();
    let dir = text(&sandbox);
    let ratios = || -> Vec<f64> {
        let told = sandbox.ok(&["analyze", "-H", &dir]);
        let total = told.lines().last().unwrap().to_owned();
        total.split('\t').skip(4).take(4).map(|ratio| ratio.trim_end_matches('x').parse().unwrap()).collect()
    };
    let before = ratios();
    let file = std::fs::OpenOptions::new().write(true).open(format!("{dir}/a<b>.txt")).unwrap();
    file.set_len(1 << 40).unwrap();
    for (before, after) in before.into_iter().zip(ratios()) {
        assert!(
            before > 1.0 && (after / before - 1.0).abs() < 0.01,
            "{before} without holes, {after} with them"
        );
    }
}

#[test]
fn links_are_noted_and_no_failure() {
    let sandbox = Sandbox::new();
    let dir = text(&sandbox);
    std::os::unix::fs::symlink(sandbox.dir("wal"), format!("{dir}/pg_wal")).unwrap();
    let result = sandbox.run(&["analyze", &dir]);
    assert!(result.status.success(), "{}", result.stderr);
    assert!(result.stderr.contains("note: ") && result.stderr.contains("/pg_wal is a link to a directory"));
    let told = sandbox.json(&["analyze", &dir]);
    assert_eq!((told["notes"].as_array().unwrap().len(), told["problems"].as_array().unwrap().len()), (1, 0));
}

#[test]
fn json_has_every_figure() {
    let sandbox = Sandbox::new();
    let result = sandbox.run(&["analyze", "--json", "--compression", "lz4", &text(&sandbox)]);
    let report: serde_json::Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!(report["compression"], "lz4");
    assert_eq!(report["total"]["files"], 1);
    let logical = report["total"]["logical"]["bytes"].as_u64().unwrap();
    for name in ["stored", "lz4", "zlib", "zstd"] {
        let bytes = report["files"][0][name]["bytes"].as_u64().unwrap();
        assert!((1..logical / 4).contains(&bytes), "{name}: {bytes} of {logical}");
    }
}

#[test]
fn the_page_needs_nothing_but_itself_and_escapes_names() {
    let sandbox = Sandbox::new();
    let page = sandbox.path("report.html");
    let result = sandbox.run(&["analyze", "--html", &page.to_string_lossy(), &text(&sandbox)]);
    assert!(result.status.success(), "{}", result.stderr);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && html.contains("a&lt;b&gt;.txt") && !html.contains("a<b>"));
    assert!(!html.contains("http") && !html.contains("src="), "it refers to something else");
}

#[test]
fn bad_input_is_told() {
    let sandbox = Sandbox::new();
    let data = text(&sandbox);
    assert_failure(&sandbox.run(&["analyze"]), 2, &["<PATHS>"]);
    assert_failure(&sandbox.run(&["analyze", "nowhere"]), 1, &["nowhere", "No such file"]);
    assert_failure(&sandbox.run(&["analyze", &sandbox.dir("empty").to_string_lossy()]), 1, &["no files"]);
    assert_failure(&sandbox.run(&["analyze", "--compression", "zst", &data]), 2, &["did you mean zstd?"]);
    assert_failure(&sandbox.run(&["analyze", "--sample", "0", &data]), 2, &["--sample"]);
    assert_failure(&sandbox.run(&["analyze", "--html", "no/such/dir.html", &data]), 1, &["no/such/dir.html"]);
}
