//! A tick that is asked to end while a server keeps it waiting.
//!
//! Invariant: the deadlines of these boxes are far beyond the bound that is measured, so that none of them ends the tick.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::boxes::{Box, Ran};
use super::proxy::{Call, Cut, Does};

/// For a call, in seconds.
const TIMEOUT_S: u64 = 600;
/// Far below that, and far above what an end takes.
const PROMPT: Duration = Duration::from_secs(60);

#[test]
fn whoever_asks_a_tick_to_end_does_not_wait_for_a_server() {
    thread::scope(|scope| {
        for calls in Call::ALL.chunks(2) {
            scope.spawn(move || {
                let mut one = Box::new(TIMEOUT_S);
                for call in calls {
                    is_interrupted(&mut one, *call, Does::SilenceAfter);
                }
            });
        }
        scope.spawn(|| {
            let mut one = Box::new(TIMEOUT_S);
            is_interrupted(&mut one, Call::Bundle, Does::DripAfter(Cut::Body));
            is_interrupted(&mut one, Call::Read, Does::DripAfter(Cut::Headers));
        });
    });
}

fn is_interrupted(one: &mut Box, call: Call, does: Does) {
    one.will_call(call);
    one.goes_wrong(call, does, usize::MAX);
    let child = one.command(&["tick"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let waited = Instant::now();
    while one.way(call).count(call) == 0 {
        assert!(waited.elapsed() < PROMPT, "{call:?} was not called");
        thread::sleep(Duration::from_millis(20));
    }
    let asked = Instant::now();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ran = Ran::ended(child, asked);
    assert!(ran.took < PROMPT, "{call:?}: {ran:?}");
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(75), "interrupted\n"), "{call:?}: {ran:?}");
    one.state_is_whole();
    // The lock is free, and the next tick goes on from there.
    one.is_left_alone(false);
    let next = one.tick();
    assert_eq!(next.status, Some(0), "{call:?}: {next:?}");
    one.converged();
}
