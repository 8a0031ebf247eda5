//! Flips bits in images of pools, one at a time, and prints those that are neither harmless nor reported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use pagefold_sim::flips::{Fates, PoolImage};
use pagefold_sim::random::Random;

/// Flips bits in images of pools.
#[derive(Parser)]
struct FlipArgs {
    /// Number of bits to flip.
    #[arg(long, default_value_t = 100_000)]
    flips: u64,
    /// Number of them in one image.
    #[arg(long, default_value_t = 500)]
    each: u64,
    /// Seed of the first image.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after so many seconds; 0: never.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
}

/// Flips `count` bits of the image of `seed`, one at a time. Prints failures, and returns their number with the fates
/// of the other bits.
fn flip_some(seed: u64, count: u64) -> (Fates, u64) {
    let (mut fates, mut wrong) = (Fates::default(), 0);
    let image = match PoolImage::new(seed).and_then(|image| image.try_whole().map(|_| image)) {
        Ok(image) => image,
        Err(what) => {
            println!("image {seed} is wrong as it is: {what}");
            return (fates, 1);
        }
    };
    let mut random = Random::new(seed ^ 0xF11F);
    for _ in 0..count {
        let flip = image.choose(&mut random);
        match image.try_flip(flip) {
            Ok(fate) => fates.count(fate),
            Err(what) => {
                wrong += 1;
                println!("image {seed}, {flip:?}: {what}");
            }
        }
    }
    (fates, wrong)
}

fn main() -> anyhow::Result<()> {
    let args = FlipArgs::parse();
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let images = args.flips.div_ceil(args.each.max(1));
    let next = AtomicU64::new(0);
    let work = || {
        let (mut fates, mut wrong, mut done) = (Fates::default(), 0, 0);
        loop {
            let image = next.fetch_add(1, Ordering::Relaxed);
            let late = args.seconds > 0 && started.elapsed().as_secs() >= args.seconds;
            if image >= images || late {
                return (fates, wrong, done);
            }
            let count = args.each.min(args.flips - image * args.each);
            let (more, failures) = flip_some(args.seed + image, count);
            fates.add(&more);
            wrong += failures;
            done += 1;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (mut fates, mut wrong, mut done) = (Fates::default(), 0, 0);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in all {
            match thread.join() {
                Ok((more, failures, images)) => {
                    fates.add(&more);
                    wrong += failures;
                    done += images;
                }
                Err(_) => wrong += 1,
            }
        }
    });
    let flips = fates.harmless + fates.corrected + fates.reported + fates.refused + wrong;
    println!(
        "{flips} flips in {done} images in {:.0} s: {fates:?}, {wrong} silent",
        started.elapsed().as_secs_f64()
    );
    anyhow::ensure!(wrong == 0, "{wrong} of {flips} flips are wrong and nobody says so");
    Ok(())
}
