//! The documents say what the code says: tables, diagrams, commands and links.
//!
//! Invariant: whatever a table in the README lists is compared with the one table in the code that it was made from.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use monky_deployd::cli::graph;
use monky_deployd::config::keys::{Absent, KEYS};
use monky_deployd::effects::failure::{Class, Code};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// Every document for people: the Markdown files at the top and in these folders.
fn documents() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = ["", "ansible", "ansible/roles/monky_deployd", "docs", "tests/stack"]
        .iter()
        .flat_map(|folder| fs::read_dir(root().join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    found.sort();
    assert!(found.len() >= 6, "{found:?}");
    found
}

/// What stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
fn between(text: &str, name: &str) -> String {
    let (begin, end) = (format!("<!-- {name}:begin -->\n"), format!("<!-- {name}:end -->"));
    let (_, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    let (inside, _) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end}"));
    inside.to_owned()
}

/// The rows of the README's table of this name, less its head.
fn rows(name: &str) -> Vec<Vec<String>> {
    let table = between(&read("README.md"), name);
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    table.lines().skip(2).map(cells).collect()
}

#[test]
fn the_failure_table_has_every_code_with_its_exit_status_and_remedy() {
    let written: Vec<[String; 3]> = rows("codes")
        .iter()
        .map(|row| {
            assert_eq!(row.len(), 4, "{row:?}");
            [row[0].clone(), row[1].clone(), row[3].clone()]
        })
        .collect();
    let known: Vec<[String; 3]> = Code::ALL
        .iter()
        .map(|code| {
            let exit = match code.class() {
                Class::Refused | Class::Failed => "1",
                Class::Temporary => "75",
            };
            [format!("`{code}`"), exit.to_owned(), code.remedy().to_owned()]
        })
        .collect();
    assert_eq!(written, known);
}

#[test]
fn the_configuration_table_has_every_key_with_its_default() {
    let written: Vec<[String; 2]> = rows("keys").iter().map(|row| [row[0].clone(), row[1].clone()]).collect();
    let known: Vec<[String; 2]> = KEYS
        .iter()
        .map(|key| {
            let default = match key.default {
                Absent::Required => "required".to_owned(),
                Absent::Unset => "none".to_owned(),
                Absent::Is("") => "empty".to_owned(),
                Absent::Is(value) => format!("`{value}`"),
                Absent::ThenEnvId(start) => format!("`{start}<env_id>`"),
            };
            [format!("`{}`", key.name), default]
        })
        .collect();
    assert_eq!(written, known);
}

#[test]
#[cfg(feature = "sandbox")]
fn the_command_table_has_every_command_in_the_order_of_the_help() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_monky-deployd")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let known: Vec<String> = commands
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .map(|command| format!("`{command}`"))
        .collect();
    assert!(known.contains(&"`tick`".to_owned()), "{help}");
    let written: Vec<String> = rows("commands").iter().map(|row| row[0].clone()).collect();
    assert_eq!(written, known);
}

#[test]
fn the_embedded_diagrams_are_those_of_the_edge_table() {
    let diagram = format!("```mermaid\n{}```\n", graph::mermaid());
    for name in ["README.md", "ARCHITECTURE.md"] {
        assert_eq!(between(&read(name), "graph"), diagram, "{name}: put the output of `monky-deployd graph` there");
    }
}

/// Where a document's links lead: `[text](target)`, code aside.
fn links(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // What is between backticks is code.
        let prose: String = line.split('`').step_by(2).collect();
        found.extend(prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
    }
    found
}

/// The name that a heading can be linked by.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut followed = 0;
    for document in documents() {
        for link in links(&fs::read_to_string(&document).unwrap()) {
            if link.contains("://") {
                continue;
            }
            let (file, fragment) = link.split_once('#').map_or((link.as_str(), None), |(file, at)| (file, Some(at)));
            let target = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", document.display());
            if let Some(fragment) = fragment {
                let text = fs::read_to_string(&target).unwrap();
                let there = text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == fragment);
                assert!(there, "{}: {link} names no heading", document.display());
            }
            followed += 1;
        }
    }
    assert!(followed > 20, "only {followed} links were seen");
}

/// The first part of each absolute path in a text.
fn roots(text: &str) -> BTreeSet<String> {
    let boundary = |c: char| c.is_whitespace() || "`\"'(=[".contains(c);
    let mut found = BTreeSet::new();
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        if c == '/' && boundary(before) {
            let rest = text.get(at + 1..).unwrap();
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_.{".contains(*c)).collect();
            // A lone `/`, and `/*`, are no paths.
            if !name.is_empty() {
                found.insert(name);
            }
        }
        before = c;
    }
    found
}

#[test]
fn documents_name_only_paths_that_every_box_has() {
    // `v1` and `www`: of a URL, and inside a container. `opt`: where OpenZiti's packages live.
    const ALLOWED: &[&str] = &["dev", "etc", "opt", "run", "tmp", "usr", "v1", "var", "www"];
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let strange: Vec<String> = roots(&text).into_iter().filter(|root| !ALLOWED.contains(&root.as_str())).collect();
        assert!(strange.is_empty(), "{}: absolute paths below {strange:?}", document.display());
    }
    assert!(!roots("see `/home/x/y`").is_empty());
}

#[test]
fn every_code_that_the_other_documents_name_exists() {
    let words = |text: &str| -> BTreeSet<String> {
        let spans = text.split('`').skip(1).step_by(2);
        let like = |word: &&str| {
            word.contains('_') && word.chars().all(|c| c.is_ascii_uppercase() || c == '_') && !word.ends_with('_')
        };
        spans.filter(like).map(str::to_owned).collect()
    };
    // Variables, and codes of tenancy's own.
    const OTHERS: &[&str] = &["PATH", "DB_PASSWORD", "DATABASE_URL", "COMPOSE_INTERACTIVE_NO_CLI"];
    for name in ["docs/operations.md", "docs/bundle.md", "CHANGELOG.md"] {
        let text = read(name);
        let unknown: Vec<String> = words(&text)
            .into_iter()
            .filter(|word| !OTHERS.contains(&word.as_str()) && Code::ALL.iter().all(|code| code.as_str() != word))
            .collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
    }
}
