//! Makes relations as applications have them, from a seed: heap pages of 8 KiB as a load leaves them, for measuring.

use super::heap::tuple_head;
use super::{Random, align, put_line, put16, put32};

const PAGE: usize = 8192;
/// Microseconds of a day.
const DAY: u64 = 86_400_000_000;
const SYLLABLES: [&str; 24] = [
    "ham", "ton", "ford", "wick", "bury", "ash", "oak", "mill", "stan", "nor", "wes", "ley", "by", "cas",
    "ter", "hill", "brook", "har", "den", "low", "field", "king", "mar", "sea",
];
const STREETS: [&str; 8] = ["STREET", "ROAD", "LANE", "AVENUE", "CLOSE", "DRIVE", "WAY", "GARDENS"];

/// A row: `None` for null values.
type Row = Vec<Option<Datum>>;
/// Makes the row with this number.
type Make = fn(&mut Random, usize) -> Row;

enum Datum {
    Text(String),
    Int(u32),
    Long(u64),
    Double(f64),
    Uuid(Vec<u8>),
}

fn text(value: impl Into<String>) -> Option<Datum> {
    Some(Datum::Text(value.into()))
}

/// Returns the name of a place, a street, a person: the same number always has the same name.
fn name(which: usize) -> String {
    let mut of_place = Random::new(which as u64 + 77);
    let parts = 2 + of_place.below(2);
    (0..parts).map(|_| SYLLABLES[of_place.below(SYLLABLES.len())]).collect()
}

/// Returns a sentence of 4 to 20 words: the same number always has the same sentence.
fn remark(which: usize) -> String {
    let mut of_remark = Random::new(which as u64 + 7777);
    let words: Vec<String> =
        (0..4 + of_remark.below(17)).map(|_| name(skewed(&mut of_remark, 900))).collect();
    words.join(" ")
}

fn hex(random: &mut Random, digits: usize) -> String {
    (0..digits).map(|_| char::from(b"0123456789abcdef"[random.below(16)])).collect()
}

fn day(n: usize) -> String {
    format!("20{:02}-{:02}-{:02}", 10 + n / 336 % 15, 1 + n / 28 % 12, 1 + n % 28)
}

/// Draws a number below `n`; small numbers are more frequent.
fn skewed(random: &mut Random, n: usize) -> usize {
    let below = 1 + random.below(n);
    random.below(below)
}

fn text_heavy(random: &mut Random, n: usize) -> Row {
    let town = skewed(random, 300);
    let street = skewed(random, 4000);
    let date = random.below(5000);
    vec![
        text(hex(random, 24)),
        text(format!("C{:08}", random.below(100_000_000))),
        text(name(town).to_uppercase()),
        text(name(town / 8 + 1000).to_uppercase()),
        text(format!("{} {}", name(street + 5000).to_uppercase(), STREETS[street % STREETS.len()])),
        text((1 + skewed(random, 250)).to_string()),
        text(format!("{}{} {}{}", &name(town)[..2].to_uppercase(), town % 30, random.below(10), {
            let letters = [random.below(26), random.below(26)];
            letters.map(|letter| char::from(b'A' + letter as u8)).iter().collect::<String>()
        })),
        text(day(date)),
        text(day(date + random.below(40))),
        text(format!("{}.{:02}", 50 + skewed(random, 900_000), random.below(100))),
        text(format!("{}.00", 1000 * (30 + skewed(random, 700)))),
        text(remark(skewed(random, 3000))),
        (!random.once_in(3)).then(|| Datum::Text(remark(random.below(500)))),
        text(["new", "open", "sold", "withdrawn"][skewed(random, 4)]),
        text(""),
        None,
        Some(Datum::Int(n as u32)),
    ]
}

fn json(random: &mut Random, n: usize) -> Row {
    let user = skewed(random, 5000);
    let id = hex(random, 12);
    let items: Vec<String> = (0..1 + random.below(3))
        .map(|_| {
            let article = skewed(random, 800);
            format!(
                "{{\"sku\": \"{}-{article:04}\", \"quantity\": {}, \"price\": {}.{:02}}}",
                name(article),
                1 + skewed(random, 9),
                article % 190,
                article % 100
            )
        })
        .collect();
    vec![
        Some(Datum::Long(n as u64)),
        text(format!(
            "{{\"id\": \"{id}\", \"user\": {{\"id\": {user}, \"name\": \"{}\", \"verified\": {}}}, \"items\": [{}], \
             \"created\": \"{}T{:02}:{:02}:{:02}Z\", \"channel\": \"{}\"}}",
            name(user + 9000),
            !user.is_multiple_of(3),
            items.join(", "),
            day(n / 900),
            n / 60 % 24,
            n % 60,
            random.below(60),
            ["web", "app", "shop"][skewed(random, 3)],
        )),
    ]
}

fn logs(random: &mut Random, n: usize) -> Row {
    let host = skewed(random, 40);
    let path = skewed(random, 200);
    let message = match random.below(4) {
        0 => format!("connection from 10.{}.{}.{} closed", host, random.below(256), random.below(256)),
        1 => format!("cache miss for key session:{}", hex(random, 16)),
        _ => format!(
            "GET /{}/{} {} {} {}ms",
            name(path),
            skewed(random, 90_000),
            [200, 200, 304, 404][random.below(4)],
            random.below(60_000),
            skewed(random, 900)
        ),
    };
    vec![
        Some(Datum::Long(700_000_000_000_000 + n as u64 * 41_000 + random.below(30_000) as u64)),
        text(format!("host-{host:02}")),
        text(["INFO", "INFO", "WARN", "ERROR"][skewed(random, 4)]),
        text(message),
    ]
}

fn time_series(random: &mut Random, n: usize) -> Row {
    let sensor = n % 40;
    vec![
        Some(Datum::Long(6000 * DAY + (n / 40) as u64 * 10_000_000)),
        Some(Datum::Int(sensor as u32)),
        Some(Datum::Double((2000 + sensor * 10 + skewed(random, 100)) as f64 / 100.0)),
        Some(Datum::Double(1000.0 + (n / 400 % 30) as f64 / 10.0)),
        Some(Datum::Int(random.below(5) as u32)),
    ]
}

fn wide(random: &mut Random, n: usize) -> Row {
    let mut row = vec![Some(Datum::Long(n as u64))];
    for column in 0..60 {
        row.push(match column % 5 {
            0 => Some(Datum::Int(skewed(random, 1000) as u32)),
            1 => text(["yes", "no", "unknown"][skewed(random, 3)]),
            2 => (!random.once_in(3)).then(|| Datum::Int((n + column) as u32)),
            3 => text(name(skewed(&mut Random::new((n * column) as u64), 60))),
            _ => random.once_in(8).then(|| Datum::Double(random.below(10_000) as f64 / 4.0)),
        });
    }
    row
}

fn uuid_keys(random: &mut Random, n: usize) -> Row {
    let parts = [8, 4, 3, 3, 12].map(|digits| hex(random, digits));
    let [a, b, c, d, e] = parts;
    vec![
        text(format!("{a}-{b}-4{c}-a{d}-{e}")),
        Some(Datum::Uuid(random.bytes(16))),
        Some(Datum::Long(n as u64)),
    ]
}

fn tuple(row: &Row, block: usize, line: usize) -> Vec<u8> {
    let present: Vec<bool> = row.iter().map(Option::is_some).collect();
    let mut tuple = tuple_head(&present, block, line);
    put32(&mut tuple, 0, 733);
    for value in row.iter().flatten() {
        match value {
            Datum::Text(text) if text.len() <= 126 => {
                tuple.push(((text.len() + 1) << 1 | 1) as u8);
                tuple.extend_from_slice(text.as_bytes());
            }
            Datum::Text(text) => {
                align(&mut tuple, 4);
                tuple.extend_from_slice(&(((text.len() + 4) << 2) as u32).to_le_bytes());
                tuple.extend_from_slice(text.as_bytes());
            }
            Datum::Int(value) => {
                align(&mut tuple, 4);
                tuple.extend_from_slice(&value.to_le_bytes());
            }
            Datum::Long(value) => {
                align(&mut tuple, 8);
                tuple.extend_from_slice(&value.to_le_bytes());
            }
            Datum::Double(value) => {
                align(&mut tuple, 8);
                tuple.extend_from_slice(&value.to_le_bytes());
            }
            Datum::Uuid(bytes) => tuple.extend_from_slice(bytes),
        }
    }
    tuple
}

/// All relations: their names, and the functions that make their rows.
const RELATIONS: [(&str, Make); 6] = [
    ("text_heavy", text_heavy),
    ("json", json),
    ("logs", logs),
    ("time_series", time_series),
    ("wide", wide),
    ("uuid_keys", uuid_keys),
];

/// Returns each relation's name and its first `pages` pages, one behind the other.
pub fn relations(pages: usize) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    RELATIONS.iter().map(move |(name, make)| (*name, relation(*make, pages)))
}

fn relation(make: Make, pages: usize) -> Vec<u8> {
    let mut random = Random::new(18);
    let mut n = 0;
    let mut row = make(&mut random, n);
    let mut out = Vec::with_capacity(pages * PAGE);
    for block in 0..pages {
        let mut page = vec![0; PAGE];
        let (mut end, mut lines) = (PAGE, 0);
        loop {
            let bytes = tuple(&row, block, lines + 1);
            let begin = end.saturating_sub(bytes.len().next_multiple_of(8));
            if begin < 24 + 4 * (lines + 1) {
                break;
            }
            end = begin;
            page[end..end + bytes.len()].copy_from_slice(&bytes);
            put_line(&mut page, lines, end, 1, bytes.len());
            lines += 1;
            n += 1;
            row = make(&mut random, n);
        }
        put32(&mut page, 4, 0x0100_0000 + block as u64 * 8200);
        put16(&mut page, 12, 24 + 4 * lines);
        put16(&mut page, 14, end);
        put16(&mut page, 16, PAGE);
        put16(&mut page, 18, PAGE | 4);
        out.extend(page);
    }
    out
}
