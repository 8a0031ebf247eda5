//! Counts the edges of the code that inputs reach: those of folders, or those that the unguided fuzzer makes.

use std::path::PathBuf;
use std::process::exit;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use pagefold_fuzz::targets::TARGETS;
use pagefold_fuzz::{Target, memory, mutate, run};
use pagefold_sim::random::Random;

#[global_allocator]
static ALLOCATOR: memory::Noting = memory::Noting;

static FIRST: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Called by each instrumented object before `main`, with its counters. One binary has one array of them.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(first: *mut u8, end: *mut u8) {
    FIRST.store(first, Relaxed);
    COUNT.store((end as usize) - (first as usize), Relaxed);
}

/// The places of the edges are not needed.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_pcs_init(_first: *const usize, _end: *const usize) {}

macro_rules! no_comparisons {
    ($($name:ident: $number:ty),*) => {
        $(#[unsafe(no_mangle)] extern "C" fn $name(_a: $number, _b: $number) {})*
    };
}

no_comparisons!(
    __sanitizer_cov_trace_cmp1: u8, __sanitizer_cov_trace_cmp2: u16, __sanitizer_cov_trace_cmp4: u32,
    __sanitizer_cov_trace_cmp8: u64, __sanitizer_cov_trace_const_cmp1: u8, __sanitizer_cov_trace_const_cmp2: u16,
    __sanitizer_cov_trace_const_cmp4: u32, __sanitizer_cov_trace_const_cmp8: u64
);

#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_pc_indir(_callee: usize) {}

#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_switch(_value: u64, _cases: *const u64) {}

fn counters() -> &'static mut [u8] {
    // SAFETY: the array is the binary's own, and this program has one thread.
    unsafe { std::slice::from_raw_parts_mut(FIRST.load(Relaxed), COUNT.load(Relaxed)) }
}

/// The edges that were reached.
struct Seen(Vec<bool>);

impl Seen {
    fn none() -> Self {
        counters().fill(0);
        Self(vec![false; counters().len()])
    }

    /// Takes the counters. They have eight bits, so one that is taken late may have come round to zero.
    fn take(&mut self) {
        for (seen, count) in self.0.iter_mut().zip(counters()) {
            *seen |= *count > 0;
            *count = 0;
        }
    }

    fn count(&self) -> usize {
        self.0.iter().filter(|seen| **seen).count()
    }
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let named = |name: &String| TARGETS.iter().find(|target| target.name == name);
    let (Some(target), Some(verb)) = (words.first().and_then(named), words.get(1)) else {
        eprintln!(
            "cover TARGET unguided SECONDS SEED | cover TARGET seeds FOLDER | cover TARGET folder FOLDER"
        );
        exit(2)
    };
    match verb.as_str() {
        "unguided" => unguided(target, words[2].parse().expect("seconds"), words[3].parse().expect("a seed")),
        "seeds" => {
            for (number, bytes) in (target.seeds)().iter().enumerate() {
                std::fs::write(PathBuf::from(&words[2]).join(format!("seed-{number}")), bytes)
                    .expect("write");
            }
        }
        _ => folder(target, &words[2]),
    }
}

fn unguided(target: &Target, seconds: u64, seed: u64) {
    // That the seeds are made by the program itself must not count.
    let seeds = (target.seeds)();
    let mut random = Random::new(seed);
    let (mut executions, mut accepted, mut finds) = (0_u64, 0_u64, 0_u64);
    let until = run::cpu_time() + Duration::from_secs(seconds);
    let mut next = seeds.iter().cloned();
    let mut seen = Seen::none();
    while executions % 64 != 0 || run::cpu_time() < until {
        let bytes = next.next().unwrap_or_else(|| mutate::input(&mut random, &seeds));
        match run::try_input(target, &bytes) {
            Ok(taken) => accepted += u64::from(taken),
            Err(_) => finds += 1,
        }
        executions += 1;
        if executions % 64 == 0 {
            seen.take();
        }
    }
    println!(
        "{:16} unguided {:6} edges, {executions} executions, {accepted} accepted, {finds} finds",
        target.name,
        seen.count()
    );
}

fn folder(target: &Target, folder: &str) {
    let inputs: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .expect("read")
        .map(|entry| std::fs::read(entry.expect("read").path()).expect("read"))
        .collect();
    // The seeds may make what a target keeps for all of its inputs.
    (target.seeds)();
    let (mut seen, mut finds) = (Seen::none(), 0);
    for bytes in &inputs {
        finds += u64::from(run::try_input(target, bytes).is_err());
        seen.take();
    }
    println!("{:16} folder   {:6} edges, {} inputs, {finds} finds", target.name, seen.count(), inputs.len());
}
