//! Draws plots: one bar per system and metric, its median, with the range of its repetitions; one line per system where a
//! figure was measured at several settings.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::results::{Curve, Profile, Section, Series, figure};

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
    for (n, curve) in section.curves.iter().enumerate() {
        let name = format!("{scenario}-{}-curve-{}.svg", curve.profile.name(), n + 1);
        let path = folder.join(&name);
        draw_curve(&path, section, curve).map_err(|error| anyhow!("draw {}: {error}", path.display()))?;
        names.push(name);
    }
    let in_curves =
        |metric: &str| section.curves.iter().any(|c| c.points.iter().any(|(_, name)| name == metric));
    for profile in [Profile::Free, Profile::Throttled] {
        let mut metrics: Vec<&str> = Vec::new();
        for series in section.series.iter().filter(|s| s.profile == profile) {
            if !metrics.contains(&series.metric.as_str()) {
                metrics.push(&series.metric);
            }
        }
        // Numbers count metrics in curves, too, since files must keep their names when a curve is added.
        for (n, metric) in metrics.iter().enumerate().filter(|(_, metric)| !in_curves(metric)) {
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

/// Colours of the lines of a curve: blue tones for Pagefold, others for its rivals.
const OURS: [RGBColor; 3] =
    [RGBColor(0x1f, 0x77, 0xb4), RGBColor(0x6b, 0xae, 0xd6), RGBColor(0x08, 0x30, 0x6b)];
const THEIRS: [RGBColor; 5] = [
    RGBColor(0xd9, 0x5f, 0x02),
    RGBColor(0x66, 0xa6, 0x1e),
    RGBColor(0x75, 0x70, 0xb3),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x60, 0x60, 0x60),
];

/// Returns the medians of each system that was measured at two points of the curve or more.
fn lines(section: &Section, curve: &Curve) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for (at, metric) in &curve.points {
        let found = section.series.iter().filter(|s| s.profile == curve.profile && s.metric == *metric);
        for series in found {
            let point = (*at, series.median());
            match lines.iter_mut().find(|(system, _)| *system == series.system) {
                Some((_, points)) => points.push(point),
                None => lines.push((series.system.clone(), vec![point])),
            }
        }
    }
    lines.retain(|(_, points)| points.len() > 1);
    lines
}

fn draw_curve(path: &Path, section: &Section, curve: &Curve) -> Drawn {
    let lines = lines(section, curve);
    let highest =
        lines.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
    let last = curve.points.iter().map(|(at, _)| *at).fold(f64::MIN_POSITIVE, f64::max);
    let area = SVGBackend::new(path, (WIDTH, 380)).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("{}, {}", curve.title, curve.profile.name());
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..last * 1.02, 0.0..highest * 1.1)?;
    chart.configure_mesh().x_desc(curve.changed.as_str()).draw()?;
    let (mut ours, mut theirs) = (OURS.into_iter().cycle(), THEIRS.into_iter().cycle());
    for (system, points) in lines {
        let of = if system.to_lowercase().contains("pagefold") { ours.next() } else { theirs.next() };
        let colour = of.unwrap_or(BLACK);
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
            .label(system)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
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

    #[test]
    fn what_is_measured_at_several_settings_is_one_plot() {
        const FEW: Metric = Metric { name: "few", unit: "/s" };
        const MANY: Metric = Metric { name: "many", unit: "/s" };
        let mut section = Section::default();
        for (metric, value) in [(FEW, 10.0), (MANY, 30.0)] {
            section.add(Profile::Throttled, metric, "ext4", value);
            section.add(Profile::Throttled, metric, "pagefold-auto", value * 2.0);
        }
        section.add(Profile::Throttled, MANY, "only here", 5.0);
        let points = vec![(8.0, "few".to_owned()), (64.0, "many".to_owned())];
        let (title, changed) = ("rate".to_owned(), "connections".to_owned());
        let curve = Curve { title, changed, profile: Profile::Throttled, points };
        section.curve(curve.clone());
        section.curve(curve.clone());
        assert_eq!(
            lines(&section, &curve),
            [
                ("ext4".to_owned(), vec![(8.0, 10.0), (64.0, 30.0)]),
                ("pagefold-auto".to_owned(), vec![(8.0, 20.0), (64.0, 60.0)]),
            ]
        );
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(draw_all("x", &section, dir.path()).unwrap(), ["x-throttled-curve-1.svg"]);
        let svg = std::fs::read_to_string(dir.path().join("x-throttled-curve-1.svg")).unwrap();
        assert!(svg.contains("connections") && svg.contains("pagefold-auto"), "{svg}");
    }
}
