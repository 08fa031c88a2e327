//! Every committed input of the fuzz targets, as an ordinary test: those that once found a bug, and those that reach
//! the most code.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;

use targets::TARGETS;

fn corpora() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

#[test]
fn every_committed_input_passes_its_target() {
    for (name, target) in TARGETS {
        let mut inputs: Vec<_> =
            fs::read_dir(corpora().join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        inputs.sort();
        assert!(inputs.len() >= 10, "the corpus of {name} has {} inputs", inputs.len());
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            let ended = std::panic::catch_unwind(|| target(&bytes));
            assert!(ended.is_ok(), "{name} fails on {}", input.display());
        }
    }
}

#[test]
fn every_target_is_built_and_has_a_corpus_and_nothing_else_has() {
    let mut names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    let listed = |folder: &str| -> Vec<String> {
        let mut found: Vec<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(".rs", ""))
            .collect();
        found.sort();
        found
    };
    assert_eq!(listed("fuzz_targets"), names);
    assert_eq!(listed("corpus"), names);
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml")).unwrap();
    assert_eq!(manifest.matches("[[bin]]").count(), names.len());
}
