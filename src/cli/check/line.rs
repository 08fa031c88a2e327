//! A line of the doctor: one fact, how it is, and what to do about it.
//!
//! Invariant: what is not fine has a remedy, and what is fine has none.

use serde::Serialize;

/// How a fact is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Fine.
    Ok,
    /// It works, or it is not known; somebody should look.
    Warning,
    /// A deploy fails, or would.
    Failure,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Its name: stable, for programs.
    pub fact: String,
    /// How it is.
    pub level: Level,
    /// In words.
    pub what: String,
    /// What to do; none if there is nothing to be done.
    pub remedy: Option<String>,
}

impl Line {
    /// It is fine.
    pub fn ok(fact: &str, what: String) -> Line {
        Line { fact: fact.to_owned(), level: Level::Ok, what, remedy: None }
    }

    /// It is not as it should be, and works.
    pub fn warning(fact: &str, what: String, remedy: &str) -> Line {
        Line { fact: fact.to_owned(), level: Level::Warning, what, remedy: Some(remedy.to_owned()) }
    }

    /// It does not work.
    pub fn failure(fact: &str, what: String, remedy: &str) -> Line {
        Line { level: Level::Failure, ..Line::warning(fact, what, remedy) }
    }

    /// It could not be looked at, because of something that has a line of its own.
    pub fn unchecked(fact: &str, why: &str, remedy: &str) -> Line {
        Line::warning(fact, format!("not checked: {why}"), remedy)
    }
}

/// Why something need not be asked, and what to do first; none: it may be asked.
pub type Block = Option<(&'static str, &'static str)>;

/// How many lines have this level.
pub fn count(lines: &[Line], level: Level) -> usize {
    lines.iter().filter(|line| line.level == level).count()
}

/// For a tired person: aligned, what is wrong in capitals, and at the end how many there are.
pub fn text(lines: &[Line], color: bool) -> String {
    let width = lines.iter().map(|line| line.fact.len()).max().unwrap_or_default();
    let mut out = String::new();
    for line in lines {
        let (word, paint) = match line.level {
            Level::Ok => ("ok     ", ""),
            Level::Warning => ("WARNING", "\x1b[33m"),
            Level::Failure => ("FAILURE", "\x1b[1;31m"),
        };
        let (on, off) = if color && !paint.is_empty() { (paint, "\x1b[0m") } else { ("", "") };
        out += &format!("{on}{word}{off}  {:width$}  {}\n", line.fact, line.what);
        if let Some(remedy) = &line.remedy {
            out += &format!("{:9}{:width$}  to do: {remedy}\n", "", "");
        }
    }
    let [fine, warnings, failures] = [Level::Ok, Level::Warning, Level::Failure].map(|level| count(lines, level));
    let verdict = if failures > 0 { "this box cannot deploy as it is" } else { "this box can deploy" };
    out + &format!("\n{verdict}: {} failed, {} to look at, {fine} fine\n", failures, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<Line> {
        vec![
            Line::ok("lock", "free".to_owned()),
            Line::unchecked("compose", "Docker does not answer", "mend `docker`"),
            Line::failure("docker", "no answer".to_owned(), "start it"),
        ]
    }

    #[test]
    fn what_is_wrong_stands_out_without_colour_and_has_its_remedy_below() {
        assert_eq!(
            text(&lines(), false),
            "ok       lock     free\n\
             WARNING  compose  not checked: Docker does not answer\n\
             \x20                 to do: mend `docker`\n\
             FAILURE  docker   no answer\n\
             \x20                 to do: start it\n\
             \n\
             this box cannot deploy as it is: 1 failed, 1 to look at, 1 fine\n"
        );
        assert!(text(&lines()[..2], false).ends_with("\nthis box can deploy: 0 failed, 1 to look at, 1 fine\n"));
    }

    #[test]
    fn colour_is_put_around_the_word_alone() {
        assert!(text(&lines(), true).contains("\x1b[1;31mFAILURE\x1b[0m  docker   no answer\n"));
        assert!(text(&lines(), true).starts_with("ok       lock"));
    }
}
