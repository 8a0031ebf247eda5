use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use crate::Result;
use crate::device::{Device, MemberState, SimDevice};
use crate::pool::{CreateOptions, Guid, OpenOptions, Pool, create_groups_on};

const SIZE: u64 = 134 << 20;

fn handles(sims: &[Arc<SimDevice>]) -> Vec<Arc<dyn Device>> {
    sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect()
}

fn open(sims: &[Arc<SimDevice>]) -> Result<Arc<Pool>> {
    Pool::open_on(handles(sims), &OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() })
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
