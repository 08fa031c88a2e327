//! A name that nobody resolves: `getaddrinfo` has no deadline, the call has.
//!
//! Invariant: the server of names is silent, not absent: it takes every question and never answers.

use std::fs;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::boxes::{Box, EXE, Ran};

/// What the system's own resolver takes: two tries of 30 s.
const FOR_EVER: &str = "options timeout:30 attempts:2\n";
/// Below that, and above the deadline of the call.
const PROMPT: Duration = Duration::from_secs(40);

#[test]
fn a_name_that_is_never_resolved_costs_no_more_than_the_deadline_and_no_signal_waits_for_it() {
    if std::env::var("STACK").is_ok_and(|stack| stack == "off") {
        eprintln!("STACK=off: mounting over resolv.conf needs root, left out");
        return;
    }
    // Port 53 is the only one that resolv.conf can name.
    let silent = UdpSocket::bind("127.77.53.53:53").unwrap_or_else(|error| panic!("{error}; root, or STACK=off"));
    let one = Box::new(2);
    let resolv = one.stand.dir().join("resolv.conf");
    fs::write(&resolv, format!("nameserver 127.77.53.53\n{FOR_EVER}")).unwrap();
    let hosts = one.stand.dir().join("nsswitch.conf");
    fs::write(&hosts, "hosts: dns\n").unwrap();
    let own_names = |timeout_s: u64| {
        let yaml = fs::read_to_string(&one.config).unwrap();
        let at = format!("  host: {}\n", one.tenancy.at.ip());
        let named = yaml.replace(&at, "  host: tenancy.example.org\n").replacen(
            "timeout_s: 2\n",
            &format!("timeout_s: {timeout_s}\n"),
            1,
        );
        assert!(named.contains("tenancy.example.org"), "{yaml}");
        let file = one.stand.dir().join(format!("names-{timeout_s}.yaml"));
        fs::write(&file, named).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc"]).arg(
            "mount --bind \"$1\" /etc/resolv.conf; mount --bind \"$2\" /etc/nsswitch.conf; exec \"$3\" --config \"$4\" tick",
        );
        command.arg("sh").args([&resolv, &hosts]).arg(EXE).arg(&file).stdin(Stdio::null());
        command
    };

    // The name alone has five seconds of these, and is asked for again in the rest.
    let ran = Ran::of(&mut own_names(7));
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(75), "deferred TENANCY_UNREACHABLE\n"), "{ran:?}");
    assert!(ran.stderr.contains("its name was not resolved in time"), "{ran:?}");
    assert!(ran.took < PROMPT, "{ran:?}");
    silent.set_nonblocking(true).unwrap();
    assert!(silent.recv(&mut [0; 512]).is_ok(), "nobody asked for the name");
    while silent.recv(&mut [0; 512]).is_ok() {}

    let child = own_names(600).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    silent.set_nonblocking(false).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    silent.recv(&mut [0; 512]).unwrap();
    let asked = Instant::now();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ran = Ran::ended(child, asked);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(75), "interrupted\n"), "{ran:?}");
    assert!(ran.took < PROMPT, "{ran:?}");
}
