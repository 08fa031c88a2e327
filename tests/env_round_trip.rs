//! Whatever a secret holds, a reader of `.env` gets exactly it back, and no key that the template does not have.

use std::collections::BTreeMap;

use monky_deployd::effects::bundle::BundlePath;
use monky_deployd::effects::env_template::EnvTemplate;
use proptest::prelude::*;
use zeroize::Zeroizing;

/// Reads the double-quoted form as Compose does (measured on 2.26.1 and 2.40.3): first the end of the value is found,
/// the first `"` that no backslash protects; then `\n`, `\r` and `\c` are undone; then `$$` (a lone `$` would be a
/// variable). Written apart from the writer, and strict: whatever it does not expect is an error.
fn read(env: &str) -> Result<BTreeMap<String, String>, String> {
    let mut rest = env;
    let mut values = BTreeMap::new();
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"").ok_or("no key")?;
        if !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("a key {key:?}"));
        }
        let mut end = None;
        let mut protected = false;
        for (at, c) in after.char_indices() {
            match c {
                _ if protected => protected = false,
                '\\' => protected = true,
                '"' => {
                    end = Some(at);
                    break;
                }
                '\n' | '\r' => return Err("a line break within quotes".to_owned()),
                _ => {}
            }
        }
        let end = end.ok_or("no end")?;
        let mut value = String::new();
        let mut chars = after[..end].chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some('n') => value.push('\n'),
                    Some('r') => value.push('\r'),
                    Some(c @ ('\\' | '"')) => value.push(c),
                    other => return Err(format!("an escape {other:?}")),
                },
                '$' if chars.next() == Some('$') => value.push('$'),
                '$' => return Err("a variable".to_owned()),
                c => value.push(c),
            }
        }
        if values.insert(key.to_owned(), value).is_some() {
            return Err(format!("the key {key} twice"));
        }
        rest = after[end..].strip_prefix("\"\n").ok_or("something after the value")?;
    }
    Ok(values)
}

/// Values with many of the characters that matter.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![r#"[\\"'$\n\r\t #={}a-nré%`!]{0,40}"#, r#"[^\x00]{0,40}"#, Just(String::new())]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_secret_comes_back_exactly(values in proptest::collection::btree_map("[A-Z_][A-Z0-9_]{3,8}", value(), 0..6)) {
        prop_assume!(!values.keys().any(|key| key.starts_with("COMPOSE_") || key.starts_with("DOCKER_")));
        let template = EnvTemplate::of_variables(values.keys().map(String::as_str));
        let env = template.render(|name| values.get(name).cloned().map(Zeroizing::new)).unwrap();
        prop_assert_eq!(read(&env).unwrap(), values);
    }

    #[test]
    fn a_template_puts_text_and_secrets_together(before in "[a-z$\\\\ \"#]{0,9}", secret in value(), after in "[a-z\\\\ #]{0,9}") {
        let template = format!("# c\nA='{}${{S}}{after}'\n", before.replace('$', "$$"));
        let env = EnvTemplate::parse(template.as_bytes()).unwrap();
        let env = env.render(|_| Some(Zeroizing::new(secret.clone()))).unwrap();
        let wanted = BTreeMap::from([("A".to_owned(), format!("{before}{secret}{after}"))]);
        prop_assert_eq!(read(&env).unwrap(), wanted);
    }

    #[test]
    fn no_template_makes_it_fail_or_gives_a_key_that_it_does_not_name(bytes in r#"([A-C]=|[ \t"'$\{}A-C\n\r#\\]){0,40}"#) {
        if let Ok(template) = EnvTemplate::parse(bytes.as_bytes()) {
            let env = template.render(|_| Some(Zeroizing::new("x\nD=\"".to_owned()))).unwrap();
            for key in read(&env).unwrap().keys() {
                prop_assert!(bytes.contains(&format!("{key}=")), "{}", key);
            }
        }
    }

    #[test]
    fn a_path_that_is_taken_stays_below_any_folder(path in r#"([a-c./\\ ]|\.\.|/|\n|é){0,12}"#) {
        if let Ok(path) = BundlePath::try_from(path.as_str()) {
            let mut depth = 0;
            for part in std::path::Path::new(path.as_str()).components() {
                prop_assert!(matches!(part, std::path::Component::Normal(_)), "{}", path);
                depth += 1;
            }
            prop_assert!(depth > 0 && path.parts().count() == depth);
        }
    }
}
