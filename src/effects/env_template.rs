//! `env.template` and the `.env` that is made of it.
//!
//! Invariant: whatever the values are, the `.env` has exactly the template's keys, and Compose reads exactly the
//! values that were meant: each is written as `KEY="…"` with the one way of escaping that Compose undoes exactly.

use std::collections::BTreeSet;

use zeroize::Zeroizing;

use super::failure::{Code, Refusal};
use super::manifest::{Manifest, variable_name};

/// The lines of a `.env` before their secrets are filled in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvTemplate {
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    key: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(String),
}

/// Why no `.env` could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// These variables have no value.
    #[error("no value for {}", .0.join(", "))]
    Unresolved(Vec<String>),
    /// This variable's value holds a NUL, which no environment can carry.
    #[error("the value of {0} holds a NUL")]
    Nul(String),
}

impl EnvTemplate {
    /// Reads an `env.template`. Lines end with LF or CR LF.
    ///
    /// # Errors
    /// `BUNDLE_INVALID` with the number of the line.
    pub fn parse(bytes: &[u8]) -> Result<EnvTemplate, Refusal> {
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let line = bytes.iter().take(e.valid_up_to()).filter(|b| **b == b'\n').count() + 1;
            refused(line, "is not UTF-8")
        })?;
        let mut keys = BTreeSet::new();
        let mut lines = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                return Err(refused(number, "is neither KEY=VALUE nor a comment"));
            };
            variable_name(key).map_err(|e| refused(number, &format!("has the key {e}")))?;
            if !keys.insert(key) {
                return Err(refused(number, &format!("has the key {key} for the second time")));
            }
            if value.contains('\0') {
                return Err(refused(number, "holds a NUL"));
            }
            let parts = parts(unquoted(value)).map_err(|e| refused(number, &e))?;
            lines.push(Line { key: key.to_owned(), parts });
        }
        Ok(EnvTemplate { lines })
    }

    /// What stands for a bundle without an `env.template`: each variable under its own name.
    pub fn of_variables<'v>(variables: impl IntoIterator<Item = &'v str>) -> EnvTemplate {
        let line = |name: &str| Line { key: name.to_owned(), parts: vec![Part::Variable(name.to_owned())] };
        EnvTemplate { lines: variables.into_iter().map(line).collect() }
    }

    /// The variables that it uses, in order, each once.
    pub fn variables(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        self.uses().filter(|name| seen.insert(*name)).map(str::to_owned).collect()
    }

    /// The variables that it uses and no entry of the manifest provides.
    pub fn unresolved(&self, manifest: &Manifest) -> Vec<String> {
        let provided: BTreeSet<&str> = manifest.variables().collect();
        self.variables().into_iter().filter(|name| !provided.contains(name.as_str())).collect()
    }

    /// The `.env`, with the values that `lookup` gives.
    ///
    /// # Errors
    /// Names the variables that have no value, or one that no environment can carry; never a value.
    pub fn render(
        &self,
        mut lookup: impl FnMut(&str) -> Option<Zeroizing<String>>,
    ) -> Result<Zeroizing<String>, RenderError> {
        let mut values = std::collections::BTreeMap::new();
        let mut missing = Vec::new();
        for name in self.variables() {
            match lookup(&name) {
                Some(value) if value.contains('\0') => return Err(RenderError::Nul(name)),
                Some(value) => drop(values.insert(name, value)),
                None => missing.push(name),
            }
        }
        if !missing.is_empty() {
            return Err(RenderError::Unresolved(missing));
        }
        let text = |part: &Part| match part {
            Part::Text(text) => text.len(),
            Part::Variable(name) => values.get(name).map_or(0, |value| value.len()),
        };
        // Room for everything at once (escaping at most doubles): growing would leave copies in freed memory.
        let room = self.lines.iter().map(|l| l.key.len() + 4 + 2 * l.parts.iter().map(text).sum::<usize>()).sum();
        let mut out = Zeroizing::new(String::with_capacity(room));
        for Line { key, parts } in &self.lines {
            out.push_str(key);
            out.push_str("=\"");
            for part in parts {
                match part {
                    Part::Text(text) => escape(text, &mut out),
                    Part::Variable(name) => {
                        if let Some(value) = values.get(name) {
                            escape(value, &mut out);
                        }
                    }
                }
            }
            out.push_str("\"\n");
        }
        Ok(out)
    }

    /// The values that its variables had when `env` was rendered from it, by variable, as far as they can be told apart:
    /// for whoever has to take them out of a text. What is not a variable's is left out.
    pub fn values_in(&self, env: &str) -> Vec<(String, Zeroizing<String>)> {
        let mut found = Vec::new();
        for Line { key, parts } in &self.lines {
            let Some(value) = env.lines().find_map(|line| line.strip_prefix(key.as_str())?.strip_prefix("=\"")) else {
                continue;
            };
            let value = unescape(value.strip_suffix('"').unwrap_or(value));
            let mut rest: &str = &value;
            for (at, part) in parts.iter().enumerate() {
                match part {
                    Part::Text(text) => rest = rest.strip_prefix(text.as_str()).unwrap_or(rest),
                    Part::Variable(name) => {
                        let end = match parts.get(at + 1) {
                            None => rest.len(),
                            // The last variable of a line may hold the text that follows it, too.
                            Some(Part::Text(text)) if at + 2 == parts.len() => {
                                rest.rfind(text.as_str()).unwrap_or(rest.len())
                            }
                            Some(Part::Text(text)) => rest.find(text.as_str()).unwrap_or(rest.len()),
                            // Two variables without a text between them: together they are as secret as each.
                            Some(Part::Variable(_)) => rest.len(),
                        };
                        let (value, after) = rest.split_at(end);
                        if !value.is_empty() {
                            found.push((name.clone(), Zeroizing::new(value.to_owned())));
                        }
                        rest = after;
                    }
                }
            }
        }
        found
    }

    fn uses(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().flat_map(|line| &line.parts).filter_map(|part| match part {
            Part::Variable(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }
}

fn refused(line: usize, what: &str) -> Refusal {
    Refusal::new(Code::BundleInvalid, format!("env.template: line {line} {what}"))
}

/// A value less one pair of enclosing quotes.
fn unquoted(value: &str) -> &str {
    let within = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(value)
}

/// `$$` is a `$`, `${VAR}` is a variable, any other `$` is itself.
fn parts(value: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            text.push('$');
            rest = after;
        } else if let Some(after) = after.strip_prefix('{') {
            let (name, after) =
                after.split_once('}').ok_or("has a `${` without `}`; write `$${` for the characters")?;
            variable_name(name).map_err(|e| format!("uses a variable: {e}; write `$${{` for the characters"))?;
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Variable(name.to_owned()));
            rest = after;
        } else {
            text.push('$');
            rest = after;
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

/// A value as Compose undoes it exactly between double quotes, in `.env` and through `env_file:`.
fn escape(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '$' => out.push_str("$$"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            _ => out.push(c),
        }
    }
}

/// The way back from [`escape`].
fn unescape(text: &str) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(text.len()));
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let next = if matches!(c, '\\' | '$') { chars.next() } else { None };
        match (c, next) {
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some('r')) => out.push('\r'),
            ('\\' | '$', Some(escaped)) => out.push(escaped),
            (plain, _) => out.push(plain),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::ValueUse;
    use crate::effects::manifest::Entry;

    fn render(template: &str, value: &str) -> String {
        let template = EnvTemplate::parse(template.as_bytes()).unwrap();
        template.render(|_| Some(Zeroizing::new(value.to_owned()))).unwrap().to_string()
    }

    fn refusal(template: &str) -> Refusal {
        let refusal = EnvTemplate::parse(template.as_bytes()).unwrap_err();
        assert_eq!(refusal.code, Code::BundleInvalid);
        refusal
    }

    #[test]
    fn comments_and_blank_lines_are_left_out() {
        assert_eq!(render("# a\n\n  # b=${c}\n \t\nA=1\r\nB=\n", ""), "A=\"1\"\nB=\"\"\n");
        assert_eq!(render("", ""), "");
    }

    #[test]
    fn a_value_is_literal_less_one_pair_of_quotes() {
        for (line, out) in [
            ("A=\"x\"", "x"),
            ("A='x'", "x"),
            ("A=\"'x'\"", "'x'"),
            ("A=\"x'", "\\\"x'"),
            ("A=\"", "\\\""),
            ("A=\"\"", ""),
            ("A= x # y ", " x # y "),
            ("A=b=c", "b=c"),
            ("A=\"x\" ", "\\\"x\\\" "),
            ("A=a\\n", "a\\\\n"),
        ] {
            assert_eq!(render(line, ""), format!("A=\"{out}\"\n"), "{line}");
        }
    }

    #[test]
    fn a_dollar_is_a_variable_a_dollar_or_itself() {
        for (value, out) in [
            ("${V}", "s"),
            ("a${V}b${V}", "asbs"),
            ("$${V}", "$${V}"),
            ("$$${V}", "$$s"),
            ("$", "$$"),
            ("$$", "$$"),
            ("$$$", "$$$$"),
            ("$V", "$$V"),
            ("a$ b", "a$$ b"),
            ("'${V}'", "s"),
        ] {
            assert_eq!(render(&format!("A={value}"), "s"), format!("A=\"{out}\"\n"), "{value}");
        }
    }

    #[test]
    fn a_secret_is_escaped_and_never_read_as_a_template() {
        assert_eq!(render("A=${V}", "a\\\"$\n\r${V}'#"), "A=\"a\\\\\\\"$$\\n\\r$${V}'#\"\n");
    }

    #[test]
    fn a_malformed_line_is_refused_by_number() {
        for line in [
            "A",
            "=x",
            "A B=x",
            " A=x",
            "A =x",
            "export A=x",
            "1=x",
            "COMPOSE_FILE=x",
            "DOCKER_HOST=x",
            "OK=y",
            "A=${",
            "A=${}",
            "A=${V",
            "A=${V:-x}",
            "A=${ V}",
            "A=${COMPOSE_X}",
            "A=\0",
        ] {
            assert!(refusal(&format!("OK=1\n#\n{line}\n")).detail.contains("line 3"), "{line}");
        }
        assert!(EnvTemplate::parse(b"A=1\nB=\xff\n").unwrap_err().detail.contains("line 2"));
    }

    #[test]
    fn variables_are_named_once_in_order_and_all_that_are_missing() {
        let template = EnvTemplate::parse(b"A=${Z}${Y}\nB=${Z}${X}\n").unwrap();
        assert_eq!(template.variables(), ["Z", "Y", "X"]);
        let entry = |usage| Entry { usage, path: String::new(), key: String::new(), version: None };
        let manifest = Manifest { entries: vec![entry(ValueUse::Env("Y".into())), entry(ValueUse::RegistryAuth)] };
        assert_eq!(template.unresolved(&manifest), ["Z", "X"]);
        let none = template.render(|name| (name == "Y").then(|| Zeroizing::new(String::new())));
        assert_eq!(none.unwrap_err(), RenderError::Unresolved(vec!["Z".into(), "X".into()]));
    }

    #[test]
    fn without_a_template_each_variable_keeps_its_name() {
        let template = EnvTemplate::of_variables(["A", "B"]);
        let env = template.render(|name| Some(Zeroizing::new(format!("{name}$")))).unwrap();
        assert_eq!(*env, "A=\"A$$\"\nB=\"B$$\"\n");
    }

    #[test]
    fn a_value_with_a_nul_is_refused_without_being_told() {
        let error = EnvTemplate::of_variables(["A"]).render(|_| Some(Zeroizing::new("hid\0den".into()))).unwrap_err();
        assert_eq!(error, RenderError::Nul("A".into()));
    }

    #[test]
    fn the_env_is_written_without_growing() {
        let template = EnvTemplate::parse(b"A=$$${V}$${V}${V}x\nB=y\n").unwrap();
        let env = template.render(|_| Some(Zeroizing::new("$\\\n\"".repeat(100)))).unwrap();
        assert!(env.len() <= env.capacity());
        let room = 1 + 4 + 2 * ("$".len() + 400 + "${V}".len() + 400 + 1) + 1 + 4 + 2;
        assert!(env.capacity() <= room, "it grew to {}", env.capacity());
    }

    #[test]
    fn the_values_of_variables_are_found_again_in_what_was_rendered() {
        let template = "PLAIN=info\nA=${X}\nURL=db://u:${X}@h/${Y}?z\nTWO=${X}${Y}\n";
        let value = "a\"b$c\\d\ne@h/f";
        let template = EnvTemplate::parse(template.as_bytes()).unwrap();
        let env =
            template.render(|name| Some(Zeroizing::new(if name == "X" { value } else { "why" }.to_owned()))).unwrap();
        let found: Vec<(String, String)> =
            template.values_in(&env).into_iter().map(|(n, v)| (n, v.to_string())).collect();
        assert!(
            found.contains(&("X".to_owned(), value.to_owned()))
                && found.contains(&("X".to_owned(), format!("{value}why")))
        );
        assert!(found.iter().all(|(_, value)| value != "info"));
    }
}
