//! A prediction as a page of HTML that refers to no other file.

use std::fmt::Write;
use std::path::PathBuf;

use pagefold_analyze::{Report, Totals};
use pagefold_server::failure::{Context, Result};
use pagefold_server::units;

use super::{ratio, sentence};

/// Largest number of files that are listed; the largest files come first.
const FILES_MAX: usize = 500;

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Pagefold: prediction</title>
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .2em .6em; border-bottom: 1px solid #ddd }
th:last-child, td:last-child { text-align: left; overflow-wrap: anywhere }
svg { width: 100%; height: auto } svg text { font: 13px system-ui, sans-serif; fill: currentColor }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616 } th, td { border-color: #444 } }
</style></head><body>
";

/// Colour and name of each bar.
const BARS: [(&str, &str); 5] = [
    ("#9aa0a6", "as it is"),
    ("#c58b4e", "lz4"),
    ("#b9a43b", "zlib"),
    ("#5e8fb0", "zstd"),
    ("#2f7d4f", "Pagefold"),
];

/// Returns the page.
pub(super) fn html(report: &Report, paths: &[PathBuf]) -> Result<String> {
    let mut out = String::from(HEAD);
    write(&mut out, report, paths).context(|| "cannot make the page".into())?;
    Ok(out)
}

fn write(out: &mut String, report: &Report, paths: &[PathBuf]) -> std::fmt::Result {
    let total = report.total.on_pagefold();
    let named: Vec<String> = paths.iter().map(|path| escaped(&path.to_string_lossy())).collect();
    writeln!(out, "<h1>{} on Pagefold</h1>", named.join(", "))?;
    writeln!(
        out,
        "<p>{} files of {} would take <b>{}</b> (±{} with 95% confidence), <b>{}</b>, with compression={}, all metadata \
         counted.</p>",
        report.total.files,
        units::size(report.total.size_bytes),
        units::size(total.bytes()),
        units::size(total.margin_bytes()),
        ratio(&report.total, total, false),
        report.compression,
    )?;
    writeln!(out, "<h2>All files</h2>")?;
    bars(out, &report.total)?;
    writeln!(out, "<p>lz4, zlib (level 3) and zstd (level 3): extents of 128K, each rounded up to 4K.</p>")?;
    for (kind, totals) in &report.kinds {
        writeln!(out, "<h2>{}</h2>", kind.name())?;
        bars(out, totals)?;
    }
    if !report.findings.is_empty() {
        writeln!(out, "<h2>What else would change</h2>\n<ul>")?;
        for finding in &report.findings {
            writeln!(out, "<li>{}</li>", escaped(&sentence(finding)))?;
        }
        writeln!(out, "</ul>")?;
    }
    files(out, report)?;
    list(out, "Links", &report.notes)?;
    list(out, "Left out", &report.problems)?;
    writeln!(out, "</body></html>")
}

/// Writes sentences below a title, if there are any.
fn list(out: &mut String, title: &str, sentences: &[String]) -> std::fmt::Result {
    if sentences.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>{title}</h2>\n<ul>")?;
    for sentence in sentences {
        writeln!(out, "<li>{}</li>", escaped(sentence))?;
    }
    writeln!(out, "</ul>")
}

/// Writes a bar for each way to store the files.
fn bars(out: &mut String, totals: &Totals) -> std::fmt::Result {
    const ROW: usize = 26;
    const WIDTH: f64 = 560.0;
    let ours = totals.on_pagefold();
    let bytes =
        [totals.logical.bytes(), totals.lz4.bytes(), totals.zlib.bytes(), totals.zstd.bytes(), ours.bytes()];
    let most = bytes.iter().copied().max().unwrap_or(1).max(1) as f64;
    writeln!(out, "<svg viewBox=\"0 0 900 {}\" role=\"img\">", BARS.len() * ROW + 4)?;
    for (row, ((colour, name), bytes)) in BARS.iter().zip(bytes).enumerate() {
        let (top, width) = (row * ROW, WIDTH * bytes as f64 / most);
        let middle = top + 17;
        writeln!(out, "<text x=\"75\" y=\"{middle}\" text-anchor=\"end\">{name}</text>")?;
        writeln!(
            out,
            "<rect x=\"85\" y=\"{}\" width=\"{width:.1}\" height=\"18\" rx=\"2\" fill=\"{colour}\"/>",
            top + 4
        )?;
        let text = format!(
            "{} ({})",
            units::size(bytes),
            units::ratio_text(units::ratio(totals.logical.bytes(), bytes))
        );
        writeln!(out, "<text x=\"{:.1}\" y=\"{middle}\">{text}</text>", 93.0 + width)?;
    }
    // This line is the range of the last bar.
    let (margin, end) =
        (WIDTH * ours.margin_bytes() as f64 / most, 85.0 + WIDTH * ours.bytes() as f64 / most);
    let y = (BARS.len() - 1) * ROW + 13;
    writeln!(
        out,
        "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"currentColor\"/>\n</svg>",
        (end - margin).max(85.0),
        end + margin
    )
}

fn files(out: &mut String, report: &Report) -> std::fmt::Result {
    let mut files: Vec<_> = report.files.iter().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.size_bytes));
    let shown = files.len().min(FILES_MAX);
    writeln!(out, "<h2>Files</h2>\n<p>{shown} of {}, the largest first.</p>", files.len())?;
    writeln!(
        out,
        "<table><tr><th>size<th>page<th>Pagefold<th>±<th>ratio<th>lz4<th>zlib<th>zstd<th>kind<th>file</tr>"
    )?;
    for file in files.into_iter().take(FILES_MAX) {
        let totals = Totals::of(file);
        let ours = totals.on_pagefold();
        let by = |estimate| ratio(&totals, estimate, false);
        writeln!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            units::size(file.size_bytes),
            units::size(file.recordsize_bytes.into()),
            units::size(ours.bytes()),
            units::size(ours.margin_bytes()),
            by(ours),
            by(file.lz4),
            by(file.zlib),
            by(file.zstd),
            file.kind.name(),
            escaped(&file.path.to_string_lossy()),
        )?;
    }
    writeln!(out, "</table>")
}

/// Returns the text with markup characters and control characters escaped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}
