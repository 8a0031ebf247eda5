//! One target under libFuzzer: `PAGEFOLD_FUZZ_TARGET=name guided CORPUS [-max_total_time=60 ...]`.
//!
//! With `PAGEFOLD_FUZZ_MUTATIONS=both` every other mutation is one of the unguided fuzzer's, which knows varints and lengths.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use pagefold_fuzz::targets::TARGETS;
use pagefold_fuzz::{ALLOCATION_MAX, Target, memory, mutate};
use pagefold_sim::random::Random;

#[global_allocator]
static ALLOCATOR: memory::Noting = memory::Noting;

struct Attack {
    target: &'static Target,
    seeds: Vec<Vec<u8>>,
    both: bool,
}

fn attack() -> &'static Attack {
    static ATTACK: OnceLock<Attack> = OnceLock::new();
    ATTACK.get_or_init(|| {
        let name = std::env::var("PAGEFOLD_FUZZ_TARGET").expect("PAGEFOLD_FUZZ_TARGET names a target");
        let target = TARGETS.iter().find(|target| target.name == name).expect("there is such a target");
        let both = std::env::var("PAGEFOLD_FUZZ_MUTATIONS").is_ok_and(|which| which == "both");
        Attack { target, seeds: (target.seeds)(), both }
    })
}

fuzz_target!(|bytes: &[u8]| {
    let attack = attack();
    memory::take_largest();
    (attack.target.run)(bytes);
    let largest = memory::take_largest();
    assert!(largest <= ALLOCATION_MAX, "an allocation of {largest} bytes");
});

fuzz_mutator!(|bytes: &mut [u8], len: usize, len_max: usize, seed: u32| {
    let attack = attack();
    if !attack.both || seed & 1 == 0 {
        return fuzzer_mutate(bytes, len, len_max);
    }
    let mut input = bytes[..len].to_vec();
    mutate::again(&mut Random::new(u64::from(seed)), &mut input, &attack.seeds);
    input.truncate(len_max);
    bytes[..input.len()].copy_from_slice(&input);
    input.len()
});
