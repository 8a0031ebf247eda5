//! Requests to pools and their devices, by class.

use std::collections::BTreeMap;

use pagefold_server::control::{Activity, DeviceActivity, RequestFigures};
use pagefold_server::{raw, units};

use crate::args::Iostat;
use crate::table::{Align, Table};

/// A class of requests: its name, and headings of its columns of latencies; of mean times; and of requests that wait for
/// their turns, and of those in flight.
struct Class {
    name: &'static str,
    heading: &'static str,
    wait: &'static str,
    queues: [&'static str; 2],
}

const fn class(
    name: &'static str,
    heading: &'static str,
    wait: &'static str,
    queues: [&'static str; 2],
) -> Class {
    Class { name, heading, wait, queues }
}

const CLASSES: [Class; 9] = [
    class("sync_read", "SYNCR", "SYNCR WAIT", ["SYNCR PEND", "SYNCR NOW"]),
    class("log", "LOG", "LOG WAIT", ["LOG PEND", "LOG NOW"]),
    class("async_read", "ASYNCR", "ASYNCR WAIT", ["ASYNCR PEND", "ASYNCR NOW"]),
    class("async_write", "ASYNCW", "ASYNCW WAIT", ["ASYNCW PEND", "ASYNCW NOW"]),
    class("cleaning", "CLEAN", "CLEAN WAIT", ["CLEAN PEND", "CLEAN NOW"]),
    class("recompression", "RECOMP", "RECOMP WAIT", ["RECOMP PEND", "RECOMP NOW"]),
    class("filling", "FILL", "FILL WAIT", ["FILL PEND", "FILL NOW"]),
    class("scrub", "SCRUB", "SCRUB WAIT", ["SCRUB PEND", "SCRUB NOW"]),
    class("discard", "TRIM", "TRIM WAIT", ["TRIM PEND", "TRIM NOW"]),
];

/// A pool, a mirror or a device, and what was asked of its devices.
struct Reported<'a> {
    name: String,
    /// Bytes that are taken and free, if that is known of it.
    space: Option<(u64, u64)>,
    seconds: f64,
    requests: Vec<&'a RequestFigures>,
    /// Reads that were sent to a second device, too, and those of them that it answered first.
    hedges: [u64; 2],
}

/// RequestSums of some requests.
#[derive(Clone, Copy, Default)]
struct RequestSums {
    operations: u64,
    bytes: u64,
    total_ns: u64,
    waiting: u64,
    in_flight: u64,
}

impl RequestSums {
    /// Returns the mean time of a request; `None` without requests.
    fn mean_ns(self) -> Option<u64> {
        self.total_ns.checked_div(self.operations)
    }
}

impl Reported<'_> {
    fn sums(&self, wanted: impl Fn(&RequestFigures) -> bool) -> RequestSums {
        let of = self.requests.iter().filter(|of| wanted(of));
        of.fold(RequestSums::default(), |sums, of| RequestSums {
            operations: sums.operations.saturating_add(of.operations),
            bytes: sums.bytes.saturating_add(of.bytes),
            total_ns: sums.total_ns.saturating_add(of.total_ns),
            waiting: sums.waiting.saturating_add(of.waiting),
            in_flight: sums.in_flight.saturating_add(of.in_flight),
        })
    }

    fn of_kind(&self, kind: &str) -> RequestSums {
        self.sums(|of| of.kind == kind)
    }

    /// Returns the sums of a class, without flushes: those of a log take longer than its writes by far, and have a
    /// column of their own.
    fn of_class(&self, class: &str) -> RequestSums {
        self.sums(|of| of.class == class && of.kind != "flush")
    }
}

/// Returns what is to be told of: each pool, and with `-v` its mirrors and devices below it, the log device last.
fn all_reported<'a>(rates: &'a [(&str, Activity)], args: &Iostat) -> Vec<Reported<'a>> {
    let mut all = Vec::new();
    for (pool, activity) in rates {
        let seconds = (activity.age_ms as f64 / 1000.0).max(0.001);
        let of = |name, space, devices: &'a [DeviceActivity]| {
            let requests = devices.iter().flat_map(|device| &device.requests).collect();
            let hedges = [|of: &DeviceActivity| of.hedged_reads, |of: &DeviceActivity| of.hedges_won];
            let hedges = hedges.map(|count| devices.iter().map(count).sum());
            Reported { name, space, seconds, requests, hedges }
        };
        let free_bytes = activity.size_bytes.saturating_sub(activity.allocated_bytes);
        let space = Some((activity.allocated_bytes, free_bytes));
        all.push(of((*pool).to_owned(), space, &activity.devices));
        if !args.verbose {
            continue;
        }
        // Scripts tell the levels by names, since a name keeps its leading spaces only for people.
        let indent = |level: usize| if args.output.script { "" } else { &"      "[..2 * level] };
        let is_log = |group: &&[DeviceActivity]| group.iter().any(|device| device.log);
        let by_group = || activity.devices.chunk_by(|a, b| a.group == b.group);
        let groups = by_group().filter(|group| !is_log(group)).chain(by_group().filter(is_log));
        for group in groups {
            let mut level = 1;
            if let (true, Some(first)) = (is_log(&group), group.first()) {
                all.push(of(format!("{}logs", indent(level)), space_of(first), group));
                level += 1;
            }
            if let [first, _, ..] = group {
                let name = crate::verbs::devices::mirror_name(first.group);
                all.push(of(format!("{}{name}", indent(level)), space_of(first), group));
                level += 1;
            }
            for device in group {
                let name = match device.path.as_os_str().is_empty() {
                    true => format!("number {}", device.number),
                    false => raw::text(&device.path),
                };
                let name = format!("{}{name}", indent(level));
                let space = if group.len() == 1 { space_of(device) } else { None };
                all.push(of(name, space, std::slice::from_ref(device)));
            }
        }
    }
    all
}

/// Returns the bytes of a device's group that are in use, and the others.
fn space_of(device: &DeviceActivity) -> Option<(u64, u64)> {
    Some((device.allocated_bytes, device.free_bytes))
}

/// Makes the table of operations and bytes per second, and, if they are asked for, of mean times, and of requests that
/// wait for their turns or are in flight.
pub(super) fn table(rates: &[(&str, Activity)], args: &Iostat) -> Table {
    let mut columns = vec![("NAME", Align::Left)];
    let mut numbers = |names: &[&'static str]| columns.extend(names.iter().map(|name| (*name, Align::Right)));
    numbers(&["ALLOC", "FREE", "READ/s", "WRITE/s", "READ B/s", "WRITE B/s"]);
    if args.latency {
        numbers(&["READ WAIT", "WRITE WAIT", "FLUSH WAIT"]);
        CLASSES.iter().for_each(|class| numbers(&[class.wait]));
        numbers(&["HEDGED", "WON"]);
    }
    if args.queues {
        CLASSES.iter().for_each(|class| numbers(&class.queues));
    }
    let exact = args.output.exact;
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let rate = |count: f64| if exact { format!("{count:.1}") } else { units::count(count) };
    let time = |ns: u64| if exact { ns.to_string() } else { units::nanoseconds(ns) };
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut table = Table::new(&columns);
    for reported in all_reported(rates, args) {
        let (reads, writes, flushes) =
            (reported.of_kind("read"), reported.of_kind("write"), reported.of_kind("flush"));
        let mut row = vec![
            reported.name.clone(),
            known(reported.space.map(|(allocated, _)| size(allocated))),
            known(reported.space.map(|(_, free)| size(free))),
            rate(reads.operations as f64 / reported.seconds),
            rate(writes.operations as f64 / reported.seconds),
            size((reads.bytes as f64 / reported.seconds) as u64),
            size((writes.bytes as f64 / reported.seconds) as u64),
        ];
        if args.latency {
            let kinds = [reads, writes, flushes];
            let all = kinds.into_iter().chain(CLASSES.iter().map(|class| reported.of_class(class.name)));
            row.extend(all.map(|sums| known(sums.mean_ns().map(time))));
            let count = |reads: u64| if exact { reads.to_string() } else { units::count(reads as f64) };
            row.extend(reported.hedges.map(count));
        }
        if args.queues {
            let now = |class: &Class| {
                let sums = reported.sums(|of| of.class == class.name);
                [sums.waiting, sums.in_flight].map(|requests| requests.to_string())
            };
            row.extend(CLASSES.iter().flat_map(now));
        }
        table.row(row);
    }
    table
}

/// Makes the table of how many requests took how long: by kind, and by class without flushes.
pub(super) fn histograms(rates: &[(&str, Activity)], args: &Iostat) -> Table {
    let mut columns = vec![("NAME", Align::Left), ("BELOW", Align::Right)];
    columns.extend(["READ", "WRITE", "FLUSH"].map(|kind| (kind, Align::Right)));
    columns.extend(CLASSES.iter().map(|class| (class.heading, Align::Right)));
    let mut table = Table::new(&columns);
    let exact = args.output.exact;
    let count =
        |operations: u64| if exact { operations.to_string() } else { units::count(operations as f64) };
    for reported in all_reported(rates, args) {
        // Of each range: how many there were of each kind, and of each class.
        let mut ranges: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for of in &reported.requests {
            let by_kind = ["read", "write", "flush"].map(|kind| of.kind == kind);
            let by_class = CLASSES.iter().map(|class| of.class == class.name && of.kind != "flush");
            let counted: Vec<bool> = by_kind.into_iter().chain(by_class).collect();
            for latency in &of.latencies {
                let sums = ranges.entry(latency.below_ns).or_insert_with(|| vec![0; counted.len()]);
                for (sum, _) in sums.iter_mut().zip(&counted).filter(|(_, counted)| **counted) {
                    *sum = sum.saturating_add(latency.operations);
                }
            }
        }
        for (below_ns, sums) in ranges {
            let below = if exact { below_ns.to_string() } else { units::nanoseconds(below_ns) };
            let head = [reported.name.clone(), below];
            table.row(head.into_iter().chain(sums.into_iter().map(count)).collect());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use pagefold_server::control::LatencyFigures;

    use super::*;
    use crate::args::Output;

    fn requests(class: &str, kind: &str, operations: u64) -> RequestFigures {
        RequestFigures {
            class: class.into(),
            kind: kind.into(),
            waiting: 1,
            in_flight: 2,
            operations,
            bytes: operations * 8192,
            errors: 0,
            total_ns: operations * 100_000,
            latencies: vec![LatencyFigures { below_ns: 1 << 17, operations }],
        }
    }

    fn device(number: u16, group: u16, requests: Vec<RequestFigures>) -> DeviceActivity {
        let path = format!("/dev/sd{number}").into();
        DeviceActivity {
            number,
            group,
            log: false,
            state: "ONLINE".into(),
            path,
            allocated_bytes: 40 << 20,
            free_bytes: 8 << 20,
            requests,
            hedged_reads: 3,
            hedges_won: 2,
        }
    }

    fn of_mirror() -> Vec<(&'static str, Activity)> {
        let first = vec![requests("sync_read", "read", 10), requests("log", "write", 4)];
        let second = vec![requests("log", "write", 4), requests("log", "flush", 1)];
        let devices = vec![
            device(0, 0, first),
            device(1, 0, second),
            device(2, 1, vec![requests("scrub", "read", 20)]),
        ];
        let (age_ms, size_bytes, allocated_bytes) = (2000, 300 << 20, 100 << 20);
        vec![("tank", Activity { age_ms, size_bytes, allocated_bytes, devices, ..Activity::default() })]
    }

    fn rows(table: &Table) -> Vec<Vec<String>> {
        table.render(true).lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }

    fn args(set: impl FnOnce(&mut Iostat)) -> Iostat {
        let mut args = Iostat { output: Output { exact: true, ..Output::default() }, ..Iostat::default() };
        set(&mut args);
        args
    }

    #[test]
    fn a_pool_is_the_sum_of_its_devices() {
        let told = rows(&table(&of_mirror(), &args(|_| {})));
        let (allocated, free) = ((100 << 20).to_string(), (200 << 20).to_string());
        assert_eq!(told, [["tank", &allocated, &free, "15.0", "4.0", "122880", "32768"]]);
        let told = table(&of_mirror(), &args(|args| args.verbose = true)).render(false);
        let names: Vec<&str> = told
            .lines()
            .map(|line| {
                &line[..line.len() - line.trim_start().len()
                    + line.split_whitespace().next().unwrap_or_default().len()]
            })
            .collect();
        assert_eq!(names[2..], ["  mirror-0", "    /dev/sd0", "    /dev/sd1", "  /dev/sd2"], "{told}");
        let told =
            rows(&table(&of_mirror(), &args(|args| (args.verbose, args.output.script) = (true, true))));
        assert_eq!(told[2], ["/dev/sd0", "-", "-", "5.0", "2.0", "40960", "16384"]);
    }

    #[test]
    fn the_log_device_comes_last_below_its_heading() {
        let mut activity = of_mirror();
        for device in activity[0].1.devices.iter_mut().filter(|device| device.group == 0) {
            device.log = true;
        }
        let told = table(&activity, &args(|args| args.verbose = true)).render(false);
        let names: Vec<&str> =
            told.lines().map(|line| line.split(char::is_numeric).next().unwrap().trim_end()).collect();
        assert_eq!(names[2..], ["  /dev/sd", "  logs", "    mirror-", "      /dev/sd", "      /dev/sd"]);
        let scripted = |args: &mut Iostat| (args.verbose, args.output.script) = (true, true);
        let told = rows(&table(&activity, &args(scripted)));
        assert_eq!(told[2][..3], ["logs", &(40 << 20).to_string(), &(8 << 20).to_string()]);
        assert_eq!((told[2][3].as_str(), told[4][1].as_str()), ("5.0", "-"));
    }

    #[test]
    fn times_and_queues_are_told_by_class() {
        let told = rows(&table(&of_mirror(), &args(|args| args.latency = true)));
        let wait = "100000";
        let hedges = ["9", "6"];
        assert_eq!(told[0][7..19], [wait, wait, wait, wait, wait, "-", "-", "-", "-", "-", wait, "-"]);
        assert_eq!(told[0][19..], hedges);
        let told = rows(&table(&of_mirror(), &args(|args| args.queues = true)));
        let none = ["0"; 10];
        assert_eq!(told[0][7..11], ["1", "2", "3", "6"]);
        assert_eq!(
            (&told[0][11..21], &told[0][21..]),
            (&none.map(String::from)[..], &["1", "2", "0", "0"].map(String::from)[..])
        );
        let mut told = rows(&table(&of_mirror(), &args(|args| (args.latency, args.queues) = (true, true))));
        assert_eq!(told.pop().unwrap().len(), 7 + 14 + 18);
    }

    #[test]
    fn histograms_count_by_kind_and_class() {
        let told = rows(&histograms(&of_mirror(), &args(|_| {})));
        let sums = ["30", "8", "1", "10", "8", "0", "0", "0", "0", "0", "20", "0"];
        assert_eq!(told.len(), 1);
        assert_eq!(told[0][..2], ["tank", "131072"]);
        assert_eq!(told[0][2..], sums);
    }
}
