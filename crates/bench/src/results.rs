//! Keeps measurements in a JSON file between runs, so that scenarios can be repeated one by one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::host::throttle::Verification;

/// Bounds on the speed of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Profile {
    /// No bound.
    Free,
    /// 125 MB/s and 3000 requests/s each way.
    Throttled,
}

impl Profile {
    /// Returns the profile's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Throttled => "throttled",
        }
    }
}

/// Something that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metric {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its unit.
    pub(crate) unit: &'static str,
}

/// The repetitions of one metric for one system under one profile.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    /// The metric's name.
    pub(crate) metric: String,
    /// Its unit.
    pub(crate) unit: String,
    /// The profile.
    pub(crate) profile: Profile,
    /// The system's label.
    pub(crate) system: String,
    /// One value per repetition, in the order of measurement.
    pub(crate) values: Vec<f64>,
}

impl Series {
    /// Returns the median of the repetitions.
    pub(crate) fn median(&self) -> f64 {
        median(&self.values)
    }
}

/// Returns the middle value, or the mean of the two middle ones. It is NaN if there is none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), middle.checked_sub(1).and_then(|m| sorted.get(m))) {
        (Some(&upper), Some(&lower)) if sorted.len().is_multiple_of(2) => f64::midpoint(lower, upper),
        (Some(&value), _) => value,
        (None, _) => f64::NAN,
    }
}

/// One figure at several settings, drawn as a line per system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Curve {
    /// Title, with the figure's unit.
    pub(crate) title: String,
    /// The setting that changes from point to point, with its unit.
    pub(crate) changed: String,
    /// The profile.
    pub(crate) profile: Profile,
    /// Each value of the setting, with the name of the metric that was measured there.
    pub(crate) points: Vec<(f64, String)>,
}

/// A bound that a figure is held against.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// Reached at or above.
    AtLeast(f64),
    /// Reached at or below.
    AtMost(f64),
}

impl Target {
    /// Returns true if a figure reaches the target.
    pub(crate) fn reached(self, measured: f64) -> bool {
        match self {
            Self::AtLeast(bound) => measured >= bound,
            Self::AtMost(bound) => measured <= bound,
        }
    }
}

/// One line of the table: a promise, and the figure that was measured for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Short and stable, so that an explanation can refer to it.
    pub(crate) id: String,
    /// The promise, in words.
    pub(crate) text: String,
    /// Profile under which it was measured.
    pub(crate) profile: Profile,
    /// The promise, as a bound.
    pub(crate) target: Target,
    /// Unit of bound and figure; "x" for ratios.
    pub(crate) unit: String,
    /// The figure; none where a system was left out.
    pub(crate) measured: Option<f64>,
    /// Figures that the ratio is made of.
    pub(crate) detail: String,
}

impl Line {
    /// Returns "reached", "missed" and by how many per cent, or "not measured".
    pub(crate) fn verdict(&self) -> String {
        let (Some(measured), Target::AtLeast(bound) | Target::AtMost(bound)) = (self.measured, self.target)
        else {
            return "not measured".to_owned();
        };
        if self.target.reached(measured) {
            "reached".to_owned()
        } else {
            format!("**missed** by {:.0} %", ((measured - bound) / bound).abs() * 100.0)
        }
    }
}

/// When, where and with which program a scenario was measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// Day and time of its start, UTC.
    pub(crate) began: String,
    /// Load averages of the machine then.
    pub(crate) load: String,
    /// Commit of the tree that the bench was started in.
    pub(crate) commit: String,
    /// The machine and the programs of others, as lines of "what: value".
    pub(crate) machine: Vec<(String, String)>,
}

/// Results of one scenario.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Section {
    /// When, where and with which program.
    pub(crate) setting: Setting,
    /// True if it was a quick run.
    pub(crate) quick: bool,
    /// Seconds it took altogether.
    pub(crate) took_seconds: f64,
    /// The commands behind the figures.
    pub(crate) commands: Vec<String>,
    /// Facts that a reader must know to judge the figures.
    pub(crate) notes: Vec<String>,
    /// All repetitions.
    pub(crate) series: Vec<Series>,
    /// Metrics that belong together as curves.
    #[serde(default)]
    pub(crate) curves: Vec<Curve>,
    /// The table's lines.
    pub(crate) lines: Vec<Line>,
    /// Error that ended it early, if one did.
    pub(crate) failure: Option<String>,
}

impl Section {
    /// Adds one repetition.
    pub(crate) fn add(&mut self, profile: Profile, metric: Metric, system: &str, value: f64) {
        let same = |s: &&mut Series| s.profile == profile && s.metric == metric.name && s.system == system;
        if let Some(series) = self.series.iter_mut().find(same) {
            series.values.push(value);
            return;
        }
        self.series.push(Series {
            metric: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            profile,
            system: system.to_owned(),
            values: vec![value],
        });
    }

    /// Returns the median of a system's repetitions, if the system took part.
    pub(crate) fn median(&self, profile: Profile, metric: Metric, system: &str) -> Option<f64> {
        let same = |s: &&Series| s.profile == profile && s.metric == metric.name && s.system == system;
        self.series.iter().find(same).map(Series::median)
    }

    /// Adds the line "`ours` / `theirs`", a ratio of medians of a metric, with its target.
    pub(crate) fn ratio_line(&mut self, line: RatioLine) {
        let RatioLine { id, text, profile, metric, ours, theirs, target } = line;
        let (a, b) = (self.median(profile, metric, ours), self.median(profile, metric, theirs));
        let show = |value: Option<f64>| value.map_or_else(|| "not measured".to_owned(), figure);
        let detail = format!("{ours} {} / {theirs} {} {}", show(a), show(b), metric.unit);
        let measured = a.zip(b).map(|(a, b)| a / b);
        self.lines.push(Line {
            id: id.to_owned(),
            text: text.to_owned(),
            profile,
            target,
            unit: "x".to_owned(),
            measured,
            detail,
        });
    }

    /// Adds a curve, once.
    pub(crate) fn curve(&mut self, curve: Curve) {
        if !self.curves.contains(&curve) {
            self.curves.push(curve);
        }
    }

    /// Notes a command, once.
    pub(crate) fn command(&mut self, command: String) {
        if !self.commands.contains(&command) {
            self.commands.push(command);
        }
    }

    /// Notes a fact, once.
    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// Arguments of [`Section::ratio_line`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct RatioLine<'a> {
    /// See [`Line::id`].
    pub(crate) id: &'a str,
    /// See [`Line::text`].
    pub(crate) text: &'a str,
    /// See [`Line::profile`].
    pub(crate) profile: Profile,
    /// Metric that is compared.
    pub(crate) metric: Metric,
    /// Label of the numerator.
    pub(crate) ours: &'a str,
    /// Label of the denominator.
    pub(crate) theirs: &'a str,
    /// The bound of the ratio.
    pub(crate) target: Target,
}

/// Returns a figure as text, with about three significant digits.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => {
            let digits = format!("{value:.0}");
            let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |d| ("-", d));
            let mut grouped = String::new();
            for (n, digit) in digits.chars().enumerate() {
                if n > 0 && (digits.len() - n).is_multiple_of(3) {
                    grouped.push(',');
                }
                grouped.push(digit);
            }
            format!("{sign}{grouped}")
        }
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Results of all scenarios so far.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    /// The proof that the throttle held, if a throttled scenario ran.
    pub(crate) throttle: Option<Verification>,
    /// LZ4 and zstd ratios of the pages that fill files, each page alone.
    pub(crate) corpus_ratios: Option<(f64, f64)>,
    /// Results of each scenario, by its name.
    pub(crate) sections: BTreeMap<String, Section>,
}

impl Results {
    /// Reads the file of earlier runs. Without such a file, there are no results.
    ///
    /// # Errors
    /// When the file exists and cannot be read.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| {
                format!("{} is not a result file of this version: remove it", path.display())
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let scratch = path.with_extension("part");
        fs::write(&scratch, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&scratch, path).with_context(|| format!("write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Metric = Metric { name: "rate", unit: "/s" };

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn figures_are_grouped() {
        assert_eq!(figure(1_234_567.0), "1,234,567");
        assert_eq!(figure(123.4), "123");
        assert_eq!(figure(0.1234), "0.123");
        assert_eq!(figure(-1000.0), "-1,000");
    }

    #[test]
    fn lines_compare_medians_and_say_by_how_much() {
        let mut section = Section::default();
        for value in [10.0, 90.0, 50.0] {
            section.add(Profile::Free, RATE, "ours", value);
        }
        section.add(Profile::Free, RATE, "ext4", 100.0);
        let line = |theirs| RatioLine {
            id: "x",
            text: "",
            profile: Profile::Free,
            metric: RATE,
            ours: "ours",
            theirs,
            target: Target::AtLeast(0.8),
        };
        section.ratio_line(line("ext4"));
        section.ratio_line(line("absent"));
        assert_eq!(section.lines[0].measured, Some(0.5));
        assert_eq!(section.lines[0].verdict(), "**missed** by 38 %");
        assert_eq!(section.lines[1].verdict(), "not measured");
        assert!(Target::AtMost(3.0).reached(3.0) && !Target::AtMost(3.0).reached(3.1));
    }

    #[test]
    fn results_survive_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/results.json");
        let mut results = Results::load(&path).unwrap();
        results.sections.entry("scan".to_owned()).or_default().add(Profile::Throttled, RATE, "ext4", 1.0);
        results.save(&path).unwrap();
        let again = Results::load(&path).unwrap();
        assert_eq!(again.sections["scan"].median(Profile::Throttled, RATE, "ext4"), Some(1.0));
        fs::write(&path, "{").unwrap();
        assert!(Results::load(&path).is_err());
    }
}
