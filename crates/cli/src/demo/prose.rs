//! Sentences for people.

use crate::text;

/// The length of a line, which fits the narrowest usual terminal.
const WIDTH: usize = 80;

/// Breaks each paragraph into lines.
pub(super) fn wrap(text: &str) -> String {
    text::wrap(text, WIDTH, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words_and_paragraphs_stay() {
        let full = format!("{}12345678\n\nend", "1234567 ".repeat(9));
        assert_eq!(wrap(&full), full, "80 columns");
        let longer = full.replace(" 12345678", " 12345678 9");
        assert_eq!(wrap(&longer), full.replace(" 12345678", " 12345678\n9"));
    }
}
