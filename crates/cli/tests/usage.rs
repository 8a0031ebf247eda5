//! The command line without any pool: help, usage errors, exit statuses, manual pages, completions.

mod common;

use common::{Sandbox, assert_failure};

const VERBS: [&str; 56] = [
    "create",
    "archive",
    "backup",
    "replicate",
    "basebackup",
    "destroy",
    "import",
    "reguid",
    "export",
    "mount",
    "unmount",
    "restart",
    "scrub",
    "trim",
    "sync",
    "list",
    "status",
    "iostat",
    "events",
    "get",
    "set",
    "inherit",
    "dataset",
    "snapshot",
    "clone",
    "rollback",
    "reset",
    "rebase",
    "promote",
    "rename",
    "hold",
    "policy",
    "release",
    "holds",
    "branch",
    "send",
    "receive",
    "diff",
    "du",
    "df",
    "analyze",
    "fold",
    "rewrite",
    "check",
    "add",
    "attach",
    "detach",
    "split",
    "remove",
    "balance",
    "replace",
    "offline",
    "online",
    "clear",
    "systemd",
    "completion",
];

#[test]
fn every_verb_has_help_with_examples() {
    let sandbox = Sandbox::new();
    let top = sandbox.run(&["--help"]);
    assert!(top.status.success());
    for verb in VERBS {
        assert!(top.stdout.contains(&format!("  {verb}")), "--help does not list {verb}");
        let help = sandbox.run(&[verb, "--help"]);
        assert!(help.status.success(), "{verb} --help: {}", help.stderr);
        assert!(
            help.stdout.contains("Examples:\n  pagefold"),
            "{verb} --help has no example:\n{}",
            help.stdout
        );
    }
}

#[test]
fn help_fits_a_terminal_of_80_columns() {
    let sandbox = Sandbox::new();
    let below = [("dataset", "create"), ("branch", "create"), ("branch", "reset"), ("systemd", "install")];
    let below = below.map(|(verb, below)| vec![verb, below]);
    for mut words in VERBS.iter().map(|verb| vec![*verb]).chain(below).chain([vec![]]) {
        words.push("--help");
        let help = sandbox.ok(&words);
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{words:?}: {long:#?}");
        // A line that a terminal has wrapped once more leaves a word alone on the next one.
        let lines: Vec<&str> = help.lines().collect();
        for three in lines.windows(3) {
            let [before, word, after] = three else { continue };
            let text = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
            let alone = text(before) && text(word) && text(after) && word.len() < 20;
            assert!(!alone, "{words:?} is wrapped twice: {three:#?}");
        }
    }
}

#[test]
fn hidden_verbs_stay_hidden() {
    let top = Sandbox::new().run(&["--help"]).stdout;
    assert!(
        ["serve", "man", "probe", "read-devices", "generator"]
            .iter()
            .all(|verb| !top.contains(&format!("\n  {verb}"))),
        "{top}"
    );
}

#[test]
fn no_verb_is_a_usage_error() {
    assert_eq!(Sandbox::new().run::<&str>(&[]).status.code(), Some(2));
}

#[test]
fn an_unknown_verb_lists_the_valid_ones_and_the_nearest() {
    let result = Sandbox::new().run(&["mout", "tank"]);
    assert_failure(&result, 2, &["unrecognized subcommand 'mout'", "mount", "verbs: create, destroy"]);
}

#[test]
fn options_that_do_not_exist_and_operands_that_are_missing_are_usage_errors() {
    let sandbox = Sandbox::new();
    for words in [
        &["list", "--colour"][..],
        &["create"],
        &["create", "tank"],
        &["create", "tank", "spare", "one"],
        &["create", "tank", "one", "spare"],
        &["create", "tank", "log", "one"],
        &["create", "tank", "one", "log"],
        &["create", "tank", "one", "log", "mirror", "two"],
        &["add", "tank"],
        &["remove", "tank"],
        &["set", "a=b"],
        &["du"],
        &["check"],
        &["events"],
        &["mount"],
    ] {
        let result = sandbox.run(words);
        assert_failure(&result, 2, &[]);
    }
}

#[test]
fn bad_values_are_told_with_the_valid_ones() {
    let sandbox = Sandbox::new();
    let device = sandbox.path("d");
    let device = device.to_str().unwrap();
    let cases: [(&[&str], &[&str]); 18] = [
        (
            &["create", "tank", device, "log", "f", "g", "--size", "1G"],
            &["f and g follow the word log", "one log device", "log mirror"],
        ),
        (
            &["create", "tank", device, "log", "f", "log", "g", "--size", "1G"],
            &["one log device", "log mirror"],
        ),
        (&["create", "tank", "log", device, "--size", "1G"], &["devices that hold data"]),
        (
            &["create", "1tank", device, "--size", "1G"],
            &["cannot be the name of a pool", "starts with a letter"],
        ),
        (&["create", "../tank", device, "--size", "1G"], &["cannot be the name of a pool"]),
        (
            &["create", "tank/db", device, "--size", "1G"],
            &["cannot be the name of a pool", "pagefold dataset create tank/db"],
        ),
        (&["create", "tank", device, "--size", "lots"], &["\"lots\" is not a size", "10G"]),
        (&["create", "tank", device, "--size", "1M"], &["too small", "at least"]),
        (
            &["create", "tank", device, "--size", "1G", "-o", "compresion=lz4"],
            &["no property \"compresion\"", "did you mean compression?"],
        ),
        (
            &["create", "tank", device, "--size", "1G", "-o", "compression=lz5"],
            &["not a value of compression", "did you mean lz4?"],
        ),
        (&["create", "tank", device, "--size", "1G", "-o", "used=1"], &["computed and cannot be set"]),
        (&["set", "snyc=always", "tank"], &["did you mean sync?"]),
        (&["get", "al", "tank"], &["there is no property \"al\""]),
        (&["mount", "-o", "cash=1G", "tank", "/mnt"], &["no mount option \"cash\"", "did you mean cache?"]),
        (&["iostat", "tank", "0"], &["\"0\" is not an interval"]),
        (&["iostat", "-y", "tank"], &["an interval is needed", "pagefold iostat -y"]),
        (&["iostat", "-wl", "tank"], &["--histograms", "cannot be used with"]),
        (&["iostat", "-v", "--causes"], &["--verbose", "cannot be used with"]),
    ];
    for (words, texts) in cases {
        assert_failure(&sandbox.run(words), 2, texts);
    }
    assert!(!sandbox.path("d").exists(), "a usage error made a file");
    assert!(!sandbox.path("state/pools.json").exists(), "a usage error was remembered");
}

#[test]
fn unknown_pools_are_told_by_every_verb() {
    let sandbox = Sandbox::new();
    let verbs: [&[&str]; 12] = [
        &["mount", "tank", "/mnt"],
        &["unmount", "tank"],
        &["export", "tank"],
        &["destroy", "-f", "tank"],
        &["status", "tank"],
        &["list", "tank"],
        &["get", "all", "tank"],
        &["set", "sync=always", "tank"],
        &["sync", "tank"],
        &["check", "tank"],
        &["events", "tank"],
        &["iostat", "-v", "tank", "1"],
    ];
    for words in verbs {
        assert_failure(&sandbox.run(words), 1, &["there is no pool \"tank\"", "pagefold import"]);
    }
}

#[test]
fn names_cannot_move_the_cursor() {
    let result = Sandbox::new().run(&["status", "ta\x1b[2Jnk"]);
    assert_failure(&result, 2, &[]);
    assert!(!result.stderr.contains('\x1b'), "{:?}", result.stderr);
}

#[test]
fn an_empty_system_lists_nothing_in_json() {
    let sandbox = Sandbox::new();
    for verb in ["list", "status", "df"] {
        let result = sandbox.run(&[verb, "--json"]);
        assert!(result.status.success(), "{}", result.stderr);
        let json: serde_json::Value = serde_json::from_str(&result.stdout).unwrap();
        assert_eq!(json["pools"], serde_json::json!([]), "{verb}");
    }
}

#[test]
fn a_path_that_is_on_no_pool_is_told() {
    let sandbox = Sandbox::new();
    let here = sandbox.path("");
    let here = here.to_str().unwrap();
    assert_failure(&sandbox.run(&["du", here]), 1, &["is not on a pagefold pool"]);
    assert_failure(&sandbox.run(&["unmount", here]), 1, &["nothing of a pool is mounted at"]);
    assert_failure(&sandbox.run(&["du", "/does/not/exist"]), 1, &["/does/not/exist"]);
}

#[test]
fn a_damaged_pool_cache_is_told_and_left_alone() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path("state")).unwrap();
    std::fs::write(sandbox.path("state/pools.json"), "{nonsense").unwrap();
    assert_failure(&sandbox.run(&["list"]), 1, &["pools.json is damaged", "pagefold import"]);
    assert_eq!(std::fs::read_to_string(sandbox.path("state/pools.json")).unwrap(), "{nonsense");
}

#[test]
fn manual_pages_exist_for_every_verb() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("man");
    assert!(sandbox.run(&["man", dir.to_str().unwrap()]).status.success());
    for name in VERBS.iter().map(|verb| format!("pagefold-{verb}.8")).chain(["pagefold.8".to_owned()]) {
        let page = std::fs::read_to_string(dir.join(&name)).unwrap();
        assert!(page.contains(".TH pagefold") && page.contains("pagefold"), "{name}:\n{page}");
    }
    let below: [(&str, &[&str]); 5] = [
        ("archive", &["push", "fetch", "follow", "list"]),
        (
            "backup",
            &[
                "init",
                "create",
                "list",
                "show",
                "verify",
                "check",
                "restore",
                "restore-pool",
                "forget",
                "prune",
                "serve",
                "run",
                "mount",
                "mounts",
            ],
        ),
        ("dataset", &["create", "destroy", "list", "rename"]),
        ("branch", &["create", "list", "start", "stop", "reset", "delete"]),
        ("systemd", &["show", "install", "remove"]),
    ];
    let pages = below.iter().map(|(_, below)| below.len()).sum::<usize>();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), VERBS.len() + 1 + pages);
    for (verb, below) in below.iter().flat_map(|(verb, all)| all.iter().map(move |below| (verb, below))) {
        let page = std::fs::read_to_string(dir.join(format!("pagefold-{verb}-{below}.8"))).unwrap();
        // In pages hyphens are written so that they can be copied.
        assert!(page.contains(&format!("pagefold {verb} {}", below.replace('-', "\\-"))), "{page}");
        let help = sandbox.run(&[verb, below, "--help"]);
        let example = format!("\n  pagefold {verb} {below}");
        assert!(help.stdout.contains("Examples:") && help.stdout.contains(&example), "{}", help.stdout);
    }
    let set = std::fs::read_to_string(dir.join("pagefold-set.8")).unwrap();
    assert!(set.contains("recordsize") && set.contains("relatime"), "{set}");
}

#[test]
fn completions_know_the_verbs() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.run(&["completion", shell]);
        assert!(script.status.success() && script.stdout.contains("iostat"), "{shell}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_us_quietly() {
    let sandbox = Sandbox::new();
    let command = format!("{} completion bash | head -1", env!("CARGO_BIN_EXE_pagefold"));
    let output =
        std::process::Command::new("sh").args(["-c", &command]).envs(sandbox.environment()).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Texts of the program and the engine that name a verb: behind a backtick or a colon.
fn verbs_in(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut found = Vec::new();
    for line in lines {
        for lead in ["`pagefold ", ": pagefold ", "(pagefold "] {
            let words = line.split(lead).skip(1).map(|rest| {
                rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect::<String>()
            });
            found.extend(words.filter(|word| !word.is_empty()));
        }
    }
    found
}

#[test]
fn hints_name_verbs_that_there_are() {
    fn sources(dir: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                sources(&entry, found);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                found.push(entry);
            }
        }
    }
    let mut files = Vec::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for dir in ["src", "../engine/src", "../fuse/src", "../server/src"] {
        sources(&root.join(dir), &mut files);
    }
    let mut checked = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for verb in verbs_in(&text) {
            checked += 1;
            assert!(VERBS.contains(&verb.as_str()), "{} names the verb \"{verb}\"", file.display());
        }
        for promise in ["add space", "add a device"] {
            assert!(!text.contains(promise), "{}: no verb does \"{promise}\"", file.display());
        }
    }
    assert!(checked > 80, "only {checked} were found: the test no longer sees the texts");
}
