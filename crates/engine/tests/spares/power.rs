//! Power cuts at any moment, and anything in any order.

use super::*;

/// Wherever the power fails while a spare steps in and is filled: it does in the end, and nothing is lost.
#[test]
fn a_spare_steps_in_whenever_the_power_fails() {
    let (sims, pool) = with_spares(1, 1);
    fail(&pool, &sims[1], 0..50);
    let moments = Moments::of(&sims, 1);
    settle(&pool, 1);
    let moments = moments.end();
    assert!(moments.len() > 40, "{} moments", moments.len());
    for (moment, sims) in moments.iter().enumerate() {
        let pool = open(sims);
        settle(&pool, 1);
        let told = (states(&pool), spares(&pool));
        assert_eq!(told, (vec![Online, Faulted, Online], vec![InUse]), "moment {moment}");
        has(&pool, 0..50, 2);
        has(&pool, 50..400, 1);
        pool.export().unwrap();
        drop(pool);
        each_has_all(&sims[2..], 0..50, 2);
    }
}

/// The same while it goes back, since its device is whole.
#[test]
fn a_spare_goes_back_whenever_the_power_fails() {
    let (sims, pool) = with_spares(1, 1);
    fail(&pool, &sims[1], 0..50);
    settle(&pool, 1);
    mend(&sims[1]);
    pool.online(device(&sims[1])).unwrap();
    fill(&pool);
    let moments = Moments::of(&sims, 1);
    settle(&pool, 1);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online; 2], vec![Available]));
    let moments = moments.end();
    assert!(moments.len() > 15, "{} moments", moments.len());
    for (moment, sims) in moments.iter().enumerate() {
        let pool = open(sims);
        settle(&pool, 1);
        let told = (states(&pool), spares(&pool));
        assert_eq!(told, (vec![Online; 2], vec![Available]), "moment {moment}");
        assert!(label(&sims[2]).is_some());
        // It can be used again, and has nothing of what it had.
        fail(&pool, &sims[0], 50..100);
        settle(&pool, 1);
        assert_eq!(states(&pool), [Faulted, Online, Online], "moment {moment}");
        pool.export().unwrap();
        each_has_all(&sims[2..], 0..100, 2);
        each_has_all(&sims[2..], 100..400, 1);
    }
}

/// The same for what users do with a spare that has stepped in, and for its own failure.
#[test]
fn each_change_of_spares_is_whole_or_not_there_after_a_power_cut() {
    type Act = fn(&Pool, &Sims);
    let acts: [Act; 4] = [
        |pool, _| pool.detach(1).unwrap(),
        |pool, _| pool.detach(2).unwrap(),
        |pool, sims| fail(pool, &sims[2], 50..51),
        |pool, _| pool.add_spares(vec![device(&sim(90))]).unwrap(),
    ];
    for (at, act) in acts.iter().enumerate() {
        let (sims, pool) = with_spares(1, 1);
        fail(&pool, &sims[1], 0..50);
        settle(&pool, 1);
        pool.checkpoint(false).unwrap();
        let moments = Moments::of(&sims, 1);
        act(&pool, &sims);
        settle(&pool, 1);
        for (moment, sims) in moments.end().iter().enumerate() {
            let pool = open(sims);
            settle(&pool, 1);
            let told = (states(&pool), spares(&pool));
            let both = vec![Online, Faulted, Online];
            let wanted = match at {
                0 => [
                    (both.clone(), vec![InUse]),
                    (vec![Online, Faulted, Online], vec![]),
                    (vec![Online; 2], vec![]),
                ],
                1 | 2 => {
                    let unavailable = (vec![Online, Faulted], vec![Unavailable]);
                    [(both.clone(), vec![InUse]), (vec![Online, Faulted], vec![Available]), unavailable]
                }
                _ => [
                    (both.clone(), vec![InUse]),
                    (both.clone(), vec![InUse, Unavailable]),
                    (both, vec![Unavailable, InUse]),
                ],
            };
            assert!(wanted.contains(&told), "act {at}, moment {moment}: {told:?}");
            has(&pool, 0..50, 2);
            has(&pool, 51..400, 1);
            is_sound(&pool);
        }
    }
}

/// A pool of two mirrors with spares, to which anything happens in any order, with what has to be in it.
struct History {
    sims: Sims,
    pool: Arc<Pool>,
    versions: Vec<u64>,
    random: u64,
}

impl History {
    fn below(&mut self, most: u64) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.random >> 33) % most
    }

    /// Returns the simulated device that is a device of the pool: its label tells, whatever is wrong with it.
    fn sim_of(&self, number: u16) -> Option<&Arc<SimDevice>> {
        let is_it = |sim: &&Arc<SimDevice>| {
            Label::read(OneDevice::of(sim.as_ref())).is_ok_and(|label| label.device == number)
        };
        self.sims.iter().filter(is_it).max_by_key(|sim| {
            let label = Label::read(OneDevice::of(sim.as_ref())).unwrap();
            label.membership.group_epoch
        })
    }

    fn write(&mut self) {
        let (from, version) = (self.below(390), self.below(1 << 30));
        write(&self.pool, from..from + 10, version);
        (from..from + 10).for_each(|at| self.versions[at as usize] = version);
    }

    /// Fails a device, unless it is the last one of its mirror that is whole.
    fn fail_one(&mut self) {
        let all = self.pool.device_status();
        let one = &all[self.below(all.len() as u64) as usize];
        let whole = |of: u16| all.iter().filter(|one| one.group == of && one.state == Online).count();
        if whole(one.group) > usize::from(one.state == Online)
            && let Some(sim) = self.sim_of(one.number)
        {
            fail_writes(sim);
            self.write();
            self.pool.checkpoint(false).unwrap();
        }
    }

    fn mend_one(&mut self) {
        let out = self
            .pool
            .device_status()
            .into_iter()
            .find(|one| matches!(one.state, Faulted | Missing | Offline));
        if let Some(sim) = out.and_then(|one| self.sim_of(one.number)) {
            mend(sim);
            // It may be another one than the pool's: then it is refused.
            let _ = self.pool.online(device(sim));
        }
    }

    fn act(&mut self) {
        let seed = self.below(1 << 30);
        match self.below(10) {
            0 | 1 => self.write(),
            2 => self.fail_one(),
            3 => self.mend_one(),
            4 | 5 => drop(self.pool.spare_step(seed % 400).unwrap()),
            6 => drop((0..seed % 20).try_for_each(|_| self.pool.fill_step(5).map(drop))),
            7 => {
                // The last one that is whole stays.
                let all = self.pool.device_status();
                let number = all[seed as usize % all.len()].number;
                let is_spare = self.pool.spares().iter().any(|spare| spare.device == Some(number));
                let _ = if is_spare { self.pool.detach(number) } else { self.pool.offline(number) };
            }
            8 => self.pool.checkpoint(false).unwrap(),
            _ => {
                self.sims = after(&self.sims, Some(seed));
                self.pool = open(&self.sims);
                self.has_all();
            }
        }
    }

    #[track_caller]
    fn has_all(&self) {
        self.versions.iter().zip(0..).for_each(|(version, at)| has(&self.pool, at..at + 1, *version));
    }
}

#[test]
fn whatever_happens_nothing_is_lost_and_all_is_well_in_the_end() {
    let mut used = 0;
    for seed in 0..24 {
        let (sims, pool) = with_spares(2, 2);
        let mut history = History { sims, pool, versions: vec![1; 400], random: seed };
        for _ in 0..40 {
            history.act();
            used += spares(&history.pool).iter().filter(|state| **state == InUse).count();
        }
        history.has_all();
        for _ in 0..8 {
            history.sims.iter().for_each(|sim| mend(sim));
            history.mend_one();
            let own: Sims = history.sims.clone();
            // A device that failed as a spare is not held by the pool any more.
            own.iter().for_each(|sim| drop(history.pool.online_spare(&device(sim))));
            settle(&history.pool, 1000);
        }
        assert_eq!(states(&history.pool), [Online; 4], "seed {seed}: {:?}", history.pool.spares());
        assert_eq!(spares(&history.pool), [Available; 2], "seed {seed}");
        history.has_all();
        is_sound(&history.pool);
    }
    assert!(used > 200, "spares were in use at {used} moments only");
}
