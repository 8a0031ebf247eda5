//! Makes docs/BENCHMARKS.md and its plots from the results alone.

mod markdown;
mod plot;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::results::{Results, Section, figure};

/// Writes the document and the plots below `docs`.
///
/// # Errors
/// When a file cannot be written, or docs/bench/why.json is not a map from ids to explanations.
pub(crate) fn write(results: &Results, docs: &Path) -> Result<()> {
    let folder = docs.join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let why = explanations(&folder.join("why.json"))?;
    let mut plots = BTreeMap::new();
    for (name, section) in &results.sections {
        plots.insert(name.clone(), plot::draw_all(name, section, &folder)?);
    }
    let path = docs.join("BENCHMARKS.md");
    fs::write(&path, markdown::document(results, &plots, &why)?)
        .with_context(|| format!("write {}", path.display()))
}

/// Reads the explanations of missed lines, which people have written, by the ids of lines.
fn explanations(path: &Path) -> Result<BTreeMap<String, String>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("read {}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

/// Prints a scenario's figures for whoever waits.
pub(crate) fn print(name: &str, section: &Section) {
    println!("\n{name} ({:.0} s)", section.took_seconds);
    for series in &section.series {
        let values: Vec<String> = series.values.iter().map(|&v| figure(v)).collect();
        let values = if values.len() > 8 { format!("{} values", values.len()) } else { values.join(" ") };
        println!(
            "  {:9} {:16} {:52} {:>10} {} ({values})",
            series.profile.name(),
            series.system,
            series.metric,
            figure(series.median()),
            series.unit,
        );
    }
    for line in &section.lines {
        let measured = line.measured.map_or_else(|| "-".to_owned(), figure);
        println!(
            "  => {} [{}]: {measured} {} {}; {}",
            line.text,
            line.profile.name(),
            line.unit,
            line.verdict(),
            line.detail
        );
    }
    for note in &section.notes {
        println!("  {note}");
    }
    if let Some(failure) = &section.failure {
        println!("  FAILED: {failure}");
    }
}
