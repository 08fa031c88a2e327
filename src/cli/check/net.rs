//! The ways to tenancy and OpenBao, and how the two answer.
//!
//! Invariant: only calls that read. Tenancy is asked for a bundle that cannot be, so it learns nothing; OpenBao for its
//! health, without a token.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::line::{Block, Line};
use crate::config::{self, HostPort};
use crate::drivers::clock::Clock;
use crate::drivers::openbao::{Health, OpenBao};
use crate::drivers::tenancy::{Reached, Tenancy};
use crate::effects::{CallFault, Scrub};

/// A local listener answers at once, or nobody is there.
const LISTENER: Duration = Duration::from_secs(2);
/// A clock that is so far off is told, and one so far off fails (seconds): grants are valid for minutes, and OpenBao
/// allows for one.
const CLOCK_OFF_S: (i64, i64) = (30, 300);

/// How a server is dialled: by its own name, or through a listener.
#[derive(Clone, Debug)]
pub enum Way {
    /// `host`, `port`.
    Name(String, u16),
    /// The listener.
    Listener(HostPort),
    /// Not at all.
    Unbuilt,
}

/// The ways to tenancy and to OpenBao.
pub fn ways(config: &config::Config) -> (Way, Way) {
    let tenancy = || Way::Name(config.tenancy.host.clone(), config.tenancy.port);
    let bao = || Way::Name(config.bao.host.clone(), config.bao.port);
    match &config.transport {
        config::Transport::System => (tenancy(), bao()),
        config::Transport::Proxy { tenancy, bao: through } => {
            (Way::Listener(tenancy.clone()), through.clone().map_or_else(bao, Way::Listener))
        }
        config::Transport::Sdk { .. } => (Way::Unbuilt, bao()),
    }
}

/// Looks at a way; `who` is `tenancy` or `bao`. With its line comes why nobody needs to be asked, if it leads nowhere.
pub fn way(who: &str, way: &Way) -> (Option<Line>, Block) {
    const NOWHERE: Block = Some(("there is no way to it", "mend the way first"));
    match way {
        // An address needs no name service.
        Way::Name(host, _) if host.parse::<IpAddr>().is_ok() => (None, None),
        Way::Name(host, port) => {
            let found = (host.as_str(), *port).to_socket_addrs().map(|all| all.map(|at| at.ip()).collect::<Vec<_>>());
            let line = name(&format!("{who}.dns"), host, found.map_err(|error| error.to_string()));
            let block = if line.remedy.is_none() { None } else { NOWHERE };
            (Some(line), block)
        }
        Way::Listener(at) => {
            let connected = connects(at);
            let block = if connected.is_ok() { None } else { NOWHERE };
            let mut listening = Vec::new();
            for (file, six) in [("/proc/net/tcp", false), ("/proc/net/tcp6", true)] {
                listening.extend(listeners(&fs::read_to_string(file).unwrap_or_default(), at.port, six));
            }
            (Some(listener(&format!("{who}.proxy"), at, connected, &listening)), block)
        }
        Way::Unbuilt => (None, NOWHERE),
    }
}

fn connects(at: &HostPort) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut last = "the name has no address".to_owned();
    for address in (at.host.as_str(), at.port).to_socket_addrs().map_err(told)? {
        match TcpStream::connect_timeout(&address, LISTENER) {
            Ok(_) => return Ok(()),
            Err(error) => last = told(error),
        }
    }
    Err(last)
}

fn name(fact: &str, host: &str, found: Result<Vec<IpAddr>, String>) -> Line {
    let remedy = "look at the tunneler (it answers for names of the mesh) and at /etc/resolv.conf";
    match found {
        Ok(all) => match all.first() {
            Some(first) => Line::ok(fact, format!("{host} is {first}")),
            None => Line::failure(fact, format!("the name {host} has no address"), remedy),
        },
        Err(why) => Line::failure(fact, format!("the name {host} cannot be resolved: {why}"), remedy),
    }
}

/// Where somebody listens on a port, from the kernel's table (`/proc/net/tcp`, `tcp6`).
fn listeners(table: &str, port: u16, six: bool) -> Vec<SocketAddr> {
    let address = |word: &str| -> Option<SocketAddr> {
        let (ip, at) = word.split_once(':')?;
        let at = u16::from_str_radix(at, 16).ok().filter(|at| *at == port)?;
        // Each group of eight digits is a number as this machine keeps it.
        let group = |n: usize| Some(u32::from_str_radix(ip.get(n * 8..n * 8 + 8)?, 16).ok()?.to_ne_bytes());
        let ip = if six {
            let mut all = [0; 16];
            for (n, four) in all.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&group(n)?);
            }
            IpAddr::V6(Ipv6Addr::from(all))
        } else {
            IpAddr::V4(Ipv4Addr::from(group(0)?))
        };
        Some(SocketAddr::new(ip, at))
    };
    let line = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        if state == "0A" { address(local) } else { None }
    };
    table.lines().filter_map(line).collect()
}

fn listener(fact: &str, at: &HostPort, connected: Result<(), String>, listening: &[SocketAddr]) -> Line {
    if let Err(why) = connected {
        let what = format!("nobody can be reached at {at}: {why}");
        return Line::failure(fact, what, "start the tunnel's proxy, and look at its log; or mend its host:port");
    }
    let open = listening.iter().find(|at| !at.ip().to_canonical().is_loopback());
    match open {
        Some(open) => {
            let what = format!("{at} answers, and somebody listens on {open}: whoever reaches that calls as this box");
            Line::warning(fact, what, "let the proxy listen on 127.0.0.1 only")
        }
        None => Line::ok(fact, format!("{at} answers")),
    }
}

/// Asks tenancy: its line, and that of the clock.
pub fn tenancy(server: &Tenancy, block: Block, scrub: &dyn Scrub) -> Vec<Line> {
    if let Some((why, remedy)) = block {
        return ["tenancy", "clock"].map(|fact| Line::unchecked(fact, why, remedy)).into();
    }
    let reached = server.reach(scrub);
    let now_s = Clock::start().now().0.div_euclid(1000);
    let ahead_s = reached.as_ref().ok().and_then(|reached| reached.date_s).map(|date_s| now_s.saturating_sub(date_s));
    vec![answer(&reached), clock(ahead_s)]
}

fn answer(reached: &Result<Reached, CallFault>) -> Line {
    let fact = "tenancy";
    let reached = match reached {
        Ok(reached) => reached,
        Err(fault) => return Line::failure(fact, fault_words(fault), "mend what is named here"),
    };
    let what = format!("it answers {}: {}", reached.status, reached.words);
    match (reached.status, reached.code.as_deref()) {
        (404, Some("ENV_NOT_FOUND")) => Line::failure(fact, what, "look at `env_id` here, and at tenancy's list"),
        (404, Some(_)) => Line::ok(fact, "it answers (there was no check-in)".to_owned()),
        (401 | 403, _) => Line::failure(fact, what, "let tenancy know this box: its identity on the mesh, or `env_id`"),
        (500.., _) => Line::failure(fact, what, "look at tenancy's log"),
        (200.., _) => Line::warning(
            fact,
            format!("{what}, which is not how tenancy answers"),
            "look at `tenancy.host` and `tenancy.port`",
        ),
        _ => Line::failure(fact, what, "look at `tenancy.host` and `tenancy.port`"),
    }
}

/// What became of a call.
pub fn fault_words(fault: &CallFault) -> String {
    match fault {
        CallFault::Unreachable { detail, never_sent: _ } | CallFault::Nonsense { detail } => detail.to_string(),
        CallFault::Status { status, detail, .. } => format!("it answers {status}: {detail}"),
    }
}

/// By how many seconds this clock is ahead of tenancy's (none: tenancy tells no time).
fn clock(ahead_s: Option<i64>) -> Line {
    let Some(ahead_s) = ahead_s else {
        return Line::unchecked("clock", "tenancy tells no time", "look with `timedatectl`");
    };
    let off = ahead_s.saturating_abs();
    let way = if ahead_s < 0 { "behind" } else { "ahead of" };
    let what = format!("{off} s {way} tenancy's");
    let remedy = "sudo timedatectl set-ntp true: grants are only good within their minutes";
    if off >= CLOCK_OFF_S.1 {
        Line::failure("clock", what, remedy)
    } else if off >= CLOCK_OFF_S.0 {
        Line::warning("clock", what, remedy)
    } else {
        Line::ok("clock", what)
    }
}

/// Asks OpenBao how it is; false if it can answer nothing else.
pub fn openbao(server: &OpenBao, block: Block, scrub: &dyn Scrub) -> (Line, bool) {
    if let Some((why, remedy)) = block {
        return (Line::unchecked("openbao", why, remedy), false);
    }
    let line = health(&server.health(scrub));
    let works = line.remedy.is_none();
    (line, works)
}

fn health(health: &Result<Health, CallFault>) -> Line {
    match health {
        Err(fault) => Line::failure("openbao", fault_words(fault), "mend what is named here"),
        Ok(Health { initialized: false, .. }) => {
            Line::failure("openbao", "it is not initialised".to_owned(), "initialise it: `bao operator init`")
        }
        Ok(Health { sealed: true, .. }) => {
            Line::failure("openbao", "it is sealed".to_owned(), "unseal it: `bao operator unseal`")
        }
        Ok(Health { standby, .. }) => {
            let role = if *standby { "standby, which answers reads" } else { "active" };
            Line::ok("openbao", format!("unsealed, {role}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::Level;
    use super::*;
    use crate::drivers::vault::Vault;
    use crate::effects::Scrubbed;

    fn scrubbed(text: &str) -> Scrubbed {
        Scrubbed::new(&Vault::default(), text)
    }

    #[test]
    fn a_name_without_address_is_a_failure() {
        assert_eq!(name("d", "h", Ok(vec![Ipv4Addr::LOCALHOST.into()])).level, Level::Ok);
        assert_eq!(name("d", "h", Ok(vec![])).level, Level::Failure);
        let none = name("d", "h", Err("no such name".to_owned()));
        assert!(none.level == Level::Failure && none.what.contains("no such name"));
        assert_eq!(way("tenancy", &Way::Name("127.0.0.1".to_owned(), 1)), (None, None), "an address has no line");
        let (line, block) = way("tenancy", &Way::Name("nobody.invalid".to_owned(), 1));
        assert!(block.is_some() && line.unwrap().level == Level::Failure);
    }

    #[test]
    fn listeners_are_read_from_the_kernels_table() {
        let table = "  sl  local_address rem_address   st\n\
             \x20  0: 0100007F:3C53 00000000:0000 0A 00000000:00000000\n\
             \x20  1: 00000000:3C53 00000000:0000 0A 00000000:00000000\n\
             \x20  2: 00000000:3C54 00000000:0000 0A 00000000:00000000\n\
             \x20  3: 0100007F:3C53 0100007F:9999 01 00000000:00000000\n";
        let found = listeners(table, 15443, false);
        assert_eq!(found, ["127.0.0.1:15443".parse().unwrap(), "0.0.0.0:15443".parse().unwrap()]);
        let six =
            "   0: 00000000000000000000000001000000:3C53 x:0 0A\n   1: 0000000000000000FFFF00000100007F:3C53 x:0 0A\n";
        let found = listeners(six, 15443, true);
        assert_eq!(found, ["[::1]:15443".parse().unwrap(), "[::ffff:127.0.0.1]:15443".parse().unwrap()]);
        for nonsense in ["", "a b c d", "0: :: x 0A", "0: 01:3C53 x 0A", "0: zz00007F:3C53 x 0A"] {
            assert!(listeners(nonsense, 15443, true).is_empty() && listeners(nonsense, 15443, false).is_empty());
        }
    }

    #[test]
    fn a_proxy_that_others_can_reach_is_a_warning() {
        let at = HostPort { host: "127.0.0.1".to_owned(), port: 15443 };
        let judged = |all: &[&str]| {
            let all: Vec<SocketAddr> = all.iter().map(|at| at.parse().unwrap()).collect();
            listener("p", &at, Ok(()), &all).level
        };
        assert_eq!(judged(&["127.0.0.1:15443", "[::1]:15443", "[::ffff:127.0.0.1]:15443"]), Level::Ok);
        assert_eq!(judged(&["127.0.0.1:15443", "0.0.0.0:15443"]), Level::Warning);
        assert_eq!(judged(&["[::]:15443"]), Level::Warning);
        assert_eq!(listener("p", &at, Err("refused".to_owned()), &[]).level, Level::Failure);
    }

    #[test]
    fn tenancy_is_known_by_its_own_no() {
        let judged = |status, code: Option<&str>| {
            let reached = Reached { status, code: code.map(str::to_owned), words: scrubbed("w"), date_s: None };
            answer(&Ok(reached)).level
        };
        assert_eq!(judged(404, Some("BUNDLE_NOT_FOUND")), Level::Ok);
        assert_eq!(judged(404, Some("ENV_NOT_FOUND")), Level::Failure);
        assert_eq!(judged(404, None), Level::Warning, "some other server");
        assert_eq!(judged(200, None), Level::Warning);
        assert_eq!([401, 403, 500, 503].map(|status| judged(status, Some("X"))), [Level::Failure; 4]);
        let away = CallFault::Unreachable { detail: scrubbed("connection refused"), never_sent: true };
        assert_eq!(answer(&Err(away)).level, Level::Failure);
    }

    #[test]
    fn a_clock_is_told_from_half_a_minute_on_and_fails_from_five() {
        for sign in [1, -1] {
            let level = |seconds: i64| clock(Some(sign * seconds)).level;
            assert_eq!([0, 29].map(level), [Level::Ok; 2]);
            assert_eq!([30, 299].map(level), [Level::Warning; 2]);
            assert_eq!([300, i64::MAX].map(level), [Level::Failure; 2]);
        }
        assert!(clock(Some(-40)).what.contains("behind") && clock(Some(40)).what.contains("ahead"));
        assert_eq!(clock(None).level, Level::Warning);
    }

    #[test]
    fn openbao_has_to_be_initialised_and_unsealed_and_may_be_standby() {
        let judged = |initialized, sealed, standby| health(&Ok(Health { initialized, sealed, standby })).level;
        assert_eq!(judged(true, false, false), Level::Ok);
        assert_eq!(judged(true, false, true), Level::Ok);
        assert_eq!(judged(true, true, true), Level::Failure);
        assert_eq!(judged(false, true, true), Level::Failure);
        let status = CallFault::Status { status: 502, detail: scrubbed("bad gateway"), retry_after_s: None };
        assert_eq!(health(&Err(status)).level, Level::Failure);
    }
}
