//! `graph`: the state machine, drawn from THE table.

use crate::fsm::{EDGES, StageName};

/// As a Mermaid state diagram.
pub fn mermaid() -> String {
    let mut lines = vec!["stateDiagram-v2".to_owned(), "    [*] --> Checkin".to_owned()];
    lines.extend(EDGES.iter().map(|edge| format!("    {:?} --> {:?}: {}", edge.from, edge.to, edge.when)));
    lines.push("    Done --> [*]\n".to_owned());
    lines.join("\n")
}

/// As a DOT digraph.
pub fn dot() -> String {
    let mut lines = vec!["digraph monky_deployd {".to_owned(), "    rankdir=LR;".to_owned()];
    lines.extend(StageName::ALL.iter().map(|stage| format!("    {stage} [label=\"{stage:?}\"];")));
    lines.extend(EDGES.iter().map(|edge| format!("    {} -> {} [label=\"{}\"];", edge.from, edge.to, edge.when)));
    lines.push("}\n".to_owned());
    lines.join("\n")
}
