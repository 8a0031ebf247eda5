//! Bytes written to devices, by cause.

use pagefold_server::control::Activity;
use pagefold_server::units;

use crate::args::Output;
use crate::table::{Align, Table};

/// Makes the table of counters by cause.
pub(super) fn table(rates: &[(&str, Activity)], output: Output) -> Table {
    let mut table = Table::new(&[
        ("POOL", Align::Left),
        ("CAUSE", Align::Left),
        ("OPS", Align::Right),
        ("BYTES", Align::Right),
        ("OPS/s", Align::Right),
        ("BYTES/s", Align::Right),
        ("P50", Align::Right),
        ("P90", Align::Right),
    ]);
    for (pool, activity) in rates {
        let seconds = (activity.age_ms as f64 / 1000.0).max(0.001);
        let plain =
            activity.counters.iter().map(|counter| (&counter.name, counter.operations, counter.bytes, None));
        let rewrites = activity.rewrites.iter();
        let rewrites =
            rewrites.map(|of| (&of.name, of.operations, of.bytes, of.percentile(50).zip(of.percentile(90))));
        for (name, operations, bytes, percentiles) in plain.chain(rewrites) {
            let exact = output.exact;
            let count = |count: f64| if exact { format!("{count:.1}") } else { units::count(count) };
            let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
            let percentile = |of: Option<u32>| of.map_or_else(|| "-".to_owned(), |bytes| size(bytes.into()));
            table.row(vec![
                (*pool).to_owned(),
                name.clone(),
                if exact { operations.to_string() } else { units::count(operations as f64) },
                size(bytes),
                count(operations as f64 / seconds),
                size((bytes as f64 / seconds) as u64),
                percentile(percentiles.map(|of| of.0)),
                percentile(percentiles.map(|of| of.1)),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use pagefold_server::control::{LengthFigures, RewriteFigures};

    #[test]
    fn percentiles_are_of_the_records() {
        let lengths = [(10, 50), (20, 39), (30, 1), (40, 10)];
        let lengths = lengths.map(|(at_most_bytes, operations)| LengthFigures { at_most_bytes, operations });
        let rewrites = RewriteFigures { lengths: lengths.to_vec(), ..RewriteFigures::default() };
        let of = |percent| rewrites.percentile(percent).unwrap();
        assert_eq!([0, 50, 51, 90, 91, 100].map(of), [10, 10, 20, 30, 40, 40]);
        assert_eq!(RewriteFigures::default().percentile(50), None);
    }
}
