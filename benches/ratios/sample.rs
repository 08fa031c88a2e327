//! Samples, their median and spread, and the goals that they are held against.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Numbers of one kind, sorted.
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn new(numbers: impl IntoIterator<Item = f64>) -> Sample {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Sample(sorted)
    }

    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (self.0[0], self.0[self.0.len() - 1]);
        write!(f, "{:>9.2} (min {min:.2}, max {max:.2}, n {})", self.median(), self.0.len())
    }
}

/// Milliseconds that something took.
pub fn ms(of: impl FnOnce()) -> f64 {
    let start = Instant::now();
    of();
    in_ms(start.elapsed())
}

pub fn in_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// How long this thread has had a core so far: what others do meanwhile is left out.
pub fn on_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// The agent that is measured: the one built as packages are, if `make bench` says where it is.
pub fn agent() -> PathBuf {
    std::env::var_os("MONKY_DEPLOYD_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_monky-deployd").into()).into()
}

/// What came of each goal.
#[derive(Default)]
pub struct Goals(Vec<(bool, String)>);

impl Goals {
    pub fn note(&mut self, met: bool, what: String) {
        self.0.push((met, what));
    }

    pub fn print(&self) {
        println!("\ngoals");
        for (met, what) in &self.0 {
            println!("  {} {what}", if *met { "met   " } else { "MISSED" });
        }
    }
}
