//! Makes the recordings in `fixtures/incidents`: each is one tick of the real machine and its real drivers on the
//! stand-ins, after whatever led to it.
//!
//! ```sh
//! cargo run --example incidents                     # all of them
//! cargo run --example incidents -- 2026-09-rc-1     # one
//! ```
//!
//! A recording changes with every run (times, ports, ids), so this is run when one is to be made anew, and the
//! difference of its snapshot is reviewed. Invariant: a tick that does not end as the incident says is no fixture.

#![expect(clippy::unwrap_used, reason = "a generator that cannot go on has failed")]

#[path = "../tests/common/stand.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod stand;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use monky_deployd::effects::failure::Code;
use monky_deployd::sandbox::docker::{self, Behaviour, Pace};
use monky_deployd::sandbox::http::Fault;
use monky_deployd::sandbox::tenancy::Call;
use serde_json::json;
use stand::{Secrets, Stand, Ticked};

/// How a tick must end.
type End = (&'static str, Option<Code>);

/// An incident: its name, what led to it and the tick itself, how that ends, and what its recording must show.
struct Incident {
    name: &'static str,
    make: fn() -> Ticked,
    ends: End,
    shows: fn(&str) -> bool,
}

const INCIDENTS: &[Incident] = &[
    Incident {
        name: "2026-09-lease-burn",
        make: lease_burn,
        ends: ("failed", Some(Code::PullFailed)),
        shows: |text| !text.contains("ask_lease") && text.contains(r#""cause":"retry","n":5"#),
    },
    Incident {
        name: "2026-09-invisible-login",
        make: invisible_login,
        ends: ("applied", None),
        shows: |text| text.contains(r#""registry":["registry.example","puller"]"#),
    },
    Incident {
        name: "2026-09-rc-1",
        make: rc_1,
        ends: ("failed", Some(Code::PullFailed)),
        shows: |text| text.contains("compose pull: ") && text.contains("manifest unknown"),
    },
    Incident {
        name: "2026-10-rate-limited-bootstrap",
        make: rate_limited_bootstrap,
        ends: ("applied", None),
        shows: |text| text.contains(r#""status":429"#),
    },
    Incident {
        name: "2026-10-legacy-lease",
        make: legacy_lease,
        ends: ("failed", Some(Code::LegacyLease)),
        shows: |text| !text.contains(r#""op":"pull""#),
    },
    Incident {
        name: "2026-10-refused-rollback",
        make: refused_rollback,
        ends: ("failed", Some(Code::RollbackRefused)),
        shows: |text| !text.contains("stage_bundle"),
    },
    Incident {
        name: "2026-10-unhealthy-with-logs",
        make: unhealthy_with_logs,
        ends: ("rolled_back", Some(Code::Unhealthy)),
        shows: |text| text.contains("column orders.total is missing"),
    },
    Incident {
        name: "2026-11-bao-sealed-mid-reads",
        make: bao_sealed_mid_reads,
        ends: ("deferred", Some(Code::BaoUnavailable)),
        shows: |text| text.contains(r#""secret_read","data":{"Ok""#) && text.contains(r#""secret_read","data":{"Err""#),
    },
    Incident {
        name: "2026-11-tenancy-gone-before-report",
        make: tenancy_gone_before_report,
        ends: ("applied", None),
        shows: |text| text.contains(r#""report_sent","data":{"Err""#),
    },
    Incident {
        name: "2026-11-crash-loop-looks-running",
        make: crash_loop_looks_running,
        ends: ("failed", Some(Code::Unhealthy)),
        shows: |text| text.contains(r#""state":"running""#) && text.contains(r#""state":"restarting""#),
    },
];

const SECRETS: [&str; 2] = ["db-c05b66e8-of-an-incident", "pull-7f3a91c2-of-an-incident"];

fn box_with(more: &str) -> Stand {
    let [db_password, pull_password] = SECRETS.map(str::to_owned);
    let exe = std::env::current_exe().unwrap();
    Stand::new(&exe, "env-lab-01", Secrets { db_password, pull_password }, more)
}

fn healthy() -> Behaviour {
    Behaviour::GetsHealthy(Pace { looks: 1, ms: 0 })
}

/// A box that runs web 1.0, generation 2, with a leased token.
fn running(more: &str) -> Stand {
    let mut stand = box_with(more);
    stand.image("shop/web:1.0", healthy(), &[]);
    stand.bootstrap();
    stand.desire(2, "web:1.0", &[]);
    ended(&stand.tick(), ("applied", None));
    stand.age(600);
    stand
}

fn ended(ticked: &Ticked, end: End) {
    assert_eq!((ticked.done.word.as_str(), ticked.done.code), end, "{}", ticked.done.detail);
}

fn lease_burn() -> Ticked {
    let mut stand = box_with("");
    stand.bootstrap();
    stand.desire(1, "web:9.9", &[]);
    for attempt in 0..5 {
        ended(&stand.tick(), ("failed", Some(Code::PullFailed)));
        // The backoff, and its jitter.
        stand.age(36 << attempt);
    }
    let ticked = stand.tick();
    assert_eq!(stand.tenancy.leases_granted(&stand.env_id), 1, "one lease in all");
    ticked
}

fn invisible_login() -> Ticked {
    let mut stand = box_with("");
    stand.image("shop/web:1.0", healthy(), &[]);
    stand.bootstrap();
    // First without the credential, as after a login whose result the agent does not see.
    stand.desire_with(1, "web:1.0", &[]);
    let without = stand.tick();
    ended(&without, ("failed", Some(Code::PullFailed)));
    assert!(without.done.detail.contains("no basic auth credentials"), "{}", without.done.detail);
    stand.desire(2, "web:1.0", &[]);
    stand.tick()
}

fn rc_1() -> Ticked {
    let mut stand = running("");
    stand.desire(3, "web:9.9", &[]);
    stand.tick()
}

fn rate_limited_bootstrap() -> Ticked {
    let mut stand = box_with("");
    stand.image("shop/web:1.0", healthy(), &[]);
    stand.bootstrap();
    stand.tenancy.lease_budget(Some(0));
    stand.desire(1, "web:1.0", &[]);
    stand.tick()
}

fn legacy_lease() -> Ticked {
    let mut stand = box_with("");
    stand.image("shop/web:1.0", healthy(), &[]);
    stand.bootstrap();
    stand.tenancy.legacy_leases(true);
    stand.desire(1, "web:1.0", &[]);
    stand.tick()
}

fn refused_rollback() -> Ticked {
    let mut stand = running("");
    stand.desire(1, "web:0.9", &[]);
    stand.tick()
}

fn unhealthy_with_logs() -> Ticked {
    let mut stand = running("on_unhealthy: rollback\n");
    let logs = ["starting shop-web 1.2", "cannot migrate: column orders.total is missing"].map(str::to_owned);
    stand.image("shop/web:1.2", Behaviour::GetsUnhealthy(Pace { looks: 1, ms: 0 }), &logs);
    stand.desire(3, "web:1.2", &[]);
    stand.tick()
}

fn bao_sealed_mid_reads() -> Ticked {
    // More secrets than are read at the same time. Whether the seal falls among the reads is a race: it is run again.
    let names: Vec<String> = (1..=14).map(|n| format!("part_{n}")).collect();
    loop {
        let stand = running("");
        stand.image("shop/web:1.1", healthy(), &[]);
        for name in &names {
            stand.secret(name, json!({ "value": SECRETS[0] }));
        }
        stand.desire(3, "web:1.1", &names);
        let before = stand.bao.requests().len();
        let ticked = thread::scope(|scope| {
            let (bao, reads) = (&stand.bao, before + 1 + 4);
            let sealer = scope.spawn(move || {
                while bao.requests().len() < reads {
                    thread::sleep(Duration::from_micros(200));
                }
                bao.seal(true);
            });
            let ticked = Stand::tick_of(&stand.config, 3);
            sealer.join().unwrap();
            ticked
        });
        let both = ticked.recording.contains(r#""secret_read","data":{"Ok""#);
        if both && ticked.done.code == Some(Code::BaoUnavailable) {
            return ticked;
        }
        stand.bao.seal(false);
    }
}

fn tenancy_gone_before_report() -> Ticked {
    let mut stand = running("");
    stand.image("shop/web:1.1", healthy(), &[]);
    stand.desire(3, "web:1.1", &[]);
    stand.tenancy.fail_always(Call::Report, Some(Fault::Drop));
    stand.tick()
}

fn crash_loop_looks_running() -> Ticked {
    let mut stand = running("");
    let logs = ["listening on 8080", "panic: cannot reach the queue"].map(str::to_owned);
    stand.image("shop/web:1.1", Behaviour::Exits { code: 2, after: Pace { looks: 2, ms: 0 } }, &logs);
    stand.desire(3, "web:1.1", &[]);
    stand.tick()
}

fn main() -> ExitCode {
    if docker::is_called(std::env::args_os().next().as_deref()) {
        return docker::main(std::env::args_os());
    }
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let unknown = wanted.iter().find(|name| INCIDENTS.iter().all(|incident| incident.name != name.as_str()));
    if let Some(unknown) = unknown {
        let names: Vec<&str> = INCIDENTS.iter().map(|incident| incident.name).collect();
        eprintln!("there is no incident {unknown}; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/incidents");
    for incident in INCIDENTS.iter().filter(|it| wanted.is_empty() || wanted.iter().any(|name| name == it.name)) {
        let ticked = (incident.make)();
        ended(&ticked, incident.ends);
        assert!((incident.shows)(&ticked.recording), "{}: {}", incident.name, ticked.recording);
        for secret in SECRETS {
            assert!(!ticked.recording.contains(secret), "{}: a secret is in it", incident.name);
        }
        let folder = fixtures.join(incident.name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("incident.jsonl"), &ticked.recording).unwrap();
        println!("{}: {} bytes", incident.name, ticked.recording.len());
    }
    ExitCode::SUCCESS
}
