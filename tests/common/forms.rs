//! The forms in which a secret could be found in a text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Every form in which a secret could be found in a text.
pub fn forms_of(secret: &str) -> Vec<String> {
    let escaped = |text: &str| {
        let quoted = serde_json::to_string(text).unwrap();
        quoted[1..quoted.len() - 1].to_owned()
    };
    let percent: String = secret
        .bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { (byte as char).to_string() } else { format!("%{byte:02X}") })
        .collect();
    let lower = secret
        .bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { (byte as char).to_string() } else { format!("%{byte:02x}") })
        .collect();
    let base64 = STANDARD.encode(secret);
    // The end of the base64 text depends on what follows.
    let base64 = base64.trim_end_matches('=');
    vec![
        secret.to_owned(),
        base64[..base64.len() - 1].to_owned(),
        base64[..base64.len() - 1].replace('+', "-").replace('/', "_"),
        escaped(secret),
        escaped(&escaped(secret)),
        percent,
        lower,
        format!("{secret:?}"),
    ]
}
