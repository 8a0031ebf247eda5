//! The time that it takes to copy or move what a plan names, and the pace that `status` tells of work that is under way.

use pagefold_engine::pool::FILL_SHARE_BUSY;
use pagefold_server::control::{DeviceFigures, PoolFigures, WorkPace, seconds};
use pagefold_server::units;

use crate::verbs::spares::device_text;

/// Work of the background that takes time.
#[derive(Clone, Copy)]
pub(super) enum Work {
    /// A device of a mirror is filled.
    Filling,
    /// A device, or a mirror, is emptied: all moves to others.
    Moving,
}

/// A speed in bytes per second, as far as it is known.
enum Speed<'a> {
    /// The pool has done the same since it was opened.
    Done(u64, &'static str),
    /// The device that is read gave so much at most.
    AtMost(u64, &'a DeviceFigures),
}

/// Returns a sentence that says how long it takes to copy or move bytes of a group.
pub(super) fn time_text(pool: &PoolFigures, work: Work, group: u16, bytes: u64) -> String {
    let (copied, share) = (units::size(bytes), format!("1/{FILL_SHARE_BUSY} of the time"));
    if bytes == 0 {
        return "it would take a moment: nothing is there to be copied".into();
    }
    let of = |speed: u64| {
        let alone = seconds(bytes, speed).unwrap_or_default();
        (units::age(alone), units::age(alone.saturating_mul(FILL_SHARE_BUSY.into())))
    };
    match speed(pool, work, group) {
        Some(Speed::Done(speed, what)) => {
            let (alone, busy) = of(speed);
            format!(
                "{copied} would take about {alone}, at {}/s as the last {what}; {busy} while programs need the devices, since it gets {share} then",
                units::size(speed)
            )
        }
        Some(Speed::AtMost(speed, device)) => {
            let (alone, busy) = of(speed);
            format!(
                "{copied} would take at least {alone}, as {} was read at {}/s so far; {busy} while programs need the devices, since it gets {share} then",
                device_text(&pool.devices, device.number),
                units::size(speed)
            )
        }
        None => format!(
            "no speed is known yet, so the time is not, either; while programs need the devices, it gets {share}"
        ),
    }
}

/// Returns the speed of such work, as far as is known.
fn speed(pool: &PoolFigures, work: Work, group: u16) -> Option<Speed<'_>> {
    let known = |pace: Option<WorkPace>, what| {
        let speed = pace.map(|pace| pace.work_bytes_per_s).filter(|speed| *speed > 0);
        speed.map(|speed| Speed::Done(speed, what))
    };
    let done = match work {
        Work::Filling => known(pool.fill.as_ref().map(|fill| fill.pace), "filling"),
        Work::Moving => known(pool.removal.as_ref().map(|removal| removal.pace), "removal")
            .or_else(|| known(pool.balance.as_ref().map(|balance| balance.pace), "balance")),
    };
    done.or_else(|| {
        let whole = pool.devices.iter().filter(|device| device.group == group && device.state == "ONLINE");
        let read = whole.filter_map(|device| {
            let known = pool.read_speeds.iter().find(|read| read.device == device.number)?;
            Some((known.bytes_per_s, device))
        });
        let (speed, device) = read.filter(|(speed, _)| *speed > 0).max_by_key(|(speed, _)| *speed)?;
        Some(Speed::AtMost(speed, device))
    })
}

/// Returns what `status` says of a pace: a speed, and the time that is left.
pub(super) fn pace_text(pace: &WorkPace, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let speed = match pace.bytes_per_s {
        0 => String::new(),
        speed => format!(", {}/s", size(speed)),
    };
    let time = match pace.left_s {
        Some(left) if exact => format!(", {left} s to go"),
        Some(left) => format!(", {} to go", units::age(left)),
        None => String::new(),
    };
    format!("{speed}{time}")
}

#[cfg(test)]
mod tests {
    use pagefold_server::control::{BalanceFigures, FillFigures, ReadSpeed, RemovalFigures};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn pool() -> PoolFigures {
        let device = |number: u16, state: &str| DeviceFigures {
            number,
            state: state.into(),
            path: format!("/dev/{number}").into(),
            ..DeviceFigures::default()
        };
        PoolFigures { devices: vec![device(0, "ONLINE"), device(1, "FAULTED")], ..PoolFigures::default() }
    }

    fn at(mib: u64) -> WorkPace {
        WorkPace { work_bytes_per_s: mib * MIB, ..WorkPace::default() }
    }

    #[test]
    fn no_speed_is_made_up() {
        for work in [Work::Filling, Work::Moving] {
            assert!(time_text(&pool(), work, 0, MIB).starts_with("no speed is known yet"));
        }
        // A device that is not read tells nothing.
        let mut pool = pool();
        pool.read_speeds = vec![ReadSpeed { device: 1, bytes_per_s: MIB }];
        assert!(time_text(&pool, Work::Filling, 0, MIB).starts_with("no speed is known yet"));
        assert!(time_text(&pool, Work::Filling, 0, 0).contains("a moment"));
    }

    #[test]
    fn what_the_pool_has_done_comes_before_what_a_device_gave() {
        let mut pool = pool();
        pool.read_speeds = vec![ReadSpeed { device: 0, bytes_per_s: 100 * MIB }];
        let told = time_text(&pool, Work::Filling, 0, 1000 * MIB);
        assert!(told.starts_with("1000M would take at least 10s, as /dev/0 was read at 100M/s"), "{told}");
        assert!(
            told.contains("30s while programs need the devices, since it gets 1/3 of the time"),
            "{told}"
        );
        pool.balance = Some(BalanceFigures { pace: at(10), ..BalanceFigures::default() });
        assert!(time_text(&pool, Work::Filling, 0, 1000 * MIB).contains("at least"));
        assert!(
            time_text(&pool, Work::Moving, 0, 100 * MIB)
                .contains("about 10s, at 10.0M/s as the last balance")
        );
        pool.removal = Some(RemovalFigures { pace: at(20), ..RemovalFigures::default() });
        assert!(
            time_text(&pool, Work::Moving, 0, 100 * MIB).contains("about 5s, at 20.0M/s as the last removal")
        );
        pool.fill = Some(FillFigures { pace: at(50), ..FillFigures::default() });
        let told = time_text(&pool, Work::Filling, 0, 1000 * MIB);
        assert!(told.contains("about 20s, at 50.0M/s as the last filling; 1m while programs"), "{told}");
    }
}
