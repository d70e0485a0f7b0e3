/// Why a text is not the quantity that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseUnitError {
    /// The text does not begin with a decimal number.
    #[error("{seen:?} does not begin with a decimal number; a {quantity} looks like {example:?}")]
    NotANumber {
        /// The text.
        seen: String,
        /// What was to be parsed.
        quantity: &'static str,
        /// One that would parse.
        example: &'static str,
    },
    /// The number is followed by something that is no unit of this quantity.
    #[error("unknown unit {seen:?} in a {quantity}; allowed: {allowed}")]
    UnknownUnit {
        /// What follows the number, maybe nothing.
        seen: String,
        /// What was to be parsed.
        quantity: &'static str,
        /// Every unit that would parse.
        allowed: String,
    },
    /// The number is finer than the quantity can say: half a bit, a third of a byte.
    #[error("{seen:?} is not a whole number of {base}")]
    TooFine {
        /// The text.
        seen: String,
        /// The unit that cannot be divided.
        base: &'static str,
    },
    /// The number is below or above what the quantity can say.
    #[error("{seen:?} is out of range; a {quantity} is {allowed}")]
    OutOfRange {
        /// The text.
        seen: String,
        /// What was to be parsed.
        quantity: &'static str,
        /// The range in words.
        allowed: &'static str,
    },
}
