//! The content sha is what anyone can compute with coreutils in an unpacked bundle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use monky_deployd::effects::ValueUse;
use monky_deployd::effects::bundle::Bundle;
use monky_deployd::effects::manifest::Scope;

/// As the README tells people to do it.
const BY_HAND: &str = "find . -type f | sed 's|^\\./||' | sort | tr '\\n' '\\0' | xargs -0 sha256sum | sha256sum";

fn unpacked(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

fn packed(files: &BTreeMap<String, Vec<u8>>) -> Bundle {
    use base64::Engine as _;
    let content = |bytes: &Vec<u8>| match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::json!(text),
        Err(_) => serde_json::json!({"base64": base64::engine::general_purpose::STANDARD.encode(bytes)}),
    };
    let files: BTreeMap<&String, serde_json::Value> =
        files.iter().map(|(path, bytes)| (path, content(bytes))).collect();
    Bundle::read(serde_json::json!({ "files": files }).to_string().as_bytes()).unwrap()
}

fn by_hand(folder: &Path) -> String {
    let out = Command::new("sh").args(["-c", BY_HAND]).env("LC_ALL", "C").current_dir(folder).output().unwrap();
    String::from_utf8(out.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

fn hello() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bundles/hello")
}

#[test]
fn the_example_bundle_has_the_sha_that_coreutils_print() {
    let sha = packed(&unpacked(&hello())).content_sha();
    assert_eq!(sha.as_str(), "40cd9d126819d2187eb40b08bdcceed55313fb7bd4a204ea7bb14b80a55bae74");
    assert_eq!(sha.as_str(), by_hand(&hello()));
}

#[test]
fn the_order_is_that_of_bytes_and_content_may_be_anything() {
    let files: BTreeMap<String, Vec<u8>> = [
        ("a b", &b"blank"[..]),
        ("a-b", b""),
        ("a/b", b"x\ny"),
        ("a.b", b"\r\n"),
        ("B", b"upper"),
        ("b", b"\0\xff"),
        ("é", b"not ascii"),
        ("z'\"$`", b"quotes"),
        ("a0", b"0"),
        (".hidden", b"h"),
        ("deep/er/and/deeper", b"d"),
    ]
    .map(|(path, content)| (path.to_owned(), content.to_vec()))
    // `B` and `b` are one to some file systems, so a bundle has only one of them.
    .into_iter()
    .filter(|(path, _)| path != "B")
    .collect();
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in &files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    assert_eq!(packed(&files).content_sha().as_str(), by_hand(folder.path()));
}

#[test]
fn the_example_bundle_keeps_every_rule() {
    let bundle = packed(&unpacked(&hello()));
    let facts = bundle.facts(None, &Scope { kv_mount: "monky", env_id: "env-example-01" }).unwrap();
    assert_eq!(facts.meta.env_id, "env-example-01");
    assert_eq!(facts.compose, Ok(()));
    let manifest = facts.manifest.unwrap();
    assert_eq!(manifest.entries.last().unwrap().usage, ValueUse::RegistryAuth);
    assert_eq!(bundle.template().unwrap().unwrap().unresolved(&manifest), Vec::<String>::new());
    assert_eq!(facts.template.unwrap().unwrap(), ["GREETING", "DB_PASSWORD"]);
}
