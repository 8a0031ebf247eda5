//! Signals that end a command: the first one lets it undo what it has begun, the second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pagefold_server::failure::{Context, Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A note that a signal has come.
#[derive(Debug, Default)]
pub struct Interrupt {
    come: Arc<AtomicBool>,
}

impl Interrupt {
    /// Catches signals from now on.
    pub fn catch(&self) -> Result<()> {
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_default(number, Arc::clone(&self.come))
                .and_then(|_| signal_hook::flag::register(number, Arc::clone(&self.come)))
                .context(|| "cannot catch signals".into())?;
        }
        Ok(())
    }

    /// Returns the flag that a signal sets.
    pub fn flag(&self) -> &AtomicBool {
        &self.come
    }

    /// Fails if a signal has come.
    pub fn check(&self) -> Result<()> {
        if self.come.load(Ordering::Relaxed) { Err(interrupted()) } else { Ok(()) }
    }

    /// Lets the next signal end this process at once, since there is nothing to be undone any more. Fails if one has
    /// come before.
    pub fn release(&self) -> Result<()> {
        if self.come.swap(true, Ordering::Relaxed) { Err(interrupted()) } else { Ok(()) }
    }
}

fn interrupted() -> Failure {
    Failure::new("it was interrupted").hint("what had been done until then is undone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_noted_until_there_is_nothing_to_be_undone() {
        let interrupt = Interrupt::default();
        interrupt.check().unwrap();
        interrupt.flag().store(true, Ordering::Relaxed);
        assert!(interrupt.check().is_err() && interrupt.release().is_err());
        let interrupt = Interrupt::default();
        interrupt.release().unwrap();
        assert!(
            interrupt.flag().load(Ordering::Relaxed),
            "the next signal finds it set, and ends the process"
        );
    }
}
