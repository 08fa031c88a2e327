//! Every key of the configuration, one row each.
//!
//! Invariant: this table is the only list of keys; reading, nearest-key search, `config show` and the example file
//! are all made from it, so none of them can forget one.

use std::net::IpAddr;

use super::yaml::printable;
use crate::effects::policy::Stance;

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `[a-z0-9][a-z0-9-]*`.
    EnvId,
    /// `[a-z0-9][a-z0-9_-]*`.
    Project,
    /// Any printable text, also none.
    Text,
    /// `[A-Za-z0-9._-]+`.
    Name,
    /// Such names, joined by `/`.
    Mount,
    /// An absolute path.
    Path,
    /// A list of absolute paths without `.` and `..`.
    Paths,
    /// An absolute path, or a name to be looked up in `PATH`.
    Program,
    /// A host name or address, without scheme, port or path.
    Host,
    /// `host:port`; an IPv6 address in brackets.
    HostPort,
    /// `host` or `host:port`.
    Registry,
    /// `https://host:port` or `http://host:port`.
    Url,
    /// A whole number from 1 to this.
    Number(u64),
    /// Whole seconds, from 1 to this.
    Seconds(u64),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// One of these words, in upper or lower case.
    AnyCase(&'static [&'static str]),
}

/// What holds when a key is not given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Absent {
    /// It must be given.
    Required,
    /// Nothing.
    Unset,
    /// This value.
    Is(&'static str),
    /// This, followed by `env_id`.
    ThenEnvId(&'static str),
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The keys from the root, joined by a dot.
    pub name: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// What holds without it.
    pub default: Absent,
    /// A value for the example file, where the default is none to show.
    pub example: &'static str,
    /// What it is for.
    pub doc: &'static str,
}

const fn row(name: &'static str, kind: Kind, default: Absent, example: &'static str, doc: &'static str) -> Key {
    Key { name, kind, default, example, doc }
}

const DAY: u64 = 86_400;

/// All of them, in the order of the example file; keys of one section stand together.
#[rustfmt::skip]
pub const KEYS: &[Key] = {
    use Absent::{Is, Required, ThenEnvId, Unset};
    use Kind::*;
    &[
        row("env_id", EnvId, Required, "plant-7", "The environment of this box: [a-z0-9][a-z0-9-]*."),
        row("site", Text, Is(""), "Hall 3, rack 2", "Where the box is, for people; told with each check-in."),
        row("transport", OneOf(&["system", "proxy", "sdk"]), Is("system"), "", "How tenancy and OpenBao are dialled. system: plain TCP, the box's tunneler intercepts. proxy: TCP to a local listener, Host and TLS name unchanged. sdk: in-process OpenZiti."),
        row("proxy.tenancy", HostPort, Unset, "127.0.0.1:8441", "The local listener for tenancy; required with transport: proxy."),
        row("proxy.bao", HostPort, Unset, "127.0.0.1:8442", "The local listener for OpenBao; without it OpenBao is dialled directly."),
        row("sdk.identity_file", Path, Unset, "/etc/monky-deployd/identity.json", "The OpenZiti identity; required with transport: sdk."),
        row("sdk.service", Text, Unset, "tenancy", "The OpenZiti service of tenancy; required with transport: sdk."),
        row("sdk.library", Path, Unset, "/usr/lib/libziti.so", "The OpenZiti C library; required with transport: sdk."),
        row("tenancy.scheme", OneOf(&["https", "http"]), Is("https"), "", "https, or http where nothing can listen in; in prod only to a loopback host."),
        row("tenancy.host", Host, Required, "tenancy.example", "The control plane's host name, without scheme or port."),
        row("tenancy.port", Number(65_535), Is("443"), "", "Its port."),
        row("tenancy.timeout_s", Seconds(DAY), Is("15"), "", "How long a call may take."),
        row("tenancy.ca_file", Path, Unset, "/etc/monky-deployd/tenancy-ca.pem", "CA certificates (PEM) that replace the system's roots; read anew each tick."),
        row("bao.addr", Url, Required, "https://bao.example:8200", "OpenBao, as https://host:port."),
        row("bao.auth_mount", Mount, Is("jwt"), "", "Where its JWT login is mounted."),
        row("bao.role", Name, ThenEnvId("env-"), "", "The role to log in as."),
        row("bao.kv_mount", Mount, Is("monky"), "", "The KV v2 mount that all secrets must be below."),
        row("bao.namespace", Mount, Unset, "plants", "Its namespace."),
        row("bao.ca_file", Path, Unset, "/etc/monky-deployd/bao-ca.pem", "CA certificates (PEM) that replace the system's roots; read anew each tick."),
        row("bao.renew_below_s", Seconds(365 * DAY), Is("600"), "", "A token with less life than this is renewed, or replaced by a lease."),
        row("bao.timeout_s", Seconds(DAY), Is("15"), "", "How long a call may take."),
        row("state_dir", Path, Is("/var/lib/monky-deployd"), "", "Where state, secrets and releases are kept."),
        row("compose_project", Project, ThenEnvId("monky-"), "", "The Compose project: [a-z0-9][a-z0-9_-]*."),
        row("docker_bin", Program, Is("docker"), "", "The docker command: a name, or an absolute path."),
        row("registry_host", Registry, Is("harbor.tikali.net"), "", "The registry of a pull credential that names none: host or host:port."),
        row("healthy_timeout_s", Seconds(DAY), Is("300"), "", "How long `up` and the wait for health may take together."),
        row("pull_timeout_s", Seconds(DAY), Is("600"), "", "How long a pull may take."),
        row("stable_s", Seconds(DAY), Is("5"), "", "How long a service without a healthcheck must keep running to count as healthy."),
        row("on_unhealthy", OneOf(&["keep", "rollback"]), Is("keep"), "", "What to do with a release that does not become healthy. keep: leave it to be looked at. rollback: bring the last good release back up."),
        row("keep_releases", Number(1000), Is("3"), "", "How many releases stay on disk."),
        row("prod", Flag, Unset, "true", "In prod, plain http to a non-loopback host and laptop_mode are refused. Not given: true when a part of env_id between dashes is `prod`."),
        row("laptop_mode", Flag, Is("false"), "", "Being offline is normal for this box and ends quietly."),
        row("policy.privileged", OneOf(Stance::WORDS), Is("warn"), "", "What compose files may ask of this box: allow, warn or refuse. This one: `privileged`, also of a hook. Whatever a variable decides counts as asked for."),
        row("policy.host_namespaces", OneOf(Stance::WORDS), Is("warn"), "", "network_mode, pid, ipc, uts, userns_mode or cgroup `host`, the network named host, or `container:` in place of `service:`."),
        row("policy.devices", OneOf(Stance::WORDS), Is("warn"), "", "devices, device_cgroup_rules, gpus, deploy.resources.reservations.devices."),
        row("policy.capabilities", OneOf(Stance::WORDS), Is("warn"), "", "cap_add beyond what Docker gives to every container."),
        row("policy.security_opt", OneOf(Stance::WORDS), Is("warn"), "", "security_opt that changes how a container is confined, such as seccomp:unconfined."),
        row("policy.runtime", OneOf(Stance::WORDS), Is("allow"), "", "A runtime other than runc."),
        row("policy.docker_socket", OneOf(Stance::WORDS), Is("warn"), "", "The socket of Docker or of another engine, a folder that holds it or the state directory, use_api_socket."),
        row("policy.binds", OneOf(Stance::WORDS), Is("allow"), "", "Files of the box outside of bind_roots: binds, volumes that are binds, configs, secrets, env_file. Files of the bundle are fine read-only."),
        row("policy.bind_roots", Paths, Unset, "/srv\n/mnt/data", "The folders of the box that may be mounted, with all that is in them, whatever binds says. Paths are judged by their letters: let no container write where it could leave a link."),
        row("policy.images", OneOf(Stance::WORDS), Is("allow"), "", "An image without a digest (NAME@sha256:…)."),
        row("log_level", AnyCase(&["TRACE", "DEBUG", "INFO", "WARN", "ERROR"]), Is("INFO"), "", "TRACE, DEBUG, INFO, WARN or ERROR."),
    ]
};

/// The row of a key.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The keys below a section, e.g. those of `tenancy`; none if there is no such section.
pub fn below(section: &str) -> Vec<&'static str> {
    KEYS.iter()
        .filter_map(|key| key.name.split_once('.').filter(|(s, _)| *s == section).map(|(_, rest)| rest))
        .collect()
}

/// The valid key or section that looks most like `name`; a key with the same last word counts as near, whatever the
/// section.
pub fn nearest(name: &str) -> &'static str {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let whole = |valid: &str| strsim::normalized_damerau_levenshtein(valid, name);
    let keys = KEYS.iter().map(|key| {
        let by_last = 0.99 * strsim::normalized_damerau_levenshtein(&last(key.name), &last(name));
        (key.name, whole(key.name).max(by_last))
    });
    let sections = KEYS.iter().filter_map(|key| key.name.split_once('.')).map(|(section, _)| (section, whole(section)));
    let best = keys.chain(sections).max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map_or("env_id", |(valid, _)| valid)
}

impl Kind {
    /// Whether it takes a list; [`Kind::check`] is of one item then.
    pub const fn is_list(self) -> bool {
        matches!(self, Kind::Paths)
    }

    /// The value in its one normal form, or what it must be instead. `plain`: it stood without quotes.
    pub fn check(self, text: &str, plain: bool) -> Result<String, String> {
        let text_if = |ok: bool, must: &str| if ok { Ok(text.to_owned()) } else { Err(must.to_owned()) };
        match self {
            Kind::EnvId => text_if(word(text, "-"), "must be [a-z0-9][a-z0-9-]*"),
            Kind::Project => text_if(word(text, "_-"), "must be [a-z0-9][a-z0-9_-]*"),
            Kind::Text => text_if(text.chars().all(printable), "must be printable text"),
            Kind::Name => text_if(segment(text), "must be of letters, digits, `.`, `_` and `-`"),
            Kind::Mount => text_if(
                text.split('/').all(segment),
                "must be names of [A-Za-z0-9._-], joined by `/`, without one at either end",
            ),
            Kind::Path => text_if(absolute(text), "must be an absolute path"),
            Kind::Paths => {
                let straight = absolute(text) && !text.split('/').any(|part| matches!(part, "." | ".."));
                let trimmed = text.trim_end_matches('/');
                let path = if trimmed.is_empty() { "/" } else { trimmed };
                text_if(straight, "must be an absolute path without `.` and `..`").map(|_| path.to_owned())
            }
            Kind::Program => {
                text_if(absolute(text) || segment(text), "must be an absolute path, or the name of a program in PATH")
            }
            Kind::Host => {
                host(text).ok_or_else(|| "must be a host name or address, without scheme, port or path".to_owned())
            }
            Kind::HostPort => host_port(text)
                .map(|(host, port)| join(&host, port))
                .ok_or_else(|| "must be host:port (an IPv6 address in brackets)".to_owned()),
            Kind::Registry => host(text)
                .or_else(|| host_port(text).map(|(host, port)| join(&host, port)))
                .ok_or_else(|| "must be host or host:port, without scheme or path".to_owned()),
            Kind::Url => url(text)
                .map(|(scheme, host, port)| format!("{scheme}://{}", join(&host, port)))
                .ok_or_else(|| "must be https://host:port, with the port and without a path".to_owned()),
            Kind::Number(max) => {
                number(text, plain, max).ok_or_else(|| format!("must be a whole number from 1 to {max}"))
            }
            Kind::Seconds(max) => {
                number(text, plain, max).ok_or_else(|| format!("must be whole seconds from 1 to {max}, without a unit"))
            }
            Kind::Flag => text_if(plain && matches!(text, "true" | "false"), "must be true or false"),
            Kind::OneOf(words) => text_if(words.contains(&text), &one_of(words, text)),
            Kind::AnyCase(words) => {
                let upper = text.to_ascii_uppercase();
                if words.contains(&upper.as_str()) { Ok(upper) } else { Err(one_of(words, &upper)) }
            }
        }
    }
}

fn word(text: &str, also: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(fits) && text.chars().all(|c| fits(c) || also.contains(c))
}

fn segment(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !matches!(text, "" | "." | "..") && text.chars().all(fits)
}

fn absolute(text: &str) -> bool {
    text.starts_with('/') && text.chars().all(printable)
}

fn one_of(words: &[&str], text: &str) -> String {
    let near = words.iter().map(|word| (strsim::jaro_winkler(word, text), word)).max_by(|a, b| a.0.total_cmp(&b.0));
    let near = near.filter(|(like, _)| *like > 0.8).map(|(_, word)| format!("; did you mean `{word}`?"));
    format!("must be one of {}{}", words.join(", "), near.unwrap_or_default())
}

fn number(text: &str, plain: bool, max: u64) -> Option<String> {
    let digits = plain && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    text.parse::<u64>().ok().filter(|n| digits && (1..=max).contains(n)).map(|n| n.to_string())
}

/// A host: a name as it is, an address in its normal form and an IPv6 one without brackets.
fn host(text: &str) -> Option<String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    if let Ok(address) = bare.unwrap_or(text).parse::<IpAddr>() {
        return (bare.is_none() || address.is_ipv6()).then(|| address.to_string());
    }
    let label = |l: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        (1..=63).contains(&l.len()) && l.chars().all(fits) && !l.starts_with('-') && !l.ends_with('-')
    };
    (text.len() <= 253 && text.split('.').all(label)).then(|| text.to_owned())
}

/// The parts of `host:port`.
pub(super) fn host_port(text: &str) -> Option<(String, u16)> {
    let (name, port) = text.rsplit_once(':')?;
    if name.contains(':') && !name.starts_with('[') {
        return None;
    }
    let port = number(port, true, 65_535)?.parse().ok()?;
    Some((host(name)?, port))
}

/// The parts of `https://host:port`.
pub(super) fn url(text: &str) -> Option<(&str, String, u16)> {
    let (scheme, rest) = text.split_once("://")?;
    let (host, port) = host_port(rest)?;
    matches!(scheme, "https" | "http").then_some((scheme, host, port))
}

/// `host:port`, an IPv6 address in brackets.
pub(super) fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Whether a host is this box itself, by name or address.
pub fn loopback(host: &str) -> bool {
    let name = host.to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A value as YAML that reads back as itself. The items of a list stand on lines of their own in it.
pub(super) fn quoted(kind: Kind, text: &str) -> String {
    if kind.is_list() {
        let items: Vec<String> =
            text.split('\n').filter(|item| !item.is_empty()).map(|item| quoted(Kind::Path, item)).collect();
        return format!("[{}]", items.join(", "));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:@-".contains(c);
    let bare = matches!(kind, Kind::Number(_) | Kind::Seconds(_) | Kind::Flag)
        || text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
            && text.chars().all(plain)
            && !text.ends_with(':');
    let word = !matches!(text.to_ascii_lowercase().as_str(), "" | "~" | "null");
    if bare && word && !text.contains("::") { text.to_owned() } else { format!("{:?}", Json(text)) }
}

/// Text as a JSON string, which is also a YAML one.
struct Json<'a>(&'a str);

impl std::fmt::Debug for Json<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", serde_json::Value::from(self.0))
    }
}

/// A settings file: `lines` gives what stands for a key (by its row and last name), less its indentation; `head` opens a section,
/// and with an empty name closes the last one.
pub(super) fn sheet(mut lines: impl FnMut(&Key, &str) -> Vec<String>, mut head: impl FnMut(&str) -> String) -> String {
    let mut out = String::new();
    let mut section = "";
    for key in KEYS {
        let (here, last) = key.name.split_once('.').unwrap_or(("", key.name));
        let rows = lines(key, last);
        if !rows.is_empty() && here != section {
            section = here;
            out += &head(here);
        }
        for line in rows {
            out += if here.is_empty() { "" } else { "  " };
            out += &line;
            out.push('\n');
        }
    }
    out
}

/// The example file: every key with its meaning and default; those that need not be given stand behind a `#` without a
/// space after it.
pub fn example() -> String {
    let opening = "# Configuration of monky-deployd. Lines with a `#` right before the key show what holds without them,\n\
                   # or an example where that is nothing. Durations are whole seconds.\n";
    let section_required =
        |s: &str| KEYS.iter().any(|k| k.default == Absent::Required && k.name.split('.').next() == Some(s));
    let body = sheet(
        |key, last| {
            let (note, value) = match key.default {
                Absent::Required => ("Required.".to_owned(), key.example.to_owned()),
                Absent::Unset => ("Default: none.".to_owned(), key.example.to_owned()),
                Absent::Is("") => ("Default: empty.".to_owned(), key.example.to_owned()),
                Absent::Is(value) => (format!("Default: {value}."), value.to_owned()),
                Absent::ThenEnvId(start) => (format!("Default: {start}<env_id>."), format!("{start}plant-7")),
            };
            let mark = if key.default == Absent::Required { "" } else { "#" };
            let words = format!("{} {note}", key.doc);
            let mut rows = wrap(&words, 110);
            rows.push(format!("{mark}{last}: {}", quoted(key.kind, &value)));
            rows
        },
        |section| match section {
            "" => "\n".to_owned(),
            _ => format!("\n{}{section}:\n", if section_required(section) { "" } else { "#" }),
        },
    );
    format!("{opening}\n{body}")
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut rows = vec!["#".to_owned()];
    for word in text.split(' ') {
        match rows.last_mut() {
            Some(row) if row.len() + 1 + word.len() <= width => *row += &format!(" {word}"),
            _ => rows.push(format!("# {word}")),
        }
    }
    rows
}
