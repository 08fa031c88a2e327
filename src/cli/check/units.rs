//! The service and the timer: does systemd run the agent every minute, and let it finish?
//!
//! Invariant: systemd is only asked (`systemctl show`), with a deadline.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::words::moment;
use super::line::Line;
use crate::drivers::docker::cli::{Call, Docker};
use crate::effects::Stamp;
use crate::effects::failure::Code;

/// How long it may take to answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// It is there while systemd is process 1.
const RUNNING: &str = "/run/systemd/system";
const TIMER: &str = "monky-deployd.timer";
const SERVICE: &str = "monky-deployd.service";
/// How a tick ends that could do nothing, which systemd takes for a success.
const LATER: &str = "75";
const ASKED: &str = "LoadState,ActiveState,UnitFileState,Result,ExecMainStatus,ExecMainExitTimestamp,TimeoutStartUSec,\
    ProtectSystem,ProtectHome,ReadWritePaths,StateDirectory";

/// What systemd says of a unit, by property.
type Unit = BTreeMap<String, String>;

/// What the units have to allow, and what is known of the ticks.
#[derive(Debug)]
pub struct Expected {
    /// The longest tick (seconds).
    pub longest_s: u64,
    /// Where it has to write.
    pub state_dir: PathBuf,
    /// What is in the way for longest, and since when.
    pub trouble: Option<(Code, Stamp)>,
}

/// Asks systemd.
pub fn look(docker: &Docker, expected: &Expected) -> Vec<Line> {
    if !Path::new(RUNNING).is_dir() {
        return unchecked("systemd does not run here");
    }
    // The one place that starts children, with their deadlines and their clean environment, is Docker's.
    let systemctl = docker.other("systemctl");
    match systemctl.run(&Call::new(["show", "--property", ASKED, TIMER, SERVICE], DEADLINE)) {
        Ok(output) if output.status.success() => {
            let units = parse(&output.stdout.text());
            let unit = |at: usize| units.get(at).cloned().unwrap_or_default();
            judge(&unit(0), &unit(1), expected)
        }
        Ok(output) => unchecked(output.stderr.text().trim()),
        Err(error) => unchecked(&error.to_string()),
    }
}

fn unchecked(why: &str) -> Vec<Line> {
    let remedy = "see to it that something runs `monky-deployd tick` every minute, and lets it finish";
    ["timer", "service"].map(|fact| Line::unchecked(fact, why, remedy)).into()
}

/// Blocks of `Property=value`, an empty line between them.
fn parse(text: &str) -> Vec<Unit> {
    let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    text.split("\n\n").map(|block| block.lines().filter_map(pair).collect()).collect()
}

fn judge(timer: &Unit, service: &Unit, expected: &Expected) -> Vec<Line> {
    let mut lines = vec![timer_line(timer)];
    lines.extend(service_lines(service, expected));
    lines
}

fn property<'a>(unit: &'a Unit, name: &str) -> &'a str {
    unit.get(name).map(String::as_str).unwrap_or_default()
}

fn not_loaded(fact: &str, name: &str, load: &str) -> Option<Line> {
    let remedy = if load == "masked" {
        format!("sudo systemctl unmask {name}")
    } else {
        format!("install {name}, then sudo systemctl daemon-reload")
    };
    (load != "loaded").then(|| Line::failure(fact, format!("{name} is {load}"), &remedy))
}

fn timer_line(timer: &Unit) -> Line {
    if let Some(line) = not_loaded("timer", TIMER, property(timer, "LoadState")) {
        return line;
    }
    let (active, enabled) = (property(timer, "ActiveState"), property(timer, "UnitFileState"));
    let what = format!("{TIMER} is {active} and {enabled}");
    if active == "active" && enabled.starts_with("enabled") {
        Line::ok("timer", what)
    } else {
        Line::failure("timer", what, &format!("sudo systemctl enable --now {TIMER}"))
    }
}

fn service_lines(service: &Unit, expected: &Expected) -> Vec<Line> {
    if let Some(line) = not_loaded("service", SERVICE, property(service, "LoadState")) {
        return vec![line];
    }
    let (result, status) = (property(service, "Result"), property(service, "ExecMainStatus"));
    let what = format!("the service's last tick ended with {status} ({result})");
    // From 200 on it is systemd's own: the program was not even started.
    let started = status.parse::<u32>().is_ok_and(|status| status < 200);
    let journal = format!("sudo journalctl -u {SERVICE} -n 50");
    // Not of this boot: then status and result say nothing but what they begin with.
    let none_ended = service.get("ExecMainExitTimestamp").is_some_and(|at| matches!(at.as_str(), "" | "n/a" | "0"));
    let why = format!("`monky-deployd status` and `monky-deployd history` say why; {journal}");
    vec![
        match result {
            "success" | "" if property(service, "ActiveState") == "activating" => {
                Line::ok("service", "a tick is at work".to_owned())
            }
            "success" | "" if result.is_empty() || none_ended => {
                Line::ok("service", "no tick has ended yet since this machine started".to_owned())
            }
            "success" if status == LATER => {
                let since = expected.trouble.map(|(code, at)| format!(": {code} since {}", moment(at)));
                let what =
                    format!("the service's last tick could do nothing ({LATER}, later){}", since.unwrap_or_default());
                Line::warning("service", what, &why)
            }
            "success" => Line::ok("service", what),
            _ if !started => Line::failure("service", format!("{what}: systemd could not start it"), &journal),
            _ => Line::warning("service", what, &why),
        },
        limit(property(service, "TimeoutStartUSec"), expected.longest_s),
    ]
    .into_iter()
    .chain(paths(service, &expected.state_dir))
    .collect()
}

/// Whether the service may write where it has to, as far as systemd keeps it from writing; no line where it may.
fn paths(service: &Unit, dir: &Path) -> Option<Line> {
    let below = |roots: &[&str]| roots.iter().any(|root| dir.starts_with(root));
    let closed = match property(service, "ProtectSystem") {
        "strict" => true,
        "full" => below(&["/usr", "/boot", "/efi", "/etc"]),
        "yes" => below(&["/usr", "/boot", "/efi"]),
        _ => false,
    };
    let home = property(service, "ProtectHome");
    let at_home = matches!(home, "yes" | "read-only" | "tmpfs") && below(&["/home", "/root", "/run/user"]);
    // What is hidden is not there: no other setting brings a part of it back.
    let hidden = at_home && home != "read-only";
    let opened = property(service, "ReadWritePaths").split_whitespace();
    let opened = opened.map(|path| PathBuf::from(path.trim_start_matches(['-', '+'])));
    let own = property(service, "StateDirectory").split_whitespace().map(|name| Path::new("/var/lib").join(name));
    let open = opened.chain(own).any(|path| dir.starts_with(path));
    (hidden || ((closed || at_home) && !open)).then(|| {
        let what = format!("{SERVICE} may not write below {}, which is `state_dir`", dir.display());
        let remedy = format!("sudo systemctl edit {SERVICE}, and below [Service]: ReadWritePaths={}", dir.display());
        let home = if at_home { "; and ProtectHome=no" } else { "" };
        Line::failure("service.paths", what, &format!("{remedy}{home}"))
    })
}

fn limit(limit: &str, longest_s: u64) -> Line {
    let fact = "service.limit";
    let what = format!("TimeoutStartSec is {limit}");
    match seconds(limit) {
        None => Line::warning(
            fact,
            format!("{what}: a tick that hangs is never ended"),
            &format!("set TimeoutStartSec={longest_s}"),
        ),
        Some(limit_s) if limit_s < longest_s => {
            let what = format!(
                "{what}, shorter than the longest tick (pull_timeout_s + 2 × healthy_timeout_s + 600 = {longest_s} s)"
            );
            Line::warning(
                fact,
                what,
                &format!("set TimeoutStartSec={longest_s}: an apply that is cut off begins anew with the next tick"),
            )
        }
        Some(_) => Line::ok(fact, format!("{what}, enough for the longest tick ({longest_s} s)")),
    }
}

/// A span as systemd writes it (`1h 30min 5s`), in whole seconds; none: there is no limit, or it is no span.
fn seconds(span: &str) -> Option<u64> {
    let mut sum = 0_u64;
    for word in span.split_whitespace() {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
        let number: u64 = word.strip_suffix(unit)?.parse().ok()?;
        let each = match unit {
            "us" | "ms" => 0,
            "s" | "" => 1,
            "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            "w" => 604_800,
            "month" => 2_629_800,
            "y" => 31_557_600,
            _ => return None,
        };
        sum = sum.saturating_add(number.saturating_mul(each));
    }
    (!span.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::super::line::{Level, count};
    use super::*;

    const TIMER_SAYS: &str = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n";
    const SERVICE_SAYS: &str = "TimeoutStartUSec=30min\nExecMainStatus=0\nLoadState=loaded\nActiveState=inactive\nUnitFileState=static\nResult=success\n";

    fn expected(state_dir: &str) -> Expected {
        Expected { longest_s: 1800, state_dir: state_dir.into(), trouble: Some((Code::TenancyUnreachable, Stamp(0))) }
    }

    fn judged(timer: &str, service: &str) -> Vec<Line> {
        let units = parse(&format!("{timer}\n{service}"));
        judge(&units[0], &units[1], &expected("/var/lib/monky-deployd"))
    }

    fn level(fact: &str, lines: &[Line]) -> Level {
        lines.iter().find(|line| line.fact == fact).unwrap().level
    }

    #[test]
    fn a_timer_has_to_be_active_and_enabled() {
        let fine = judged(TIMER_SAYS, SERVICE_SAYS);
        assert_eq!(count(&fine, Level::Ok), 3, "{fine:?}");
        for (from, to) in
            [("=active", "=inactive"), ("=enabled", "=disabled"), ("=loaded", "=not-found"), ("=loaded", "=masked")]
        {
            let lines = judged(&TIMER_SAYS.replace(from, to), SERVICE_SAYS);
            assert_eq!((level("timer", &lines), count(&lines, Level::Failure)), (Level::Failure, 1), "{to}");
        }
    }

    #[test]
    fn how_the_last_tick_ended_is_told_and_one_that_never_started_fails() {
        let last = |result: &str, status: &str| {
            let says = SERVICE_SAYS
                .replace("=success", &format!("={result}"))
                .replace("Status=0", &format!("Status={status}"));
            level("service", &judged(TIMER_SAYS, &says))
        };
        assert_eq!(last("success", "75"), Level::Warning);
        assert_eq!(last("exit-code", "1"), Level::Warning);
        assert_eq!(last("timeout", "15"), Level::Warning);
        assert_eq!(last("exit-code", "217"), Level::Failure);
    }

    fn service(more: &str) -> Line {
        let lines = judged(TIMER_SAYS, &format!("{SERVICE_SAYS}{more}"));
        lines.into_iter().find(|line| line.fact == "service").unwrap()
    }

    #[test]
    fn what_is_in_the_way_is_told_with_since_when() {
        let line = service("ExecMainStatus=75\n");
        assert!(line.what.ends_with("TENANCY_UNREACHABLE since 1970-01-01T00:00:00Z"), "{line:?}");
    }

    #[test]
    fn where_no_tick_has_ended_none_is_said_to_have_ended() {
        for never in ["", "n/a", "0"] {
            let line = service(&format!("ExecMainExitTimestamp={never}\n"));
            assert!(line.level == Level::Ok && line.what.starts_with("no tick has ended yet"), "{line:?}");
        }
        let line = service("ExecMainExitTimestamp=Mon 2026-11-30 10:00:00 UTC\n");
        assert_eq!(line.what, "the service's last tick ended with 0 (success)");
        let line = service("ExecMainExitTimestamp=\nActiveState=activating\n");
        assert_eq!(line.what, "a tick is at work");
    }

    #[test]
    fn a_state_directory_in_which_the_service_may_not_write_fails() {
        let fails = |dir: &str, more: &str| {
            let units = parse(&format!("{TIMER_SAYS}\n{SERVICE_SAYS}{more}"));
            let lines = judge(&units[0], &units[1], &expected(dir));
            lines.iter().any(|line| line.fact == "service.paths" && line.level == Level::Failure)
        };
        let ours = "ProtectSystem=strict\nProtectHome=yes\nStateDirectory=monky-deployd\n";
        assert!(!fails("/var/lib/monky-deployd", ours));
        assert!(!fails("/var/lib/monky-deployd/sub", ours));
        assert!(fails("/srv/deployd", ours));
        assert!(fails("/var/lib/monky-deployd-2", ours), "a prefix of a name is no folder");
        assert!(!fails("/srv/deployd", &format!("{ours}ReadWritePaths=/mnt -/srv\n")));
        assert!(!fails("/srv/deployd", "ProtectSystem=full\n") && fails("/etc/deployd", "ProtectSystem=full\n"));
        assert!(!fails("/etc/deployd", "ProtectSystem=yes\n") && fails("/usr/deployd", "ProtectSystem=yes\n"));
        assert!(fails("/home/me/state", "ProtectSystem=no\nProtectHome=yes\n"));
        assert!(!fails("/srv/deployd", "") && !fails("/srv/deployd", "ProtectSystem=no\n"));
    }

    #[test]
    fn a_limit_shorter_than_the_longest_tick_is_told() {
        let last = |limit: &str| level("service.limit", &judged(TIMER_SAYS, &SERVICE_SAYS.replace("30min", limit)));
        assert_eq!([last("30min"), last("1h 5s"), last("1800s")], [Level::Ok; 3]);
        assert_eq!([last("15min"), last("29min 59s 999ms"), last("infinity"), last("")], [Level::Warning; 4]);
    }
}
