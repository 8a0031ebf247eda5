//! `balance`: what lies on fuller devices of a pool moves to emptier ones.

use std::thread::sleep;

use pagefold_server::control::{BalanceFigures, MoveFigures, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::units;

use super::removal::named;
use super::time::{Work, pace_text, time_text};
use super::{Asked, POLL, status};
use crate::args::Balance;
use crate::progress::Progress;

/// Balances the devices of a pool, or stops that.
pub fn balance(args: &Balance) -> Result<()> {
    let mut asked = Asked::of(&args.pool, "balance")?;
    if args.stop {
        return asked.carry_out(&Request::StopBalance {});
    }
    let name = asked.figures.name.clone();
    match asked.client.ask_and_wait(&Request::Balance { dry_run: args.dry_run })? {
        Reply::Balance { is_uneven: false, .. } => println!("the devices of {name} are equally full already"),
        Reply::Balance { moves, .. } if args.dry_run => asked.print_moves(&moves),
        Reply::Balance { .. } if args.wait => return asked.wait_for_balance(),
        Reply::Balance { .. } => {}
        _ => return Err(asked.client.misunderstood()),
    }
    Ok(())
}

impl Asked {
    fn print_moves(&self, moves: &[MoveFigures]) {
        let figures = &self.figures;
        for MoveFigures { from, onto, bytes } in moves {
            let (from, onto) = (named(figures, *from), named(figures, *onto));
            println!("up to {} would move from {from} to {onto}", units::size(*bytes));
        }
        let bytes = moves.iter().map(|shift| shift.bytes).sum();
        println!("{}", time_text(figures, Work::Moving, moves.first().map_or(0, |shift| shift.from), bytes));
        let percent = units::percent(figures.allocated_bytes, figures.size_bytes);
        println!("each device of {} would be about {percent} full; nothing was changed", figures.name);
    }

    fn wait_for_balance(&mut self) -> Result<()> {
        let progress = Progress::bytes("moving");
        let mut told = None;
        loop {
            self.figures = status(&mut self.client)?;
            let Some(balance) = &self.figures.balance else {
                return Err(Failure::new(format!("the balance of {} was stopped", self.figures.name)));
            };
            if balance.finished > 0 {
                progress.finish();
                return match balance.left_bytes {
                    0 => Ok(()),
                    left => Err(Failure::new(format!(
                        "the devices of {} are not equally full: {} could not be moved",
                        self.figures.name,
                        units::size(left)
                    ))),
                };
            }
            progress.at(balance.moved_bytes, balance.moved_bytes + balance.left_bytes);
            if balance.obstacle.is_some() && told != balance.obstacle {
                told.clone_from(&balance.obstacle);
                crate::verbs::warn(&format!(
                    "the balance of {} waits: {}",
                    self.figures.name,
                    told.as_deref().unwrap_or_default()
                ));
            }
            sleep(POLL);
        }
    }
}

/// Returns the state of a balance in a line, for `status`.
pub(in crate::verbs) fn balance_text(balance: &BalanceFigures, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let moved = size(balance.moved_bytes);
    if balance.finished > 0 {
        let left = match balance.left_bytes {
            0 => String::new(),
            left => format!(", {} could not be moved", size(left)),
        };
        return format!("ended {}, {moved} moved{left}", units::utc(balance.finished));
    }
    let since = match balance.started {
        0 => String::new(),
        started => format!("since {}, ", units::utc(started)),
    };
    let waits =
        balance.obstacle.as_ref().map(|obstacle| format!("; it waits: {obstacle}")).unwrap_or_default();
    format!(
        "{since}{moved} moved, {} left{}{waits}",
        size(balance.left_bytes),
        pace_text(&balance.pace, exact)
    )
}
