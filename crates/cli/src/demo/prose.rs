//! Sentences for people.

/// The length of a line, which fits the narrowest usual terminal.
const WIDTH: usize = 80;

/// Breaks each paragraph into lines.
pub(super) fn wrap(text: &str) -> String {
    text.lines().map(wrap_paragraph).collect::<Vec<_>>().join("\n")
}

fn wrap_paragraph(text: &str) -> String {
    let (mut lines, mut used) = (String::new(), 0);
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if used > 0 && used + 1 + len > WIDTH {
            lines.push('\n');
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += len;
    }
    lines
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
