//! The colour and the marker of each mode.

use plotters::prelude::*;

use super::{Canvas, Drawn, INK, PAPER};
use crate::run::Mode;

/// Whether a marker is full. It is hollow if a run did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Full,
    Hollow,
}

/// The colour of a mode. The palette of Okabe and Ito suits colour-blind readers. Grey means no
/// tunnel.
pub(super) const fn color(mode: Mode) -> RGBColor {
    match mode {
        Mode::Mft => RGBColor(110, 118, 128),
        Mode::MftTuned => RGBColor(98, 76, 150),
        Mode::MftPlus => RGBColor(125, 98, 60),
        Mode::Mdt => RGBColor(0, 114, 178),
        Mode::Forward => RGBColor(20, 40, 60),
        Mode::Uack => RGBColor(90, 170, 40),
        Mode::UackUp => RGBColor(120, 60, 200),
        Mode::Mst => RGBColor(213, 94, 0),
        Mode::Msgt => RGBColor(204, 121, 167),
        Mode::Rmdt => RGBColor(0, 158, 115),
        Mode::RmdtPlus => RGBColor(86, 100, 40),
        Mode::Tecc => RGBColor(150, 20, 60),
        Mode::TeccPaper => RGBColor(230, 159, 0),
        Mode::Auto => RGBColor(30, 30, 190),
    }
}

/// The colours of the lines of a mode: shades of the mode's colour.
pub(super) fn shaded(mode: Mode, number: usize) -> RGBColor {
    let RGBColor(red, green, blue) = color(mode);
    let share = match number {
        0 => 0,
        1 => 40,
        2 => 65,
        3 => 20,
        4 => 52,
        _ => 74,
    };
    let paler = |part: u8| {
        let mixed = (u32::from(part) * (100 - share) + 255 * share) / 100;
        u8::try_from(mixed).unwrap_or(u8::MAX)
    };
    RGBColor(paler(red), paler(green), paler(blue))
}

/// Draws the marker of a mode. Each mode has a shape of its own, so that modes differ not only in
/// colour.
pub(super) fn marker(
    canvas: &Canvas<'_>,
    (x, y): (i32, i32),
    color: RGBColor,
    mode: Mode,
    fill: Fill,
) -> Drawn {
    let inside = if fill == Fill::Full { color } else { PAPER };
    let outline = match mode {
        Mode::Mft => vec![(x - 4, y - 4), (x + 4, y - 4), (x + 4, y + 4), (x - 4, y + 4)],
        Mode::MftTuned => {
            vec![
                (x, y - 2),
                (x + 4, y - 6),
                (x + 6, y - 4),
                (x + 2, y),
                (x + 6, y + 4),
                (x + 4, y + 6),
                (x, y + 2),
                (x - 4, y + 6),
                (x - 6, y + 4),
                (x - 2, y),
                (x - 6, y - 4),
                (x - 4, y - 6),
            ]
        }
        Mode::MftPlus => vec![(x - 5, y - 3), (x + 5, y - 3), (x + 5, y + 3), (x - 5, y + 3)],
        Mode::Forward => vec![(x - 5, y - 5), (x + 6, y), (x - 5, y + 5)],
        Mode::Uack => vec![(x + 5, y - 5), (x - 6, y), (x + 5, y + 5)],
        Mode::UackUp => vec![(x - 6, y + 4), (x - 3, y - 5), (x + 3, y - 5), (x + 6, y + 4)],
        Mode::Mst => vec![(x, y - 6), (x + 6, y + 4), (x - 6, y + 4)],
        Mode::Msgt => vec![(x, y - 6), (x + 5, y), (x, y + 6), (x - 5, y)],
        Mode::RmdtPlus => vec![(x - 5, y), (x, y - 5), (x + 5, y), (x + 3, y + 5), (x - 3, y + 5)],
        Mode::Rmdt => vec![(x, y + 6), (x + 6, y - 4), (x - 6, y - 4)],
        Mode::Tecc => {
            vec![(x, y - 6), (x + 4, y - 4), (x + 4, y + 6), (x - 4, y + 6), (x - 4, y - 4)]
        }
        Mode::TeccPaper => vec![(x - 6, y), (x - 2, y - 5), (x + 6, y), (x - 2, y + 5)],
        Mode::Auto => vec![(x - 6, y - 5), (x + 6, y - 5), (x, y), (x + 6, y + 5), (x - 6, y + 5)],
        Mode::Mdt => {
            canvas.draw(&Circle::new((x, y), 5, inside.filled()))?;
            return canvas.draw(&Circle::new((x, y), 5, color.stroke_width(2)));
        }
    };
    closed(canvas, outline, inside, color.stroke_width(2))
}

/// Draws the marker of the paper's numbers.
pub(super) fn diamond(canvas: &Canvas<'_>, (x, y): (i32, i32)) -> Drawn {
    let outline = vec![(x, y - 7), (x + 7, y), (x, y + 7), (x - 7, y)];
    closed(canvas, outline, PAPER, INK.stroke_width(2))
}

fn closed(
    canvas: &Canvas<'_>,
    mut outline: Vec<(i32, i32)>,
    inside: RGBColor,
    line: ShapeStyle,
) -> Drawn {
    canvas.draw(&Polygon::new(outline.clone(), inside.filled()))?;
    outline.extend_from_within(..2); // so that the last corner is joined like the others
    canvas.draw(&PathElement::new(outline, line))
}
