//! QR codes (ISO/IEC 18004) of links.

use std::io::{self, IsTerminal};

use png::{BitDepth, ColorType, Encoder};
use qrcode::{Color, EcLevel, QrCode, render::unicode::Dense1x2};

use crate::error::ProfileError;

/// Modules around the code that are light (ISO/IEC 18004 §6.3.8).
const QUIET: usize = 4;

/// Pixels of a module in each direction.
const SCALE: usize = 8;

/// Whether somebody can see a code on standard output.
pub(super) fn has_room() -> bool {
    io::stdout().is_terminal()
}

/// The code with the least redundancy, since a screen has no dirt.
fn code(link: &str) -> Result<QrCode, ProfileError> {
    QrCode::with_error_correction_level(link, EcLevel::L)
        .map_err(|_| ProfileError::TooLongForCode { len: link.len() })
}

/// Black on white, whatever the colours of the terminal are: many phones do not read a code with swapped colours.
const BLACK_ON_WHITE: &str = "\x1b[38;5;16;48;5;231m";

/// The colours of the terminal.
const RESET: &str = "\x1b[0m";

/// The code for a terminal. Two modules share a character.
pub(super) fn drawing(link: &str) -> Result<String, ProfileError> {
    let drawing = code(link)?.render::<Dense1x2>().quiet_zone(true).build();
    let lines = drawing.lines().map(|line| format!("{BLACK_ON_WHITE}{line}{RESET}"));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// The code as a picture in PNG.
pub(super) fn png(link: &str) -> Result<Vec<u8>, ProfileError> {
    let code = code(link)?;
    let modules = code.width();
    let side = (modules + 2 * QUIET) * SCALE;
    let colors = code.to_colors();
    let is_dark = |x: usize, y: usize| {
        let module = |it: usize| (it / SCALE).checked_sub(QUIET).filter(|it| *it < modules);
        let color = module(x).zip(module(y)).and_then(|(x, y)| colors.get(y * modules + x));
        color == Some(&Color::Dark)
    };
    let pixels: Vec<u8> = (0..side)
        .flat_map(|y| (0..side).map(move |x| (x, y)))
        .map(|(x, y)| if is_dark(x, y) { 0 } else { 255 })
        .collect();
    let mut picture = Vec::new();
    let side = u32::try_from(side).expect("a code has at most 177 modules");
    let mut encoder = Encoder::new(&mut picture, side, side);
    encoder.set_color(ColorType::Grayscale);
    encoder.set_depth(BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut it| it.write_image_data(&pixels));
    written.expect("memory takes a picture");
    Ok(picture)
}
