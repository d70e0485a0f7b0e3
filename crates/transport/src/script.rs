//! The input of a model: bytes that say what happens next.

/// Reads the input, which is followed by zeros.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts at the beginning.
    pub const fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Reads a byte.
    pub fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// Reads a number of two bytes.
    pub fn number(&mut self) -> usize {
        usize::from(u16::from_be_bytes([self.byte(), self.byte()]))
    }

    /// Takes steps, at most `most`, until only zeros follow.
    pub fn steps(&mut self, most: usize, mut step: impl FnMut(&mut Self)) {
        for _ in 0..most {
            if self.0.is_empty() {
                break;
            }
            step(self);
        }
    }

    /// Chooses one of some values.
    ///
    /// # Panics
    ///
    /// There is none.
    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        let index = usize::from(self.byte()) % from.len();
        *from.get(index).expect("it is within")
    }
}
