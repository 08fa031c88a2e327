//! `docs/tenancy.openapi.yaml` as a judge of real traffic.
//!
//! Invariant: a request is held against the schemas more strictly than a control plane would: a field that the document
//! does not name is an error, since it is a typing error or missing documentation.
//!
//! Include it with `#[path = "common/openapi.rs"] mod openapi;`.

use serde_json::{Value, json};

/// The document.
pub fn document() -> Value {
    let text = include_str!("../../docs/tenancy.openapi.yaml");
    serde_yaml::from_str(text).expect("the document is YAML")
}

/// Judges a request of the agent. `path` may have a query; `body` is null without a body.
pub fn validate_request(method: &str, path: &str, body: &Value) -> Result<(), String> {
    let document = document();
    let operation = operation(&document, method, path)?;
    match operation.pointer("/requestBody/content/application~1json/schema") {
        Some(schema) => validate(&closed(&document), schema, body).map_err(|why| format!("{method} {path}: {why}")),
        None if body.is_null() => Ok(()),
        None => Err(format!("{method} {path} takes no body")),
    }
}

/// Judges an answer of tenancy.
pub fn validate_answer(method: &str, path: &str, status: u16, body: &Value) -> Result<(), String> {
    let document = document();
    let operation = operation(&document, method, path)?;
    let response = operation.pointer(&format!("/responses/{status}"));
    let response = response.ok_or_else(|| format!("{method} {path}: no status {status} in the document"))?;
    let schema = resolved(&document, response).pointer("/content/application~1json/schema");
    let schema = schema.ok_or_else(|| format!("{method} {path}: no schema for status {status}"))?;
    validate(&document, schema, body).map_err(|why| format!("{method} {path}, {status}: {why}"))
}

/// Judges a value by a schema, whose references are looked up in `document`.
pub fn validate(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "allOf": [schema],
        "components": document["components"],
    });
    let validator = jsonschema::draft202012::options()
        .should_validate_formats(true)
        .build(&whole)
        .map_err(|error| format!("the document's schema is no schema: {error}"))?;
    let faults: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{} at `{}`", error, error.instance_path)).collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

// The document with every object of the components closed against fields that it does not name.
fn closed(document: &Value) -> Value {
    fn close(schema: &mut Value) {
        let Some(object) = schema.as_object_mut() else { return };
        // `then` and `else` name some properties of an object that is described elsewhere.
        for (name, part) in object.iter_mut() {
            match name.as_str() {
                "properties" => part.as_object_mut().into_iter().flat_map(|p| p.values_mut()).for_each(close),
                "items" => close(part),
                _ => {}
            }
        }
        if object.contains_key("properties") {
            object.entry("additionalProperties").or_insert(json!(false));
        }
    }
    let mut document = document.clone();
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        schemas.values_mut().for_each(close);
    }
    document
}

fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let reference = value.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#'));
    reference.and_then(|pointer| document.pointer(pointer)).unwrap_or(value)
}

fn operation<'a>(document: &'a Value, method: &str, path: &str) -> Result<&'a Value, String> {
    let path = path.split('?').next().unwrap_or_default();
    let paths = document["paths"].as_object().ok_or("the document has no paths")?;
    for (template, item) in paths {
        let (wanted, given): (Vec<&str>, Vec<&str>) = (template.split('/').collect(), path.split('/').collect());
        let same = wanted.len() == given.len()
            && wanted.iter().zip(&given).all(|(wanted, given)| wanted.starts_with('{') || wanted == given);
        if !same {
            continue;
        }
        for parameter in item["parameters"].as_array().into_iter().flatten() {
            let parameter = resolved(document, parameter);
            let name = format!("{{{}}}", parameter["name"].as_str().unwrap_or_default());
            let value = wanted.iter().zip(&given).find(|(wanted, _)| **wanted == name).map(|(_, given)| json!(given));
            let value = value.ok_or_else(|| format!("{template} has no {name}"))?;
            validate(document, &parameter["schema"], &value)
                .map_err(|why| format!("{method} {path}: {name}: {why}"))?;
        }
        let operation = item.get(method.to_lowercase());
        return operation.ok_or_else(|| format!("{method} is not for {template}"));
    }
    Err(format!("{path} is no path of the document"))
}

#[test]
fn the_judge_knows_good_from_bad() {
    validate_request("POST", "/v1/envs/e4/leases", &json!({"reason": "apply"})).unwrap();
    validate_request("POST", "/v1/envs/E4/leases", &json!({"reason": "apply"})).unwrap_err();
    validate_request("POST", "/v1/envs/e4/leases", &json!({"reason": "apply", "resaon": 1})).unwrap_err();
    validate_request("GET", "/v1/envs/e4/leases", &Value::Null).unwrap_err();
    validate_request("POST", "/v1/envs/e4/lease", &Value::Null).unwrap_err();
    validate_answer("POST", "/v1/envs/e4/checkin", 200, &json!({"desired_sha": null, "later": 1})).unwrap();
    validate_answer("POST", "/v1/envs/e4/checkin", 200, &json!({})).unwrap_err();
    validate_answer("POST", "/v1/envs/e4/checkin", 418, &json!({})).unwrap_err();
}
