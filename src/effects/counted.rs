//! So many of a thing, as people say it.
//!
//! Invariant: one is never told in the plural.

/// `1 secret`, `2 secrets`, `0 secrets`: the number with its word, which is given in the singular.
pub fn counted(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_told_in_the_singular_and_all_else_in_the_plural() {
        assert_eq!([0, 1, 2, 11].map(|n| counted(n, "tick")), ["0 ticks", "1 tick", "2 ticks", "11 ticks"]);
    }
}
