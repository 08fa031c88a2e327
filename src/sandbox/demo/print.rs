//! How the demo is written.
//!
//! Invariant: no line is wider than [`WIDTH`], and without a terminal no byte of colour is written.

use std::io::{self, IsTerminal as _, Write};

use super::Tally;
use super::set::{Facts, Seen, Set, Ticked};
use super::story::{Claim, FIRST};
use crate::effects::state::TokenSource;
use crate::effects::{GrantName, Op, Sha, TokenName, ValueUse};
use crate::fsm::retry::LEASES_AN_HOUR;
use crate::fsm::{Level, StageName};

/// The widest line (characters).
pub const WIDTH: usize = 100;
/// Where text begins.
const INDENT: usize = 3;
/// Where what stands behind a label begins.
const HANG: usize = 13;

/// Whether there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// None.
    Plain,
    /// Those of a terminal.
    Ansi,
}

impl Paint {
    /// Colours if stdout is a terminal that has them and nobody said no (`NO_COLOR`).
    pub fn of_stdout() -> Paint {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|it| it.is_empty() || it == "dumb");
        if io::stdout().is_terminal() && !unwanted && !dumb { Paint::Ansi } else { Paint::Plain }
    }

    fn on(self, code: &str, text: &str) -> String {
        match self {
            Paint::Plain => text.to_owned(),
            Paint::Ansi => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

const BOLD: &str = "1";
const DIM: &str = "2";
const GREEN: &str = "32";
const RED: &str = "1;31";
const CYAN: &str = "36";

/// Writes the demo.
pub struct Printer<'a> {
    out: &'a mut dyn Write,
    paint: Paint,
}

impl<'a> Printer<'a> {
    /// Onto `out`.
    pub fn new(out: &'a mut dyn Write, paint: Paint) -> Printer<'a> {
        Printer { out, paint }
    }

    /// What this is, and the configuration.
    pub(super) fn opening(&mut self, set: &Set) -> io::Result<()> {
        let title = format!("monky-deployd {}: what a box does", env!("CARGO_PKG_VERSION"));
        writeln!(self.out, "{}\n", self.paint.on(BOLD, &title))?;
        let dir = set.dir().display().to_string();
        self.words(&format!(
            "Tenancy (the control plane) and OpenBao are stand-ins in this process, at {} and {}; `docker` is this \
             executable under another name. The machine, its drivers, the HTTP, the child processes and the files are \
             the real ones. Each ✓ compares a claim with what the stand-ins logged and what is on the disk; one that \
             does not hold is told, and the exit status is 1.",
            set.tenancy.url(),
            set.bao.addr()
        ))?;
        self.words(&format!("The configuration of the box {FIRST} ($DIR is {dir}, removed at the end):"))?;
        writeln!(self.out)?;
        for line in set.configuration(FIRST).lines() {
            writeln!(self.out, "     {}", self.paint.on(CYAN, &line.replace(&dir, "$DIR")))?;
        }
        self.out.flush()
    }

    /// The heading of a step.
    pub(super) fn heading(&mut self, number: usize, title: &str) -> io::Result<()> {
        writeln!(self.out, "\n{}", self.paint.on(BOLD, &format!("{number}. {title}")))
    }

    /// An empty line.
    pub(super) fn gap(&mut self) -> io::Result<()> {
        writeln!(self.out)
    }

    /// Plain text.
    pub(super) fn words(&mut self, text: &str) -> io::Result<()> {
        for line in wrap(text, WIDTH - INDENT) {
            writeln!(self.out, "{:INDENT$}{line}", "")?;
        }
        self.out.flush()
    }

    fn row(&mut self, label: &str, text: &str) -> io::Result<()> {
        for (at, line) in wrap(text, WIDTH - HANG).iter().enumerate() {
            let label = if at == 0 { label } else { "" };
            let label = self.paint.on(DIM, &format!("{label:<width$}", width = HANG - INDENT));
            writeln!(self.out, "{:INDENT$}{label}{line}", "")?;
        }
        Ok(())
    }

    /// What was seen.
    pub(super) fn seen(&mut self, env_id: &str, seen: &Seen) -> io::Result<()> {
        writeln!(self.out)?;
        if let Some(tick) = &seen.tick {
            self.tick(tick)?;
            let requests = format!(
                "{} to tenancy, {} to OpenBao, {} calls of docker",
                seen.tenancy.len(),
                seen.bao.len(),
                seen.docker.len()
            );
            self.row("requests", &requests)?;
        }
        self.row(env_id, &standing(&seen.before, &seen.after))
    }

    fn tick(&mut self, tick: &Ticked) -> io::Result<()> {
        let passed: Vec<&str> = tick.passed.iter().map(|stage| stage.as_str()).collect();
        self.row("stages", &passed.join(" → "))?;
        for (stage, effects) in by_stage(&tick.effects) {
            self.row(stage.as_str(), &effects.join(" · "))?;
        }
        for note in tick.notes.iter().filter(|note| note.level != Level::Info) {
            self.row("journal", &note.text)?;
        }
        let done = &tick.done;
        let sha = done.sha.as_ref().map(|sha| format!(" {}", sha.short())).unwrap_or_default();
        let code = done.code.map(|code| format!(" {code}")).unwrap_or_default();
        let took = tick.took.as_secs_f64();
        let outcome = format!("{}{sha}{code}, exit status {}, after {took:.1} s", done.word, done.exit.status());
        self.row("outcome", &outcome)
    }

    /// What was claimed, and whether it holds.
    pub(super) fn claims(&mut self, claims: &[Claim]) -> io::Result<()> {
        for (at, claim) in claims.iter().enumerate() {
            let label = if at == 0 { "checked" } else { "" };
            let label = self.paint.on(DIM, &format!("{label:<width$}", width = HANG - INDENT));
            let (mark, text) = match &claim.differs {
                None => (self.paint.on(GREEN, "✓"), claim.says.clone()),
                Some(differs) => (self.paint.on(RED, "✗"), format!("{}: DIFFERS: {differs}", claim.says)),
            };
            for (at, line) in wrap(&text, WIDTH - HANG - 2).iter().enumerate() {
                if at == 0 {
                    writeln!(self.out, "{:INDENT$}{label}{mark} {line}", "")?;
                } else {
                    writeln!(self.out, "{:width$}{line}", "", width = HANG + 2)?;
                }
            }
        }
        self.out.flush()
    }

    /// The sum, and what to look at next.
    pub(super) fn closing(&mut self, tally: Tally) -> io::Result<()> {
        let Tally { held, broken } = tally;
        let sum = match broken {
            0 => self.paint.on(GREEN, &format!("All {held} claims hold.")),
            _ => self.paint.on(RED, &format!("{broken} of {} claims do not hold (✗ above).", held + broken)),
        };
        writeln!(self.out, "\n{sum}\n")?;
        writeln!(self.out, "Read on:      README.md")?;
        writeln!(self.out, "The machine:  `monky-deployd graph` draws it; src/fsm/edges.rs is its table.")?;
        self.out.flush()
    }
}

/// Lines of at most `width` characters, broken between words, or within one that is longer.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        if length > 0 && length + 1 + letters.len() > width {
            lines.push(std::mem::take(&mut line));
            length = 0;
        }
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        for (at, piece) in letters.chunks(width).enumerate() {
            if at > 0 {
                lines.push(std::mem::take(&mut line));
                length = 0;
            }
            line.extend(piece);
            length += piece.len();
        }
    }
    if length > 0 {
        lines.push(line);
    }
    lines
}

/// The effects, summed up by visit to a stage; what is asked for again counts on.
fn by_stage(effects: &[(StageName, Op)]) -> Vec<(StageName, Vec<String>)> {
    let mut visits: Vec<(StageName, Vec<(String, usize)>)> = Vec::new();
    for (stage, op) in effects {
        let words = summary(op);
        match visits.last_mut() {
            Some((at, seen)) if at == stage => match seen.iter_mut().find(|(known, _)| *known == words) {
                Some((_, times)) => *times += 1,
                None => seen.push((words, 1)),
            },
            _ => visits.push((*stage, vec![(words, 1)])),
        }
    }
    let told = |(words, times): (String, usize)| if times > 1 { format!("{words} ×{times}") } else { words };
    visits.into_iter().map(|(stage, seen)| (stage, seen.into_iter().map(told).collect())).collect()
}

/// An effect by its name, with what matters of its data.
fn summary(op: &Op) -> String {
    let with = match op {
        Op::FetchBundle(it) => it.sha.short().to_owned(),
        Op::LookupToken(it) => match it.token {
            TokenName::Saved => "saved token".to_owned(),
            TokenName::Candidate => "new token".to_owned(),
        },
        Op::SaveGrant(_) => "leased".to_owned(),
        Op::DropGrant(it) => grant(it.grant).to_owned(),
        Op::Login(it) => format!("{} grant, role {}", grant(it.grant), it.role),
        Op::SaveToken(it) => source(it.source).to_owned(),
        Op::ReadSecret(it) => {
            let uses = it.wanted.iter().map(|wanted| match &wanted.usage {
                ValueUse::Env(name) => name.as_str(),
                ValueUse::RegistryAuth => "registry credential",
            });
            format!("{} as {}", it.path, uses.collect::<Vec<_>>().join(", "))
        }
        Op::WriteRelease(it) => {
            let registry = it.registry.as_ref().map(|(host, user)| format!(", credential of {user}@{host}"));
            format!(".env with {}{}", it.variables.join(", "), registry.unwrap_or_default())
        }
        Op::Promote(it) => it.sha.short().to_owned(),
        Op::Up(it) => it.sha.short().to_owned(),
        Op::WaitUntil(it) => it.reason.clone(),
        Op::ReadLogs(it) => it.containers.iter().map(|(service, _)| service.as_str()).collect::<Vec<_>>().join(", "),
        Op::SaveReport(it) => {
            let code = it.report.code.map(|code| format!(" {code}")).unwrap_or_default();
            let outcome = match it.report.result {
                crate::effects::report::Outcome::Applied => "applied",
                crate::effects::report::Outcome::Failed => "failed",
            };
            format!("{outcome}{code}")
        }
        Op::PruneReleases(it) => format!("keep {}", it.keep.len()),
        Op::RemoveImages(it) => it.ids.len().to_string(),
        Op::Checkin(_)
        | Op::ProbeDocker(_)
        | Op::StageBundle(_)
        | Op::ReadModel(_)
        | Op::RenewToken(_)
        | Op::AskLease(_)
        | Op::RevokeToken(_)
        | Op::CheckCompose(_)
        | Op::Pull(_)
        | Op::Inspect(_)
        | Op::SaveState(_)
        | Op::SendReport(_)
        | Op::DropReport(_) => String::new(),
    };
    let name = op.name().as_str();
    if with.is_empty() { name.to_owned() } else { format!("{name} ({with})") }
}

const fn grant(grant: GrantName) -> &'static str {
    match grant {
        GrantName::Bootstrap => "bootstrap",
        GrantName::Lease => "leased",
    }
}

const fn source(source: TokenSource) -> &'static str {
    match source {
        TokenSource::Bootstrap => "bootstrap",
        TokenSource::Lease => "lease",
    }
}

/// How the box stands, and what it was where that changed.
fn standing(before: &Facts, after: &Facts) -> String {
    let moved = |name: &str, old: String, new: String| {
        if old == new { format!("{name} {new}") } else { format!("{name} {old} → {new}") }
    };
    let applied = |facts: &Facts| match &facts.applied {
        None => "nothing".to_owned(),
        Some((sha, None)) => sha.short().to_owned(),
        Some((sha, Some(generation))) => format!("{} (generation {generation})", sha.short()),
    };
    let token = |facts: &Facts| match facts.token {
        None if facts.bootstrap_waits => "none (a bootstrap grant waits)".to_owned(),
        None => "none".to_owned(),
        Some(from) => source(from).to_owned(),
    };
    let mut parts = vec![
        moved("applied", applied(before), applied(after)),
        moved("token", token(before), token(after)),
        format!("{} of {LEASES_AN_HOUR}", moved("leases", before.leases.to_string(), after.leases.to_string())),
    ];
    for (service, now) in &after.containers {
        let how = match before.containers.get(service) {
            None => "new",
            Some(old) if old.id != now.id => "recreated",
            Some(_) => "untouched",
        };
        parts.push(format!("{service} {} ({how})", now.state));
    }
    let mut quarantined = after.quarantined.iter().map(Sha::short).peekable();
    if quarantined.peek().is_some() {
        parts.push(format!("quarantined {}", quarantined.collect::<Vec<_>>().join(", ")));
    }
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_within_words_that_are_too_long() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("äöü 1234567890", 4), ["äöü", "1234", "5678", "90"]);
        assert_eq!(wrap("12345 6", 4), ["1234", "5 6"]);
        assert_eq!(wrap("", 4), Vec::<String>::new());
    }

    #[test]
    fn a_claim_that_does_not_hold_is_told_with_what_differs() {
        let claims = [
            Claim { says: "one lease".to_owned(), differs: Some("wanted 1, found 2".to_owned()) },
            Claim { says: "no child".to_owned(), differs: None },
        ];
        let mut out = Vec::new();
        Printer::new(&mut out, Paint::Plain).claims(&claims).unwrap();
        let told = String::from_utf8(out).unwrap();
        assert!(told.contains("✗ one lease: DIFFERS: wanted 1, found 2"), "{told}");
        assert!(told.contains("✓ no child"), "{told}");
    }
}
