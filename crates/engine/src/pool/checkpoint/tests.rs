use std::sync::Arc;

use crate::device::{Device, InjectedFault, SimDevice, SimOp};
use crate::pool::recompress::{PageRange, RecompressReport, targets};
use crate::pool::testing::{PAGE, fresh, write};
use crate::pool::{CreateOptions, Guid, OpenOptions, Pool, create_with_log_on};
use crate::{Error, Result};

const SIZE: u64 = 134 << 20;

fn handles(sims: &[Arc<SimDevice>]) -> Vec<Arc<dyn Device>> {
    sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect()
}

fn open(sims: &[Arc<SimDevice>]) -> Arc<Pool> {
    Pool::open_on(handles(sims), &OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() }).unwrap()
}

/// Makes a pool of one device with a log device.
fn fresh_with_log() -> (Vec<Arc<SimDevice>>, Arc<Pool>) {
    let sims: Vec<_> = (1..3).map(|seed| Arc::new(SimDevice::new(SIZE, seed))).collect();
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"closed with care") };
    create_with_log_on("tank", &[handles(&sims[..1])], &handles(&sims[1..]), &options).unwrap();
    let pool = open(&sims);
    (sims, pool)
}

#[test]
fn nothing_is_acknowledged_behind_the_last_checkpoint() {
    let (sims, pool) = fresh_with_log();
    write(&pool, 0..3, 1);
    let mut answers: Vec<(String, Result<()>)> = Vec::new();
    let mut set = || {
        let name = format!("user:{}", answers.len());
        let answer = pool.set_property(&name, Some("on"));
        answers.push((name, answer));
    };
    pool.try_checkpoint(&mut pool.maintenance.lock(), true, &mut set).unwrap();
    // Power fails, and what was not flushed is lost.
    let after: Vec<_> = sims.iter().map(|sim| Arc::new(sim.crash(&mut |_| 0))).collect();
    let again = open(&after);
    for (name, _) in answers.iter().filter(|(_, answer)| answer.is_ok()) {
        assert_eq!(again.property(name).unwrap().as_deref(), Some("on"), "{name} was acknowledged");
    }
    let refused = answers.iter().filter(|(_, answer)| matches!(answer, Err(Error::ReadOnly(_)))).count();
    assert_eq!(refused, 2, "{answers:?}");
}

#[test]
fn a_pool_whose_last_checkpoint_failed_is_never_taken_for_closed() {
    let (sims, pool) = fresh_with_log();
    write(&pool, 0..3, 1);
    sims[0].inject(InjectedFault { op: SimOp::Flush, range: 0..SIZE, skip: 0, times: 1 });
    assert!(pool.export().is_err());
    for _ in 0..2 {
        assert!(matches!(pool.export(), Err(Error::Failed(_))));
        assert!(matches!(pool.set_property("user:a", Some("on")), Err(Error::Failed(_))));
    }
}

/// Whoever has waited for a lock meanwhile writes nothing: the next opening may have begun.
#[test]
fn nothing_is_logged_behind_the_last_checkpoint() {
    let (_, pool) = fresh();
    write(&pool, 0..600, 1);
    let range = PageRange { object: 4, from: 0, to: u64::MAX };
    let found = targets(&pool.dataset, &[range], (0, 0), 600, &mut RecompressReport::default()).unwrap();
    assert_eq!(found.len(), 600);
    pool.export().unwrap();
    let before = pool.log.lock().writer.position();
    assert_eq!(pool.store_in_full(&pool.dataset, (4, PAGE), &[0, 1]).unwrap(), 0);
    assert!(matches!(pool.plan(&pool.dataset, &[range], &found).map(drop), Err(Error::ReadOnly(_))));
    assert!(pool.log.lock().writer.attest().unwrap().is_none());
    assert_eq!(pool.log.lock().writer.position(), before);
}
