use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::Mutex;

use crate::Result;
use crate::device::{AlignedBuf, Answers, Device, DeviceStats, MemberState, SimDevice};
use crate::pool::testing::fresh;
use crate::pool::{CreateOptions, Guid, OpenOptions, Pool, create_groups_on};

const SIZE: u64 = 134 << 20;

fn handles(sims: &[Arc<SimDevice>]) -> Vec<Arc<dyn Device>> {
    sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect()
}

fn open(sims: &[Arc<SimDevice>]) -> Result<Arc<Pool>> {
    Pool::open_on(handles(sims), &OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() })
}

/// A device that notes whether its first request would be waited for until it is answered.
struct Newcomer {
    inner: SimDevice,
    answers: Answers,
    is_bounded: OnceLock<bool>,
}

impl Newcomer {
    fn new(seed: u64) -> Arc<Self> {
        let (inner, answers) = (SimDevice::new(192 << 20, seed), Answers::default());
        Arc::new(Self { inner, answers, is_bounded: OnceLock::new() })
    }

    fn asked(&self) -> &SimDevice {
        self.is_bounded.get_or_init(|| self.answers.is_bounded());
        &self.inner
    }
}

impl Device for Newcomer {
    fn path(&self) -> &Path {
        self.inner.path()
    }
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.asked().read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        self.asked().write(offset, buf, durable)
    }
    fn flush(&self) -> Result<()> {
        self.asked().flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.inner.discard(offset, len_bytes)
    }
    fn keeps_order(&self) -> bool {
        true
    }
    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }
    fn answers(&self) -> Option<&Answers> {
        Some(&self.answers)
    }
}

#[test]
fn a_device_that_comes_to_a_pool_is_not_waited_for_for_ever() {
    let (_, pool) = fresh();
    let all: Vec<_> = (2..6).map(Newcomer::new).collect();
    let handle = |at: usize| Arc::clone(&all[at]) as Arc<dyn Device>;
    pool.attach(0, handle(0), false).unwrap();
    pool.add_spares(vec![handle(1)]).unwrap();
    pool.add_groups(vec![vec![handle(2)]]).unwrap();
    assert!(pool.online(handle(3)).is_err(), "it is none of the pool's");
    let bounded: Vec<_> = all.iter().map(|device| device.is_bounded.get().copied()).collect();
    assert_eq!(bounded, [Some(true); 4]);
}

#[test]
fn devices_that_are_added_while_a_pool_is_split_are_none_of_its_half() {
    let sims: Vec<_> = (1..6).map(|seed| Arc::new(SimDevice::new(SIZE, seed))).collect();
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"added and parted") };
    create_groups_on("tank", &[handles(&sims[..2]), handles(&sims[2..4])], &options).unwrap();
    let pool = open(&sims[..4]).unwrap();
    let adding = Arc::new(Mutex::new(None));
    let (there, new, begun) = (Arc::clone(&pool), handles(&sims[4..]), Arc::clone(&adding));
    // When the first device of the half gets its label, another thread adds a device to the pool.
    sims[1].watch(move || {
        let mut begun = begun.lock();
        let is_parted = there.shared.devices.state(1).is_some_and(|(_, state)| state == MemberState::Offline);
        if is_parted && begun.is_none() {
            let (there, new) = (Arc::clone(&there), new.clone());
            let added = thread::spawn(move || there.add_groups(vec![new]));
            for _ in 0..200_000 {
                if added.is_finished() {
                    break;
                }
                thread::yield_now();
            }
            *begun = Some(added);
        }
    });
    pool.split("half", Guid(*b"half of the pool"), &[]).unwrap();
    let added = adding.lock().take().unwrap();
    added.join().unwrap().unwrap();
    assert_eq!(pool.device_status().len(), 3);
    let half = open(&[Arc::clone(&sims[1]), Arc::clone(&sims[3])]).unwrap();
    assert_eq!(half.device_status().len(), 2);
}
