//! Texts that somebody else has chosen, such as the reason with which a peer closes a connection.

use std::fmt::{self, Write};

/// A text of which a stranger has chosen at least a part. It can be shown in a terminal or a log without care.
///
/// `Display` and `Debug` replace every character that is not printed as one visible sign of its own by its escape
/// sequence, such as `\u{1b}`, as [`char::escape_debug`] does. These are control characters, separators of lines,
/// spaces other than U+0020, characters that change the direction of writing or are invisible (category Cf), those
/// that belong to the sign before them (marks), private ones (Co) and unassigned ones (Cn). So the text is one line, it
/// commands no terminal, and it looks like what it is. They show [`Self::SHOWN_MAX`] characters at most; where some are
/// missing, the text ends in "...". `Debug` adds quotation marks, and escapes those in the text, so that it cannot
/// pretend to be the next field of a line.
///
/// The value keeps [`Self::KEPT_MAX`] bytes of the text at most. [`Self::unescaped`] returns them as they came; it is
/// for programs only.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StrangerText(Box<str>);

impl StrangerText {
    /// The largest number of characters that are shown. A reason with details has less than half as many, and they fill
    /// three lines of a terminal at most if it has 100 columns.
    pub const SHOWN_MAX: usize = 300;

    /// The largest number of bytes that are kept: more than the longest URL that RFC 9110 §4.1 recommends to support.
    pub const KEPT_MAX: usize = 8192;

    /// Takes a text, or the start of a long one.
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(Self::KEPT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self(text.get(..end).unwrap_or_default().into())
    }

    /// Takes bytes. Those that are no UTF-8 become U+FFFD.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let kept = bytes.get(..Self::KEPT_MAX).unwrap_or(bytes);
        Self::new(&String::from_utf8_lossy(kept))
    }

    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the text contains this one, for decisions.
    pub fn contains(&self, part: &str) -> bool {
        self.0.contains(part)
    }

    /// The text as the stranger has written it, without its end if it is long. Do not show it to a person, and do not
    /// put it into an error.
    pub fn unescaped(&self) -> &str {
        &self.0
    }

    /// Writes at most [`Self::SHOWN_MAX`] characters, and no part of an escape sequence.
    fn write(&self, f: &mut fmt::Formatter<'_>, escaped: impl Fn(char) -> bool) -> fmt::Result {
        const MORE: &str = "...";
        let len = |c: char| if escaped(c) { c.escape_debug().count() } else { 1 };
        let mut shown = 0;
        let mut fits = |max: usize| {
            shown = 0;
            self.0
                .chars()
                .take_while(|&c| {
                    shown += len(c);
                    shown <= max
                })
                .count()
        };
        let all = self.0.chars().count();
        let (count, more) = match fits(Self::SHOWN_MAX) {
            count if count == all => (count, ""),
            _ => (fits(Self::SHOWN_MAX - MORE.len()), MORE),
        };
        for c in self.0.chars().take(count) {
            if escaped(c) { write!(f, "{}", c.escape_debug())? } else { f.write_char(c)? }
        }
        f.write_str(more)
    }
}

impl fmt::Display for StrangerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, |c| !matches!(c, '"' | '\'' | '\\'))
    }
}

impl fmt::Debug for StrangerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        self.write(f, |c| c != '\'')?;
        f.write_char('"')
    }
}

impl From<&str> for StrangerText {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for StrangerText {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl From<&String> for StrangerText {
    fn from(text: &String) -> Self {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_not_printed_is_escaped() {
        for (text, shown) in [
            ("", ""),
            ("out of memory; try \"later\" or \\ it's", "out of memory; try \"later\" or \\ it's"),
            ("Z\u{fc}rich \u{65e5}\u{672c}", "Z\u{fc}rich \u{65e5}\u{672c}"),
            ("a\nb\r\tc\0", "a\\nb\\r\\tc\\0"),
            ("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}"),
            ("\u{7f}\u{9b}31m\u{85}", "\\u{7f}\\u{9b}31m\\u{85}"),
            ("\u{202e}exe.\u{2066}\u{2069}", "\\u{202e}exe.\\u{2066}\\u{2069}"),
            ("\u{200b}\u{200d}\u{ad}\u{feff}\u{61c}", "\\u{200b}\\u{200d}\\u{ad}\\u{feff}\\u{61c}"),
            ("\u{2028}\u{2029}\u{a0}\u{3000}", "\\u{2028}\\u{2029}\\u{a0}\\u{3000}"),
            ("e\u{301}\u{301}\u{fe0f}", "e\\u{301}\\u{301}\\u{fe0f}"),
            ("\u{e0041}\u{e0100}\u{f8ff}\u{10fffd}", "\\u{e0041}\\u{e0100}\\u{f8ff}\\u{10fffd}"),
            ("\u{378}\u{ffff}", "\\u{378}\\u{ffff}"),
        ] {
            let text = StrangerText::new(text);
            assert_eq!(text.to_string(), shown);
            let quoted = shown.replace('\\', "\\\\").replace('"', "\\\"");
            if !text
                .unescaped()
                .chars()
                .any(|c| c.escape_debug().count() > 1 && !"\"'\\".contains(c))
            {
                assert_eq!(format!("{text:?}"), format!("\"{quoted}\""));
            }
        }
        let forged = StrangerText::new("bye\" user=\"root");
        assert_eq!(format!("{forged:?}"), "\"bye\\\" user=\\\"root\"");
        assert_eq!(StrangerText::from_bytes(b"a\xff\x9b").to_string(), "a\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_long_text_is_kept_and_shown_within_bounds() {
        let shown = |text: &str| StrangerText::new(text).to_string();
        assert_eq!(shown(&"x".repeat(300)), "x".repeat(300));
        assert_eq!(shown(&"x".repeat(301)), "x".repeat(297) + "...");
        assert_eq!(shown(&"\n".repeat(150)), "\\n".repeat(150));
        assert_eq!(shown(&"\n".repeat(151)), "\\n".repeat(148) + "...");
        assert_eq!(shown(&"\u{202e}".repeat(1000)), "\\u{202e}".repeat(37) + "...");
        for text in ["x", "\u{fc}", "\u{1f600}"] {
            let kept = StrangerText::new(&text.repeat(10_000));
            assert!(kept.unescaped().len() == 8192 && kept.unescaped().starts_with(text));
        }
        let cut = StrangerText::new(&("x".to_owned() + &"\u{20ac}".repeat(5000)));
        assert_eq!(cut.unescaped().len(), 8191, "a character is not cut");
        assert_eq!(StrangerText::from_bytes(&[b'x'; 10_000]).unescaped().len(), 8192);
    }

    /// A second opinion on which characters are not printed.
    #[test]
    fn no_character_of_these_categories_is_shown() {
        use unicode_general_category::{GeneralCategory as Is, get_general_category};
        let mut hidden = 0;
        for c in '\0'..=char::MAX {
            let category = get_general_category(c);
            let is_hidden = matches!(
                category,
                Is::Control
                    | Is::Format
                    | Is::PrivateUse
                    | Is::LineSeparator
                    | Is::ParagraphSeparator
                    | Is::EnclosingMark
                    | Is::NonspacingMark
            );
            let text = StrangerText::new(c.encode_utf8(&mut [0; 4]));
            if is_hidden || (category == Is::SpaceSeparator && c != ' ') {
                hidden += 1;
                assert!(text.to_string().starts_with('\\'), "U+{:04x} {category:?}", u32::from(c));
            }
        }
        assert!(hidden > 139_000, "{hidden}");
    }

    proptest! {
        #[test]
        fn what_is_shown_is_one_short_line_and_stays_as_it_is(text: String) {
            let shown = StrangerText::new(&text).to_string();
            prop_assert!(shown.chars().count() <= StrangerText::SHOWN_MAX);
            prop_assert!(!shown.chars().any(char::is_control));
            prop_assert_eq!(StrangerText::new(&shown).to_string(), shown);
        }
    }
}
