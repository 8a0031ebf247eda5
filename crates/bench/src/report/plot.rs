//! Draws plots: one bar per system and metric, its median, with the range of its repetitions.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::results::{Profile, Section, Series, figure};

const WIDTH: u32 = 720;
const BAR: i32 = 26;
const LABELS: i32 = 150;
const TOP: i32 = 44;
/// Pixels at the right for the figure behind the longest bar.
const RIGHT: i32 = 110;

/// Draws every metric of a scenario that compares systems, or is a course over time, into `folder`. Returns the files'
/// names.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn draw_all(scenario: &str, section: &Section, folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for profile in [Profile::Free, Profile::Throttled] {
        let mut metrics: Vec<&str> = Vec::new();
        for series in section.series.iter().filter(|s| s.profile == profile) {
            if !metrics.contains(&series.metric.as_str()) {
                metrics.push(&series.metric);
            }
        }
        for (n, metric) in metrics.iter().enumerate() {
            let bars: Vec<&Series> =
                section.series.iter().filter(|s| s.profile == profile && s.metric == *metric).collect();
            // A single bar compares nothing, so it is left out. A long series of one system is drawn as a course over
            // time.
            let course = bars.first().filter(|one| bars.len() == 1 && one.values.len() > 8);
            if bars.len() < 2 && course.is_none() {
                continue;
            }
            let name = format!("{scenario}-{}-{}.svg", profile.name(), n + 1);
            let path = folder.join(&name);
            let title = format!("{metric} ({}), {}", bars.first().map_or("", |s| &s.unit), profile.name());
            match course {
                Some(series) => draw_course(&path, &title, series),
                None => draw_bars(&path, &title, &bars),
            }
            .map_err(|error| anyhow!("draw {}: {error}", path.display()))?;
            names.push(name);
        }
    }
    Ok(names)
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn colour(system: &str) -> RGBColor {
    if system.starts_with("pagefold") { RGBColor(0x1f, 0x77, 0xb4) } else { RGBColor(0xa0, 0xa8, 0xb0) }
}

fn draw_bars(path: &Path, title: &str, bars: &[&Series]) -> Drawn {
    let rows = i32::try_from(bars.len())?;
    let height = u32::try_from(TOP + rows * BAR + 12)?;
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title.to_owned(), (12, 12), ("sans-serif", 16).into_font().color(&BLACK)))?;
    let highest = bars.iter().flat_map(|s| &s.values).copied().fold(f64::MIN_POSITIVE, f64::max);
    let room = f64::from(i32::try_from(WIDTH)? - LABELS - RIGHT);
    let x = |value: f64| LABELS + (value / highest * room) as i32;
    let small = ("sans-serif", 13).into_font().color(&BLACK);
    for (row, series) in (0..rows).zip(bars) {
        let y = TOP + row * BAR;
        let median = series.median();
        let bar = [(LABELS, y), (x(median), y + BAR - 8)];
        area.draw(&Rectangle::new(bar, colour(&series.system).filled()))?;
        let low = series.values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = series.values.iter().copied().fold(0.0, f64::max);
        let middle = y + (BAR - 8) / 2;
        area.draw(&PathElement::new(vec![(x(low), middle), (x(high), middle)], BLACK.stroke_width(1)))?;
        area.draw(&Text::new(series.system.clone(), (12, y + 2), small.clone()))?;
        area.draw(&Text::new(figure(median), (x(high) + 8, y + 2), small.clone()))?;
    }
    area.present()?;
    Ok(())
}

fn draw_course(path: &Path, title: &str, series: &Series) -> Drawn {
    let area = SVGBackend::new(path, (WIDTH, 300)).into_drawing_area();
    area.fill(&WHITE)?;
    let highest = series.values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(28)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..series.values.len() as f64, 0.0..highest * 1.1)?;
    chart.configure_mesh().x_desc("sample").draw()?;
    let points = series.values.iter().enumerate().map(|(n, &value)| (n as f64, value));
    chart.draw_series(LineSeries::new(points, colour(&series.system).stroke_width(2)))?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Metric;

    #[test]
    fn each_metric_that_compares_has_a_plot() {
        const RATE: Metric = Metric { name: "rate", unit: "/s" };
        const COURSE: Metric = Metric { name: "course", unit: "MiB" };
        const ALONE: Metric = Metric { name: "alone", unit: "s" };
        let mut section = Section::default();
        for value in [1.0, 2.0, 3.0] {
            section.add(Profile::Free, RATE, "ext4", value);
            section.add(Profile::Free, RATE, "pagefold-lz4", value * 2.0);
        }
        for value in 0..20 {
            section.add(Profile::Free, COURSE, "pagefold-lz4", f64::from(value));
        }
        section.add(Profile::Free, ALONE, "pagefold-lz4", 1.0);
        let dir = tempfile::tempdir().unwrap();
        let names = draw_all("x", &section, dir.path()).unwrap();
        assert_eq!(names, ["x-free-1.svg", "x-free-2.svg"]);
        let svg = std::fs::read_to_string(dir.path().join("x-free-1.svg")).unwrap();
        assert!(svg.contains("pagefold-lz4") && svg.contains("4.00"), "{svg}");
    }
}
