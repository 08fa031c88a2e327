//! The clock of a tick: wall time as it was at the start, plus monotonic time since.
//!
//! Invariant: [`Clock::now`] never goes back and never leaves the years 1970 to 9999, whatever is done to the wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::effects::Stamp;

/// A sleep looks this often whether it was cancelled.
const GLANCE: Duration = Duration::from_millis(100);

/// The last day that a stamp of the start may be on: 9998-12-31, in milliseconds, so that a tick stays within four digits.
const LAST_START_MS: u64 = 253_370_764_800_000;

/// Whether the process was asked to end; every clone is the same flag.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks to end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// The flag itself, for a signal handler (`signal_hook::flag::register`) and for whoever waits for a child.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// The moment has come.
    Through,
    /// The process was asked to end.
    Cancelled,
}

/// Gives [`Stamp`]s.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Stamp,
    since: Instant,
}

impl Clock {
    /// Reads the wall clock, once.
    pub fn start() -> Clock {
        Clock::started_at(SystemTime::now())
    }

    /// A clock whose wall said `wall`. A time before 1970 counts as 1970, one after 9998 as that.
    pub fn started_at(wall: SystemTime) -> Clock {
        let ms = wall.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let ms = u64::try_from(ms).unwrap_or(u64::MAX).min(LAST_START_MS);
        Clock { start: Stamp(i64::try_from(ms).unwrap_or_default()), since: Instant::now() }
    }

    /// Now.
    pub fn now(&self) -> Stamp {
        self.start.plus_ms(i64::try_from(self.since.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// Sleeps until a moment, or until cancelled (noticed within 100 ms). A moment that is past ends it at once.
    pub fn sleep_until(&self, until: Stamp, cancel: &Cancel) -> Slept {
        loop {
            if cancel.is_cancelled() {
                return Slept::Cancelled;
            }
            match u64::try_from(until.since_ms(self.now())) {
                Ok(0) | Err(_) => return Slept::Through,
                Ok(ms) => thread::sleep(Duration::from_millis(ms).min(GLANCE)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_out_of_all_reason_still_gives_stamps_that_move() {
        let absurd = [
            UNIX_EPOCH - Duration::from_secs(86_400 * 365 * 60),
            UNIX_EPOCH,
            UNIX_EPOCH + Duration::from_secs(i64::MAX as u64 / 2),
        ];
        for wall in absurd {
            let clock = Clock::started_at(wall);
            let first = clock.now();
            assert!((0..=LAST_START_MS as i64 + 60_000).contains(&first.0), "{first:?}");
            assert_eq!(clock.sleep_until(first.plus_ms(3), &Cancel::default()), Slept::Through);
            assert!(clock.now() >= first.plus_ms(3));
        }
    }

    #[test]
    fn a_start_is_told_to_the_millisecond() {
        let clock = Clock::started_at(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
        assert!(clock.now() >= Stamp(1_700_000_000_123) && clock.now() < Stamp(1_700_000_060_000));
    }

    #[test]
    fn a_past_moment_ends_a_sleep_at_once_and_a_cancel_ends_a_long_one() {
        let clock = Clock::start();
        assert_eq!(clock.sleep_until(Stamp(i64::MIN), &Cancel::default()), Slept::Through);
        let cancel = Cancel::default();
        let other = cancel.clone();
        let sleeper = thread::spawn(move || clock.sleep_until(Stamp(i64::MAX), &other));
        cancel.flag().store(true, Ordering::Release);
        assert_eq!(sleeper.join().unwrap(), Slept::Cancelled);
    }
}
