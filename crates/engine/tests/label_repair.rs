//! A scrub that finds a label wrong while the devices of the pool change repairs the labels of the pool's devices, as
//! they are by then, and leaves alone what has left the pool.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;
#[macro_use]
mod passed_on;

use std::sync::{Arc, Mutex};

use mirrored::*;
use pagefold_engine::Result;
use pagefold_engine::device::{AlignedBuf, Device, OneDevice, SimDevice};
use pagefold_engine::pool::{Label, Pool};

/// An act that comes between a look at the labels of a pool and the next read of one.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A device of which the next read of its first label is answered when something else has happened.
struct Watched {
    inner: Arc<SimDevice>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl Device for Watched {
    passed_on!();

    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        let meanwhile = self.meanwhile.lock().unwrap().take_if(|_| offset == 0);
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        self.inner.write(offset, buf, durable)
    }
}

/// A mirror of so many devices that are watched, scrubbed; `meanwhile` happens while the first label of the device `at`
/// is read. Returns the pool, its devices, and the numbers of labels and records that were damaged and repaired.
fn scrubbed(
    members: usize,
    at: usize,
    meanwhile: impl FnOnce(&Pool, &Sims) + Send + 'static,
) -> (Arc<Pool>, Sims, [u64; 2]) {
    let sims = fresh(1, members);
    let watch =
        |inner: &Arc<SimDevice>| Arc::new(Watched { inner: Arc::clone(inner), meanwhile: Mutex::default() });
    let watched: Vec<Arc<Watched>> = sims.iter().map(watch).collect();
    let devices = watched.iter().map(|one| Arc::clone(one) as Arc<dyn Device>).collect();
    let pool = Pool::open_on(devices, &options()).unwrap();
    write(&pool, 0..10, 1);
    pool.checkpoint(false).unwrap();
    pool.scrub_start(1, 0).unwrap();
    let (of, all) = (Arc::downgrade(&pool), sims.clone());
    let then: Meanwhile = Box::new(move || meanwhile(&of.upgrade().unwrap(), &all));
    *watched[at].meanwhile.lock().unwrap() = Some(then);
    // The first step looks at labels; a later commit may write them again.
    pool.scrub_step(2).unwrap().unwrap();
    assert!(watched[at].meanwhile.lock().unwrap().is_none(), "no label was read");
    let status = pool.status().scrub;
    (pool, sims, [status.damaged + status.unreadable, status.repaired])
}

/// First bytes of the places in which labels lie on a device of [`SIZE`] bytes.
fn label_places(sim: &SimDevice) -> Vec<u64> {
    let is_label = |place: &u64| block(sim, *place).starts_with(b"PAGEFOLD");
    (0..SIZE / MIB).map(|at| at * MIB).filter(is_label).collect()
}

fn block(sim: &SimDevice, offset: u64) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(4096);
    sim.read(offset, &mut block).unwrap();
    block
}

#[track_caller]
fn has_one_label(sim: &SimDevice) {
    let places = label_places(sim);
    assert!(places.len() > 1, "{places:?}");
    for place in &places[1..] {
        assert!(block(sim, *place)[..] == block(sim, 0)[..], "the labels at 0 and {place} differ");
    }
}

#[track_caller]
fn is_well(pool: &Pool) {
    is_sound(pool);
    has(pool, 0..10, 1);
}

#[test]
fn a_device_that_is_detached_meanwhile_gets_no_label() {
    for at in [0, 1] {
        let (pool, sims, damage) = scrubbed(2, at, move |pool, _| pool.detach(at as u16).unwrap());
        assert_eq!(damage, [0, 0], "nothing is damaged");
        assert_eq!(label_places(&sims[at]), Vec::<u64>::new(), "it holds no pool");
        is_well(&pool);
        assert!(Label::read(OneDevice::of(sims[at].as_ref())).is_err());
    }
}

#[test]
fn a_device_that_is_replaced_meanwhile_gets_no_label() {
    let new = sim(7);
    let (pool, sims, damage) = scrubbed(2, 1, move |pool, _| {
        pool.attach(1, new, true).unwrap();
        fill(pool);
    });
    assert_eq!(damage, [0, 0], "nothing is damaged");
    assert_eq!(label_places(&sims[1]), Vec::<u64>::new(), "it holds no pool");
    is_well(&pool);
}

#[test]
fn a_label_that_is_damaged_is_written_as_it_is_by_now() {
    let (pool, sims, damage) = scrubbed(3, 0, |pool, sims| {
        pool.detach(2).unwrap();
        sims[0].flip_bit(*label_places(&sims[0]).last().unwrap() + 100, 3);
        sims[1].flip_bit(*label_places(&sims[1]).last().unwrap() + 100, 3);
    });
    assert_eq!(damage, [2, 2]);
    has_one_label(&sims[0]);
    has_one_label(&sims[1]);
    is_well(&pool);
    drop(pool);
    assert_eq!(numbers(&open(&sims[..2])), [0, 1]);
}

#[test]
fn a_device_that_has_the_number_of_another_one_gets_its_own_label() {
    let new = sim(7);
    let other = Arc::clone(&new);
    let (pool, sims, damage) = scrubbed(2, 0, move |pool, _| {
        pool.detach(1).unwrap();
        assert_eq!(pool.attach(0, Arc::clone(&new) as Arc<dyn Device>, false).unwrap(), 1);
        fill(pool);
        new.flip_bit(*label_places(&new).last().unwrap() + 100, 3);
    });
    assert_eq!(damage, [1, 1]);
    has_one_label(&other);
    assert_eq!(label_places(&sims[1]), Vec::<u64>::new(), "it holds no pool");
    is_well(&pool);
    drop(pool);
    assert_eq!(numbers(&open(&[Arc::clone(&sims[0]), other])), [0, 1]);
}
