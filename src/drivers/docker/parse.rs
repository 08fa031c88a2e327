//! `docker inspect`'s JSON. To be replaced by `effects::containers::parse_inspect`.

use serde_json::Value;

use crate::effects::containers::{Container, ContainerState, RestartPolicy};
use crate::effects::{Scrub, Scrubbed};

/// Reads what `docker inspect` prints.
pub fn parse_inspect(json: &[u8], scrub: &dyn Scrub) -> Result<Vec<Container>, String> {
    let all: Vec<Value> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let text = |value: &Value, at: &str| value.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    let read = |value: &Value| {
        let state: ContainerState = serde_json::from_value(value.pointer("/State/Status").cloned().unwrap_or_default())
            .map_err(|e| e.to_string())?;
        let health = value.pointer("/State/Health/Status").cloned().and_then(|word| serde_json::from_value(word).ok());
        let number = |at: &str| value.pointer(at).and_then(Value::as_i64).unwrap_or_default();
        let policy = value.pointer("/HostConfig/RestartPolicy/Name").cloned().unwrap_or_default();
        Ok(Container {
            id: text(value, "/Id"),
            name: text(value, "/Name").trim_start_matches('/').to_owned(),
            service: text(value, "/Config/Labels/com.docker.compose.service"),
            image_id: text(value, "/Image"),
            state,
            health,
            exit_code: number("/State/ExitCode"),
            error: Scrubbed::new(scrub, &text(value, "/State/Error")),
            restart_count: number("/RestartCount").unsigned_abs(),
            restart_policy: serde_json::from_value(policy).unwrap_or(RestartPolicy::No),
            started_at: text(value, "/State/StartedAt"),
            started: None,
        })
    };
    all.iter().map(read).collect()
}
