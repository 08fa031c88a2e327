//! A moment, in whole milliseconds since the Unix epoch, given by whoever feeds the machine.
//!
//! Within a tick stamps never go back: the driver adds monotonic time to the wall time at the start.

use serde::{Deserialize, Serialize};

/// A moment, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub i64);

impl Stamp {
    /// This many milliseconds later.
    #[must_use]
    pub const fn plus_ms(self, ms: i64) -> Stamp {
        Stamp(self.0.saturating_add(ms))
    }

    /// This many seconds later.
    #[must_use]
    pub const fn plus_s(self, s: i64) -> Stamp {
        self.plus_ms(s.saturating_mul(1000))
    }

    /// Milliseconds from `earlier` to here; 0 if `earlier` is later.
    pub const fn since_ms(self, earlier: Stamp) -> i64 {
        let ms = self.0.saturating_sub(earlier.0);
        if ms < 0 { 0 } else { ms }
    }
}
