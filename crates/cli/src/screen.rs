//! Draws over its own last picture, below whatever was on the terminal before.
//!
//! It sets no mode of the terminal, neither hides the cursor nor reads its position: whatever ends
//! the program, even a signal that cannot be caught, leaves the terminal in order. A picture is
//! written in one piece, after which the cursor stands below it.

use std::{
    env,
    fmt::Write as _,
    io::{self, IsTerminal, Write as _},
};

use ratatui::{
    buffer::{Buffer, Cell},
    layout::{Rect, Size},
    style::{Color, Modifier},
    widgets::Widget,
};
use rustix::termios::tcgetwinsize;

/// The least terminal on which a picture can be read.
const SIZE_MIN: Size = Size::new(80, 20);

/// The largest picture; on larger terminals the rest stays as it is.
const SIZE_MAX: Size = Size::new(200, 50);

/// Standard error, if it is a terminal.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: Size,
    /// Lines of the last picture.
    drawn: u16,
}

impl Screen {
    /// Opens standard error; `None` if a picture would be invisible, illegible or mixed with other
    /// output.
    pub(crate) fn open() -> Option<Self> {
        let is_seen = io::stderr().is_terminal() && io::stdout().is_terminal();
        let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let terminal = size()?;
        (is_seen && fits(terminal) && !is_dumb).then_some(Self { terminal, drawn: 0 })
    }

    /// Replaces the last picture. While the terminal is too small, it only prints a notice.
    pub(crate) fn draw(&mut self, picture: impl Widget) {
        let mut text = String::new();
        let terminal = size().unwrap_or(self.terminal);
        if terminal != self.terminal {
            // The terminal may have wrapped lines again, so that the place of the last picture is unknown.
            text.push_str("\x1b[2J\x1b[H");
            (self.terminal, self.drawn) = (terminal, 0);
        }
        text.push_str(&self.back());
        self.drawn = 0;
        if fits(terminal) {
            let width = terminal.width.min(SIZE_MAX.width);
            let height = (terminal.height - 1).min(SIZE_MAX.height); // the cursor is on the last line
            let area = Rect::new(0, 0, width, height);
            let mut buffer = Buffer::empty(area);
            picture.render(area, &mut buffer);
            text.push_str(&encode(&buffer));
            self.drawn = height;
        } else {
            text.push_str("the picture needs a larger window\r");
        }
        write(&text);
    }

    /// The escape sequence that moves the cursor to the start of the last picture.
    fn back(&self) -> String {
        match self.drawn {
            0 => "\r".to_owned(),
            lines => format!("\r\x1b[{lines}A"),
        }
    }
}

impl Drop for Screen {
    /// Removes the picture.
    fn drop(&mut self) {
        write(&(self.back() + "\x1b[J"));
    }
}

fn fits(terminal: Size) -> bool {
    terminal.width >= SIZE_MIN.width && terminal.height >= SIZE_MIN.height
}

/// The size of the terminal at standard error, if there is one.
pub(crate) fn size() -> Option<Size> {
    let size = tcgetwinsize(io::stderr()).ok()?;
    Some(Size::new(size.ws_col, size.ws_row))
}

/// A failure is ignored: if the terminal is gone, there is no place to report it.
fn write(text: &str) {
    if io::stderr().write_all(text.as_bytes()).is_err() {}
}

/// Line by line, as terminals have understood it since ECMA-48.
fn encode(buffer: &Buffer) -> String {
    let mut text = String::new();
    let mut last = Cell::EMPTY.style();
    let width = usize::from(buffer.area.width.max(1));
    for line in buffer.content.chunks(width) {
        let used = line.iter().rposition(|cell| *cell != Cell::EMPTY).map_or(0, |last| last + 1);
        for cell in line.iter().take(used) {
            if cell.style() != last {
                last = cell.style();
                push_style(&mut text, cell);
            }
            text.push_str(cell.symbol());
        }
        if last != Cell::EMPTY.style() {
            last = Cell::EMPTY.style();
            push_style(&mut text, &Cell::EMPTY);
        }
        // At the end of a full line this would erase its last character.
        text.push_str(if used < width { "\x1b[K\r\n" } else { "\r\n" });
    }
    text
}

/// Select Graphic Rendition: the colours and modifiers that pictures have.
fn push_style(text: &mut String, cell: &Cell) {
    text.push_str("\x1b[0");
    if cell.modifier.contains(Modifier::BOLD) {
        text.push_str(";1");
    }
    if cell.modifier.contains(Modifier::DIM) {
        text.push_str(";2");
    }
    let colour = match cell.fg {
        Color::Green => Some(32),
        Color::Magenta => Some(35),
        _ => None,
    };
    if let Some(colour) = colour {
        // A string's growth cannot fail.
        if write!(text, ";{colour}").is_err() {}
    }
    text.push('m');
}

#[cfg(test)]
mod tests {
    use ratatui::{style::Style, text::Span};

    use super::*;

    #[test]
    fn lines_carry_their_styles_and_end_where_their_text_ends() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 6, 3));
        let green = Style::new().fg(Color::Green);
        Span::styled("ab", green).render(Rect::new(0, 0, 6, 1), &mut buffer);
        Span::styled("c", green.add_modifier(Modifier::BOLD))
            .render(Rect::new(1, 1, 5, 1), &mut buffer);
        Span::styled("⡇23456", Style::new()).render(Rect::new(0, 2, 6, 1), &mut buffer);
        let expected = "\x1b[0;32mab\x1b[0m\x1b[K\r\n \x1b[0;1;32mc\x1b[0m\x1b[K\r\n⡇23456\r\n";
        assert_eq!(encode(&buffer), expected);
    }
}
