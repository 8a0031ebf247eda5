//! Renders docs/BENCHMARKS.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;

use crate::host::throttle::{BYTES_PER_SECOND, REQUESTS_PER_SECOND, Verification};
use crate::results::{Line, Profile, Results, Section, Target, figure};
use crate::scenarios::SCENARIOS;

/// Number of characters of a failure's message that the table shows.
const FAILURE_CHARS: usize = 160;

/// Renders the whole document. `plots` names each scenario's files, `why` explains lines by id.
pub(super) fn document(
    results: &Results,
    plots: &BTreeMap<String, Vec<String>>,
    why: &BTreeMap<String, String>,
) -> Result<String> {
    let mut out = String::new();
    out.push_str(
        "# Benchmarks\n\nMade by `make bench` (crates/bench); do not edit. Explanations of missed lines are in bench/why.json.\n\n\
         Every figure is the median of alternated repetitions in one run on one machine; only the ratios mean something elsewhere. \
         bench/results.json has every repetition.\n\n",
    );
    promises(&mut out, results, why)?;
    let machines = machines(results);
    write_machines(&mut out, results, &machines)?;
    for scenario in SCENARIOS {
        let Some(section) = results.sections.get(scenario.name) else { continue };
        let files = plots.get(scenario.name).map(Vec::as_slice).unwrap_or_default();
        write_section(&mut out, (scenario.name, scenario.about), section, &machines, files)?;
    }
    Ok(out)
}

fn promises(out: &mut String, results: &Results, why: &BTreeMap<String, String>) -> Result<()> {
    out.push_str("## Promises\n\n| Line | Profile | Target | Measured | Verdict | Made of |\n|---|---|---|---|---|---|\n");
    let mut missed = Vec::new();
    for scenario in SCENARIOS {
        let Some(section) = results.sections.get(scenario.name) else {
            writeln!(out, "| {} | | | | not run | |", scenario.about)?;
            continue;
        };
        for line in &section.lines {
            let measured = line.measured.map_or_else(|| "-".to_owned(), |m| with_unit(m, &line.unit));
            let quick = if section.quick { " (quick run)" } else { "" };
            let (profile, target, verdict) = (line.profile.name(), bound(line), line.verdict());
            writeln!(
                out,
                "| {} | {profile} | {target} | {measured} | {verdict}{quick} | {} |",
                line.text, line.detail
            )?;
            if line.measured.is_some_and(|m| !line.target.reached(m)) {
                missed.push(line);
            }
        }
        if let Some(failure) = &section.failure {
            let first: String = failure.replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ");
            let first: String = first.chars().take(FAILURE_CHARS).collect();
            let reason = why.get(scenario.name).map_or("", String::as_str);
            writeln!(out, "| {} | | | | **failed**: {first} ... | {reason} |", scenario.about)?;
        }
    }
    if !missed.is_empty() {
        out.push_str("\n### Why lines are missed\n\n");
        for line in missed {
            let reason = why.get(&line.id).map_or("not explained yet", String::as_str);
            writeln!(out, "- {} ({}): {reason}", line.text, line.profile.name())?;
        }
    }
    out.push('\n');
    Ok(())
}

fn with_unit(value: f64, unit: &str) -> String {
    if unit == "x" { format!("{}x", figure(value)) } else { format!("{} {unit}", figure(value)) }
}

fn bound(line: &Line) -> String {
    match line.target {
        Target::AtLeast(bound) => format!(">= {}", with_unit(bound, &line.unit)),
        Target::AtMost(bound) => format!("<= {}", with_unit(bound, &line.unit)),
    }
}

/// A machine, as lines of "what: value".
type Machine = [(String, String)];

/// Returns the different machines that scenarios were measured on, in the order of the scenarios.
fn machines(results: &Results) -> Vec<&Machine> {
    let mut found: Vec<&Machine> = Vec::new();
    for section in SCENARIOS.iter().filter_map(|scenario| results.sections.get(scenario.name)) {
        if !found.contains(&section.setting.machine.as_slice()) {
            found.push(&section.setting.machine);
        }
    }
    found
}

/// Returns a machine's name among others.
fn machine_name(machines: &[&Machine], machine: &Machine) -> String {
    match machines.iter().position(|&other| other == machine) {
        Some(n) if machines.len() > 1 => format!("machine {}", n + 1),
        _ => "the machine".to_owned(),
    }
}

fn write_machines(out: &mut String, results: &Results, machines: &[&Machine]) -> Result<()> {
    out.push_str("## Machine\n\n");
    for machine in machines {
        if machines.len() > 1 {
            writeln!(out, "{}:\n", machine_name(machines, machine))?;
        }
        for (what, value) in *machine {
            writeln!(out, "- {what}: {value}")?;
        }
        out.push('\n');
    }
    if let Some((lz4, zstd)) = results.corpus_ratios {
        writeln!(
            out,
            "Files are filled with pages of five PostgreSQL tables; each 8 KiB page compressed alone is {lz4:.2} times \
             smaller with LZ4 and {zstd:.2} times with zstd level 3."
        )?;
    }
    out.push('\n');
    let Some(found) = results.throttle else { return Ok(()) };
    out.push_str("## The throttle\n\n");
    writeln!(
        out,
        "The throttled profile limits each loop device to {} MB/s and {REQUESTS_PER_SECOND} requests/s each way by the blkio controller, in its root \
         cgroup: direct I/O is accounted to the submitter, who is there, and buffered write-back is always accounted there. Verified at \
         the start of the run:\n",
        BYTES_PER_SECOND / 1_000_000
    )?;
    out.push_str("| What | Limit | Measured |\n|---|---|---|\n");
    let Verification { read_requests, write_requests, read_mb, write_mb, writeback_mb, free_read_requests } =
        found;
    let megabytes = figure(BYTES_PER_SECOND as f64 / 1e6);
    let requests = figure(REQUESTS_PER_SECOND as f64);
    for (what, limit, value, unit) in [
        ("8 KiB random O_DIRECT reads, depth 16", requests.as_str(), read_requests, "/s"),
        ("8 KiB random O_DIRECT writes, depth 16", requests.as_str(), write_requests, "/s"),
        ("1 MiB sequential O_DIRECT reads", megabytes.as_str(), read_mb, "MB/s"),
        ("1 MiB sequential O_DIRECT writes", megabytes.as_str(), write_mb, "MB/s"),
        ("buffered writes with fsync (write-back)", megabytes.as_str(), writeback_mb, "MB/s"),
        ("the same random reads without the throttle", "none", free_read_requests, "/s"),
    ] {
        writeln!(out, "| {what} | {limit} | {} {unit} |", figure(value))?;
    }
    out.push('\n');
    Ok(())
}

fn write_section(
    out: &mut String,
    (name, about): (&str, &str),
    section: &Section,
    machines: &[&Machine],
    plots: &[String],
) -> Result<()> {
    writeln!(
        out,
        "## {name}\n\n{about}\n\n`pagefold-bench run {name}{}`\n",
        if section.quick { " --quick" } else { "" }
    )?;
    let setting = &section.setting;
    writeln!(
        out,
        "Begun on {} UTC on {}, load averages {} then, commit {}; took {:.0} s.\n",
        setting.began,
        machine_name(machines, &setting.machine),
        setting.load,
        setting.commit,
        section.took_seconds
    )?;
    for note in &section.notes {
        writeln!(out, "{note}\n")?;
    }
    if !section.commands.is_empty() {
        writeln!(out, "```\n{}\n```\n", section.commands.join("\n"))?;
    }
    for profile in [Profile::Free, Profile::Throttled] {
        table(out, section, profile)?;
    }
    for plot in plots {
        writeln!(out, "![{name}](bench/{plot})")?;
    }
    if !plots.is_empty() {
        out.push('\n');
    }
    Ok(())
}

/// Writes a table with metrics down and systems across.
fn table(out: &mut String, section: &Section, profile: Profile) -> Result<()> {
    let series: Vec<_> = section.series.iter().filter(|s| s.profile == profile).collect();
    let mut systems: Vec<&str> = Vec::new();
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    for one in &series {
        if !systems.contains(&one.system.as_str()) {
            systems.push(&one.system);
        }
        if !metrics.contains(&(one.metric.as_str(), one.unit.as_str())) {
            metrics.push((&one.metric, &one.unit));
        }
    }
    if series.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "| {} | {} |\n|---|{}",
        profile.name(),
        systems.join(" | "),
        "---:|".repeat(systems.len())
    )?;
    for (metric, unit) in metrics {
        write!(out, "| {metric} ({unit}) |")?;
        for system in &systems {
            match series.iter().find(|s| s.metric == metric && s.system == *system) {
                Some(found) => write!(out, " {} |", figure(found.median()))?,
                None => out.push_str(" |"),
            }
        }
        out.push('\n');
    }
    out.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Metric, RatioLine};

    #[test]
    fn missed_lines_say_by_how_much_and_why() {
        const RATE: Metric = Metric { name: "heap scanned", unit: "MB/s" };
        let mut section = Section::default();
        section.add(Profile::Free, RATE, "ext4", 1000.0);
        section.add(Profile::Free, RATE, "pagefold-lz4", 500.0);
        let target = Target::AtLeast(0.6);
        let (ours, theirs) = ("pagefold-lz4", "ext4");
        let line = RatioLine {
            id: "scan-ext4-free",
            text: "scan",
            profile: Profile::Free,
            metric: RATE,
            ours,
            theirs,
            target,
        };
        section.ratio_line(line);
        section.setting.began = "2026-11-27 23:30".to_owned();
        let mut results = Results::default();
        results.sections.insert("scan".to_owned(), section.clone());
        let why = BTreeMap::from([("scan-ext4-free".to_owned(), "one thread decodes".to_owned())]);
        let text = document(&results, &BTreeMap::new(), &why).unwrap();
        assert!(text.contains("| scan | free | >= 0.600x | 0.500x | **missed** by 17 % |"), "{text}");
        assert!(text.contains("- scan (free): one thread decodes"), "{text}");
        assert!(text.contains("| heap scanned (MB/s) | 1,000 | 500 |"), "{text}");
        assert!(text.contains("not run"), "scenarios that did not run must be visible");
        assert!(text.contains("Begun on 2026-11-27 23:30 UTC on the machine, "), "{text}");
        section.setting.machine = vec![("Memory".to_owned(), "1 GiB".to_owned())];
        results.sections.insert("copy".to_owned(), section);
        let text = document(&results, &BTreeMap::new(), &why).unwrap();
        assert!(text.contains(" UTC on machine 1, ") && text.contains(" UTC on machine 2, "), "{text}");
        assert!(text.contains("machine 2:\n\n- Memory: 1 GiB\n"), "{text}");
    }
}
