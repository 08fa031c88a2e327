//! What passes by itself: a call that may arrive twice is sent again within the tick, another is not.
//!
//! Invariant: the first try alone goes wrong, so that a tick shows whether there was a second.

use std::thread;

use super::boxes::Box;
use super::faults::answer;
use super::proxy::{Call, Cut, Does};

#[test]
fn a_call_that_may_arrive_twice_is_sent_again_within_the_tick_and_another_is_not() {
    thread::scope(|scope| {
        for calls in Call::ALL.chunks(2) {
            scope.spawn(move || {
                let mut one = Box::new(60);
                for call in calls {
                    for does in [
                        Does::ResetBefore,
                        Does::ResetAfter,
                        Does::CloseAfter,
                        Does::CutAfter(Cut::Body),
                        Does::Say(answer(503, "", "")),
                    ] {
                        passes(&mut one, *call, &does);
                    }
                }
            });
        }
    });
}

fn passes(one: &mut Box, call: Call, does: &Does) {
    one.will_call(call);
    let leases = one.stand.tenancy.leases_granted(&one.stand.env_id);
    one.goes_wrong(call, does.clone(), 1);
    let ran = one.tick();
    let told = ran.stderr.matches("; asking again in ").count();
    let ended = if call.is_idempotent() || call == Call::Revoke { 0 } else { 75 };
    assert_eq!(ran.status, Some(ended), "{call:?}, {does:?}: {ran:?}");
    assert_eq!(told, usize::from(call.is_idempotent()), "{call:?}, {does:?}: {ran:?}");
    assert!(!ran.stderr.contains("asking again in 0 ms"), "{ran:?}");
    assert!(one.stand.tenancy.leases_granted(&one.stand.env_id) <= leases + 1);
    // Two secrets are read and two tokens revoked.
    let calls = if matches!(call, Call::Read | Call::Revoke) { 2 } else { 1 };
    let lost = usize::from(matches!(does, Does::ResetBefore));
    let came = one.way(call).count(call) + lost;
    assert_eq!(came, calls + usize::from(call.is_idempotent()), "{call:?}, {does:?}: {ran:?}");
    assert_eq!(one.outbox().len(), 0, "{call:?}, {does:?}: {ran:?}");
    one.is_left_alone(false);
    let next = one.tick();
    assert_eq!(next.status, Some(0), "{call:?}, {does:?}: {next:?}");
    one.converged();
}
