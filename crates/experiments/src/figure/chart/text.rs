//! Texts: their fonts, widths and line breaks.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// Sizes of fonts in pixels.
pub(super) const TITLE: f64 = 20.0;
pub(super) const HEADING: f64 = 15.0;
pub(super) const TEXT: f64 = 13.0;

/// The ratio of the line height, by which Plotters sizes a font, to the font size of SVG.
const LINE_OF_A_FONT: f64 = 1.24;

/// The style of a text.
pub(super) fn style(size: f64, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size * LINE_OF_A_FONT).into_font().color(&color)
}

/// The anchor of a text that begins at a point and is centred vertically on it.
pub(super) fn middle_left() -> Pos {
    Pos::new(HPos::Left, VPos::Center)
}

/// The anchor of a text that is centred horizontally on a point and is below it.
pub(super) fn top_center() -> Pos {
    Pos::new(HPos::Center, VPos::Top)
}

/// The maximum width in pixels of a text of this size. The reader's font is unknown, so the widths
/// are those of the two widest common fonts, `DejaVu` Sans and Verdana, rounded up.
pub(super) fn width(text: &str, size: f64) -> i32 {
    let per_mille: u32 = text.chars().map(per_mille).sum();
    #[expect(clippy::cast_possible_truncation, reason = "pixels")]
    let pixels = (f64::from(per_mille) / 1000.0 * size).ceil() as i32;
    pixels
}

/// The width of a character in thousandths of the font size.
const fn per_mille(character: char) -> u32 {
    match character {
        'i' | 'l' => 285,
        'j' | ' ' | '.' | ',' | '\'' | '|' => 365,
        'f' | 'r' | 't' | 'I' | 'J' | '!' | ':' | ';' | '-' | '/' | '(' | ')' | '[' | ']' => 455,
        'c' | 's' | 'z' => 560,
        'm' | 'M' | 'W' | '@' => 1000,
        'w' | '+' | '=' | '<' | '>' | '#' | '\u{2212}' => 840,
        'D' | 'G' | 'H' | 'N' | 'O' | 'Q' | 'U' | 'V' | '&' => 790,
        'A'..='Z' => 700,
        'a'..='z' | '0'..='9' | '_' | '$' | '*' | '?' | '"' => 640,
        _ => 1080,
    }
}

/// Divides a text into lines of words that fit this many pixels.
pub(super) fn wrapped(text: &str, size: f64, limit: i32) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if width(&longer, size) > limit && !line.is_empty() {
            lines.push(word.to_owned());
        } else {
            *line = longer;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimated_widths_are_upper_bounds() {
        // These widths were measured with DejaVu Sans at a size of 1000.
        for (text, measured) in [
            ("99th percentile (largest of fewer than 100 runs)", 23_948),
            ("Against the best of MFT, MDT, MST and RMDT", 22_924),
            ("mean completion time / least possible", 19_114),
            ("\u{2212}12.5%", 4_015),
            ("cellular_driving_att2016", 12_060),
        ] {
            let taken_for = width(text, 1000.0);
            assert!(measured <= taken_for, "{text}: {taken_for}");
            assert!(taken_for < measured * 9 / 8, "{text}: {taken_for} wastes room");
        }
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped("one two three", 10.0, 50), ["one two", "three"]);
        assert_eq!(wrapped("unbreakable", 10.0, 20), ["unbreakable"]);
        assert_eq!(wrapped("", 10.0, 20), [""]);
    }
}
