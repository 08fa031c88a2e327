//! `make bench`: the agent against what it replaces, side by side in one run, as ratios.
//!
//! Invariant: what is compared is measured in turns (A B A B …) on the same machine, against the same servers, so that
//! whatever else the machine does falls on both; what is printed is a median with its smallest and largest value.

mod apply;
mod checkin;
#[path = "../../tests/common/mod.rs"]
#[expect(dead_code, reason = "the benches use a part of what the suites share")]
mod common;
mod machine;
mod replay;
mod sample;

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
    if (wanted("checkin") || wanted("apply"))
        && let Some(stack) = common::stack_env::stack()
    {
        if wanted("checkin") {
            checkin::run(&stack, &mut goals);
        }
        if wanted("apply") {
            apply::run(&stack, &mut goals);
        }
    }
    goals.print();
}
