//! Tests the entropy coder alone.

use proptest::prelude::*;

use crate::Corrupt;
use crate::entropy::histogram::Histogram;
use crate::entropy::number;
use crate::entropy::rans::Ops;
use crate::entropy::{Decoder, Encoder, Sink, Stream, Table};
use crate::wire::Reader;

/// Returns a stream that was trained on `symbols`, stored and read again.
fn trained(symbols: &[(u8, u8)]) -> Stream {
    let mut histogram = Histogram::default();
    for &(ctx, symbol) in symbols {
        histogram.add(ctx, symbol);
    }
    let (stream, _) = histogram.train();
    let mut stored = vec![];
    stream.write(&mut stored);
    let mut reader = Reader::new(&stored);
    let read = Stream::read(&mut reader, &mut 256).unwrap();
    assert!(reader.is_empty());
    assert_eq!(read, stream);
    read
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Symbol(u8, u8),
    Bits(u32, u32),
    Number(u64),
}

fn op() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4u8, 0..20u8).prop_map(|(ctx, symbol)| Step::Symbol(ctx, symbol)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(ctx, symbol)| Step::Symbol(ctx, symbol)),
        1 => (0..=16u32, any::<u32>()).prop_map(|(n, value)| Step::Bits(value & ((1 << n) - 1), n)),
        1 => (0..64u32, any::<u64>()).prop_map(|(shift, value)| Step::Number(value >> shift)),
    ]
}

proptest! {
    #[test]
    fn what_was_put_is_got(
        training in proptest::collection::vec((0..4u8, 0..24u8), 0..3000),
        ops in proptest::collection::vec(op(), 0..400),
        carried in any::<[u16; 2]>(),
    ) {
        let streams = [trained(&training), trained(&[])];
        let mut buffer = Ops::default();
        let mut encoder = Encoder::new(&streams, &mut buffer);
        for &op in &ops {
            match op {
                Step::Symbol(ctx, symbol) => encoder.put(0, ctx, symbol),
                Step::Bits(value, n) => encoder.bits(value, n),
                Step::Number(value) => { number::put(&mut encoder, 1, 0, value); }
            }
        }
        let mut code = vec![];
        buffer.finish(carried, &mut code);
        let mut decoder = Decoder::new(&code).unwrap();
        for &op in &ops {
            match op {
                Step::Symbol(ctx, symbol) => prop_assert_eq!(decoder.get(streams[0].view(ctx)), symbol),
                Step::Bits(value, n) => prop_assert_eq!(decoder.bits(n), value),
                Step::Number(value) => prop_assert_eq!(number::get(&mut decoder, &streams[1], 0).1, value),
            }
        }
        prop_assert_eq!(decoder.finish(), Ok(carried));
        // A code that is cut off or goes on is noticed, and reading beyond its end is harmless.
        let mut decoder = Decoder::new(&code[..code.len() - 1]);
        if let Ok(decoder) = &mut decoder {
            for _ in 0..2 * ops.len() {
                decoder.get(streams[0].view(0));
            }
        }
        code.extend([0, 0]);
        let mut decoder = Decoder::new(&code).unwrap();
        for &op in &ops {
            match op {
                Step::Symbol(ctx, _) => { decoder.get(streams[0].view(ctx)); }
                Step::Bits(_, n) => { decoder.bits(n); }
                Step::Number(_) => { number::get(&mut decoder, &streams[1], 0); }
            }
        }
        prop_assert!(decoder.finish().is_err());
    }

    #[test]
    fn numbers_are_split_and_joined(value in any::<u64>(), shift in 0..64u32) {
        let value = value >> shift;
        let (symbol, plain, n) = number::split(value);
        prop_assert!(n == number::plain_bits(symbol) && (n == 64 || plain >> n == 0));
        prop_assert_eq!(number::join(symbol, plain), value);
        prop_assert_eq!(number::zigzag(number::unzigzag(value)), value);
    }

    #[test]
    fn any_bytes_are_a_stream_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Stream::read(&mut Reader::new(&bytes), &mut 256);
    }
}

#[test]
fn a_skewed_distribution_costs_its_entropy() {
    let mut counts = [0; 256];
    (counts[1], counts[2]) = (900, 100);
    let table = Table::of_counts(&counts);
    let entropy = 900.0 * (1000.0f64 / 900.0).log2() + 100.0 * 10f64.log2();
    assert!(table.cost_bits(&counts) < entropy * 1.02 + 8.0, "{} {entropy}", table.cost_bits(&counts));
    assert!(table.knows(1) && !table.knows(3));
}

#[test]
fn tables_that_do_not_add_up_are_refused() {
    let read = |bytes: &[u8]| Table::read(&mut Reader::new(bytes));
    // The bytes are precision, escape symbol, count; then symbol (less the one before, less 1) and frequency of each.
    assert!(read(&[1, 7, 2, 3, 1, 3, 1]).is_ok());
    assert_eq!(read(&[1, 7, 2, 3, 1, 3, 2]).unwrap_err(), Corrupt("a table's frequencies"));
    assert_eq!(read(&[1, 8, 2, 3, 1, 3, 1]).unwrap_err(), Corrupt("a table's frequencies"));
    assert_eq!(read(&[13, 7, 2, 3, 1, 3, 1]).unwrap_err(), Corrupt("a table's precision"));
}
