//! `make bench`: the agent against what it replaces, side by side in one run, as ratios.
//!
//! Invariant: what is compared is measured in turns (A B A B …) on the same machine, against the same servers, so that
//! whatever else the machine does falls on both; what is printed is a median with its smallest and largest value.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on has failed")]

mod apply;
mod checkin;
mod machine;
#[path = "../../tests/common/openapi.rs"]
mod openapi;
mod replay;
#[path = "../../tests/common/rig.rs"]
#[expect(dead_code, reason = "the benches use a part of what the suites share")]
mod rig;
mod sample;
#[path = "../../tests/common/script.rs"]
#[expect(dead_code, reason = "the benches use a part of what the suites share")]
mod script;

use sample::Goals;

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |part: &str| only.is_empty() || only.iter().any(|name| name == part);
    let mut goals = Goals::default();
    if wanted("machine") {
        machine::run(&mut goals);
    }
    if wanted("replay") {
        replay::run(&mut goals);
    }
    if let Some(stack) = rig::stack() {
        if wanted("checkin") {
            checkin::run(&stack, &mut goals);
        }
        if wanted("apply") {
            apply::run(&stack, &mut goals);
        }
    }
    goals.print();
}
