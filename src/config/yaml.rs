//! The YAML subset of the configuration: one document of maps, one-line scalars and lists of those, walked as events with
//! line numbers.
//!
//! Invariant: whatever the bytes, the outcome is a flat list of entries and a list of problems, each with its line.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::{MAX_PROBLEMS, Problem};

/// How deep maps may nest before reading stops; the deepest key of the table is two deep.
const MAX_DEPTH: usize = 8;

/// After so many keys the file is something else than a configuration.
const MAX_ENTRIES: usize = 500;

/// What a path holds.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    /// One value: its text, and whether it stood without quotes.
    Scalar(String, bool),
    /// A map; its entries follow with longer paths.
    Map,
    /// A list.
    List(Vec<Item>),
}

/// One item of a list.
#[derive(Debug, PartialEq)]
pub(super) struct Item {
    /// Where it stands, from 1.
    pub line: usize,
    /// Its text, and whether it stood without quotes; none: it is a list or a map.
    pub scalar: Option<(String, bool)>,
}

/// One key of the file.
#[derive(Debug)]
pub(super) struct Entry {
    /// The keys from the root, joined by dots.
    pub path: String,
    /// Where the key stands, from 1.
    pub line: usize,
    /// How many maps it is in, less the root.
    pub depth: usize,
    /// What it holds.
    pub value: Value,
}

/// A map that is being read.
#[derive(Default)]
struct Frame {
    prefix: String,
    seen: BTreeMap<String, usize>,
    pending: Option<(String, usize)>,
}

/// Reads a document. After a problem that leaves the rest without meaning, reading stops.
pub(super) fn read(text: &str, problems: &mut Vec<Problem>) -> Vec<Entry> {
    let mut entries = Vec::new();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let before = problems.len();
    for (index, line) in text.lines().enumerate() {
        let what = match line.chars().find(|c| !printable(*c)) {
            Some('\t') => "a tab: indent with spaces",
            Some(_) => "a control character",
            None if line.starts_with('%') => "a YAML directive: not part of the subset that is read here",
            None => continue,
        };
        problems.push(Problem::at(index + 1, "", what));
    }
    if problems.len() == before
        && let Err(problem) = walk(text, &mut entries, problems)
    {
        problems.push(problem);
    }
    entries
}

/// Whether a character can be part of a value: everything but control characters, line breaks and byte order marks.
pub(super) fn printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}')
}

fn walk(text: &str, entries: &mut Vec<Entry>, problems: &mut Vec<Problem>) -> Result<(), Problem> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut documents = 0;
    let mut in_list = 0usize;
    let mut listed = 0usize;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|e| Problem::at(e.marker().line(), "", format!("not YAML: {}", e.info())))?;
        let line = span.start.line();
        if problems.len() > MAX_PROBLEMS || entries.len() + listed > MAX_ENTRIES {
            return Err(Problem::at(line, "", "too much is wrong with this file to read on"));
        }
        if let Event::Scalar(_, _, anchor, tag) | Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) =
            &event
        {
            if *anchor != 0 {
                problems.push(Problem::at(line, "", "an anchor (`&…`): write the value out"));
            }
            if tag.is_some() {
                problems.push(Problem::at(line, "", "a tag (`!…`): the type follows from the key"));
            }
        }
        match event {
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return Err(Problem::at(line, "", "a second document (`---`): one file is one configuration"));
                }
            }
            Event::Alias(_) => return Err(Problem::at(line, "", "an alias (`*…`): write the value out")),
            Event::SequenceEnd => in_list = in_list.saturating_sub(1),
            Event::SequenceStart(..) | Event::MappingStart(..) if in_list >= MAX_DEPTH => {
                return Err(Problem::at(line, "", "nested too deep"));
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if in_list > 0 => {
                if in_list == 1 {
                    listed += 1;
                    item(entries, Item { line, scalar: None });
                }
                in_list += 1;
            }
            Event::MappingEnd if in_list > 0 => in_list -= 1,
            Event::Scalar(text, style, ..) if in_list == 1 => {
                if span.end.line() != line && !(style == ScalarStyle::Plain && text.is_empty()) {
                    let path = entries.last().map_or("", |entry| entry.path.as_str());
                    return Err(Problem::at(line, path, "a text of several lines: values are one line here"));
                }
                listed += 1;
                item(entries, Item { line, scalar: Some((text.into_owned(), style == ScalarStyle::Plain)) });
            }
            // Deeper down nothing has a meaning; only anchors, tags and aliases are looked for.
            _ if in_list > 0 => {}
            Event::SequenceStart(..) => {
                let (path, line) = value_of(&mut frames, line)?;
                let value = Value::List(Vec::new());
                entries.push(Entry { path, line, depth: frames.len().saturating_sub(1), value });
                in_list = 1;
            }
            Event::MappingStart(..) if frames.is_empty() => frames.push(Frame::default()),
            Event::MappingStart(..) => {
                let (path, line) = value_of(&mut frames, line)?;
                if frames.len() >= MAX_DEPTH {
                    return Err(Problem::at(line, &path, "nested too deep"));
                }
                entries.push(Entry {
                    path: path.clone(),
                    line,
                    depth: frames.len().saturating_sub(1),
                    value: Value::Map,
                });
                frames.push(Frame { prefix: format!("{path}."), ..Frame::default() });
            }
            Event::MappingEnd => drop(frames.pop()),
            Event::Scalar(text, style, ..) => {
                if span.end.line() != line && !(style == ScalarStyle::Plain && text.is_empty()) {
                    let key = frames.last().and_then(|frame| frame.pending.as_ref());
                    let (path, line) = key.map_or(("", line), |(path, line)| (path.as_str(), *line));
                    return Err(Problem::at(line, path, "a text of several lines: values are one line here"));
                }
                match frames.last_mut() {
                    Some(frame) if frame.pending.is_none() => {
                        let path = format!("{}{text}", frame.prefix);
                        if let Some(first) = frame.seen.insert(text.into_owned(), line) {
                            problems.push(Problem::at(line, &path, format!("given twice, first in line {first}")));
                        }
                        frame.pending = Some((path, line));
                    }
                    _ => {
                        let (path, line) = value_of(&mut frames, line)?;
                        let plain = style == ScalarStyle::Plain;
                        let value = Value::Scalar(text.into_owned(), plain);
                        entries.push(Entry { path, line, depth: frames.len().saturating_sub(1), value });
                    }
                }
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
    }
    Ok(())
}

/// One item more of the list that is being read, which is the last entry.
fn item(entries: &mut [Entry], item: Item) {
    if let Some(Entry { value: Value::List(items), .. }) = entries.last_mut() {
        items.push(item);
    }
}

/// The key that the value at hand belongs to.
fn value_of(frames: &mut [Frame], line: usize) -> Result<(String, usize), Problem> {
    match frames.last_mut() {
        None => Err(Problem::at(line, "", "the file must be a map of `key: value` lines")),
        Some(frame) => frame.pending.take().ok_or_else(|| Problem::at(line, "", "a key must be one word")),
    }
}
