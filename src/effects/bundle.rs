//! stub
/// tmp
pub fn template_gaps(_t: &[String], _m: &super::manifest::Manifest) -> Vec<String> {
    vec![]
}
