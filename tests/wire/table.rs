//! Every fault for every call, in whole ticks of the built binary.
//!
//! Invariant: which code a fault is for a call is said in [`code_of`] alone; nothing here depends on how long something
//! takes but for bounds that are far away.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::boxes::{Box, Ran};
use super::elsewhere::Elsewhere;
use super::faults::{Looks, Row, all};
use super::proxy::{Call, Does};

/// For a call that will not be answered, in seconds.
const SOON_S: u64 = 2;
/// For a call that is over by itself, in seconds: what becomes of it does not depend on the machine's load.
const LATE_S: u64 = 600;
/// This only has to be far from for ever: a machine may have other things to do.
const FAR: Duration = Duration::from_secs(300);
/// For a tick whose calls have [`SOON_S`]: many times what it needs, even on a busy machine.
const NEAR: Duration = Duration::from_secs(60);
/// Boxes at the same time: they mostly wait.
const BOXES: usize = 24;

/// How a tick ends whose call meets this: exit status and code.
fn code_of(call: Call, row: &Row) -> (i32, Option<&'static str>) {
    const TEMPORARY: i32 = 75;
    let at_the_gate = matches!(row.does, Does::Refuse | Does::ResetBefore);
    match (call, row.looks) {
        (_, Looks::Fine) => (0, None),
        // Telling an outcome never changes it, and a token that cannot be revoked ends by itself. But whoever is not let
        // in for that is not let in for the next call either.
        (Call::Revoke, _) if at_the_gate => (TEMPORARY, Some("BAO_UNAVAILABLE")),
        (Call::Report | Call::Revoke, _) => (0, None),
        // Nothing but OpenBao's own words, in its own shape, is a verdict on a token, a grant or a secret.
        (Call::Login | Call::Lookup | Call::Renew | Call::Read, _) => (TEMPORARY, Some("BAO_UNAVAILABLE")),
        (Call::Checkin | Call::Bundle | Call::Lease, Looks::Lost) => (TEMPORARY, Some("TENANCY_UNREACHABLE")),
        (Call::Bundle, Looks::Nonsense | Looks::Large) => (1, Some("BUNDLE_INVALID")),
        (Call::Bundle, Looks::Short) => (TEMPORARY, Some("TENANCY_UNREACHABLE")),
        (Call::Lease, Looks::Status(429)) => (TEMPORARY, Some("LEASE_RATE_LIMITED")),
        (Call::Lease, Looks::Status(401 | 403)) => (1, Some("LEASE_DENIED")),
        (
            Call::Checkin | Call::Bundle | Call::Lease,
            Looks::NoAnswer | Looks::Garbled | Looks::Large | Looks::Status(_) | Looks::Nonsense | Looks::Short,
        ) => (TEMPORARY, Some("TENANCY_ERROR")),
    }
}

/// Whether a report is still to be told after a tick whose report met this.
fn report_waits(row: &Row) -> bool {
    match row.looks {
        // Every success is a delivery, whatever is in it.
        Looks::Fine | Looks::Nonsense | Looks::Short | Looks::Garbled | Looks::Large => false,
        Looks::Status(status) => !matches!(status, 400 | 409 | 410 | 413 | 415 | 422),
        Looks::Lost | Looks::NoAnswer => true,
    }
}

/// One fault for one call: the tick in which it happens, and the next one.
fn check(one: &mut Box, call: Call, row: &Row) {
    one.will_call(call);
    let (containers, touches, leased) = (one.containers(), one.touches(), leases(one));
    let reports = one.stand.tenancy.reports().len();
    one.goes_wrong(call, row.does.clone(), usize::MAX);
    let began = now_ms();
    let ran = one.tick();
    assert!(ran.took < if row.quick { FAR } else { NEAR }, "{ran:?}");
    let (status, code) = code_of(call, row);
    assert_eq!(ran.status, Some(status), "{ran:?}");
    told(&ran, code);
    assert!(!ran.stderr.contains("a bug") && !ran.stderr.contains("panicked"), "{ran:?}");
    for secret in one.secrets() {
        assert!(!ran.stderr.contains(&secret) && !ran.stdout.contains(&secret), "a secret: {ran:?}");
    }

    // What may not arrive twice did not, and what may was sent again only when that could help, with its key each time.
    let gate = matches!(row.does, Does::Refuse | Does::ResetBefore);
    let arrived = one.way(call).bodies(call);
    // Two secrets are read, and two tokens revoked: the one that a bootstrap token replaces, and the bootstrap token.
    let calls = if matches!(call, Call::Read | Call::Revoke) { 2 } else { 1 };
    let tries = if row.again && call.is_idempotent() { 3 } else { 1 };
    let came = match row.does {
        Does::Refuse => 0,
        Does::ResetBefore => one.way(call).resets(),
        _ => arrived.len(),
    };
    match (&row.does, row.looks, call) {
        (Does::Refuse, _, _) => assert_eq!(arrived.len(), 0, "{ran:?}"),
        // The token looks itself up again after each login, and is revoked once only if a login is not let in.
        (_, Looks::Fine, Call::Lookup) | (Does::ResetBefore, _, Call::Revoke) => assert!(came >= 1, "{came}: {ran:?}"),
        _ => assert_eq!(came, calls * tries, "{ran:?}"),
    }
    assert_eq!(
        ran.stderr.matches("; asking again in ").count() > 0,
        row.again && (tries > 1 || row.is_refusal()),
        "{ran:?}"
    );
    if call == Call::Report {
        let id = |body: &String| serde_json::from_str::<serde_json::Value>(body).unwrap()["report_id"].clone();
        assert!(arrived.windows(2).all(|two| id(&two[0]) == id(&two[1])), "{arrived:?}");
    }
    assert!(gate || !arrived.is_empty(), "the call was not made: {ran:?}");
    assert!(leases(one) <= leased + 1, "{} leases in a tick", leases(one) - leased);
    if call != Call::Lease {
        assert_eq!(leases(one), leased, "a lease for nothing");
    }

    // One of the hour's is spent by a lease that may have arrived, and by no other.
    if call == Call::Lease && row.looks == Looks::Lost {
        let spent = match row.does {
            // It comes while the connection is opened, and nothing was sent, or right after the request went out.
            Does::ResetBefore => 0..=1,
            _ if row.is_refusal() => 0..=0,
            _ => 1..=1,
        };
        assert!(spent.contains(&one.leases_since(began)), "{} leases count: {ran:?}", one.leases_since(began));
    }

    // What runs is left alone, unless the deploy went on.
    if code.is_some() {
        assert_eq!((one.containers(), one.touches()), (containers, touches), "{ran:?}");
    }
    one.state_is_whole();
    if call == Call::Report {
        assert_eq!(one.outbox().len(), usize::from(report_waits(row)), "{ran:?}");
    }

    // What was to be waited for is over, and the next tick deploys.
    one.is_left_alone(status == 1 || (call == Call::Lease && row.says_when));
    let next = one.tick();
    let word = if code.is_some() { "applied" } else { "unchanged" };
    assert!(next.status == Some(0) && next.stdout.starts_with(word), "afterwards: {next:?}, after {ran:?}");
    let lost = call == Call::Report && !report_waits(row) && row.looks != Looks::Fine;
    if !lost {
        one.converged();
        let failed = usize::from(status == 1);
        assert_eq!(one.stand.tenancy.reports().len(), reports + 1 + failed, "an outcome is told once");
    }
    one.state_is_whole();
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

fn leases(one: &Box) -> usize {
    one.stand.tenancy.leases_granted(&one.stand.env_id)
}

/// A tick says its code on stdout and in the journal, with what to do.
fn told(ran: &Ran, code: Option<&str>) {
    let last = ran.stdout.trim().rsplit(' ').next().unwrap_or_default();
    match code {
        Some(code) => {
            assert_eq!(last, code, "{ran:?}");
            assert!(ran.stderr.contains(code) && ran.stderr.contains(" -> "), "{ran:?}");
        }
        None => assert!(ran.stdout.starts_with("applied "), "{ran:?}"),
    }
}

#[test]
fn every_fault_of_every_call_ends_the_tick_with_its_code_and_the_next_one_deploys() {
    let elsewhere = Elsewhere::start();
    let rows = all(&elsewhere.base());
    let mut work: Vec<(Call, &Row)> = Call::ALL.iter().flat_map(|call| rows.iter().map(|row| (*call, row))).collect();
    if let Ok(only) = std::env::var("WIRE_ONLY") {
        work.retain(|(call, row)| format!("{call:?} {}", row.name).contains(&only));
    } else {
        // 9 calls, 58 faults: a row that is lost has to be missed.
        assert_eq!((Call::ALL.len(), rows.len(), work.len()), (9, 58, 9 * 58));
    }
    assert!(!work.is_empty(), "WIRE_ONLY names no pair");
    // The slow ones first, so that they do not wait for each other at the end.
    work.sort_by_key(|(_, row)| row.quick);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..BOXES {
            scope.spawn(|| {
                // One whose calls end soon by their deadline, and one whose calls have all the time that they want.
                let mut boxes = [None, None];
                while let Some((call, row)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (one, timeout_s) = match &mut boxes {
                        [soon, _] if !row.quick => (soon, SOON_S),
                        [_, late] => (late, LATE_S),
                    };
                    let checked = catch_unwind(AssertUnwindSafe(|| {
                        check(one.get_or_insert_with(|| Box::new(timeout_s)), *call, row);
                    }));
                    if checked.is_err() {
                        let name = format!("{call:?}: {}", row.name);
                        eprintln!("failed: {name}");
                        failed.lock().unwrap().push(name);
                        // Another one for the next row.
                        *one = None;
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {} pairs:\n{}", failed.len(), work.len(), failed.join("\n"));
    assert_eq!(elsewhere.connections(), 0, "a redirect was followed");
    eprintln!("{} pairs of call and fault", work.len());
}
