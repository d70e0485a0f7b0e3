/// The reason why a text is not a valid quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseUnitError {
    /// The text does not begin with a decimal number.
    #[error("{seen:?} does not begin with a decimal number; a {quantity} looks like {example:?}")]
    NotANumber {
        /// The text.
        seen: String,
        /// The name of the quantity.
        quantity: &'static str,
        /// An example of a valid text.
        example: &'static str,
    },
    /// The text after the number is not a unit of this quantity.
    #[error("unknown unit {seen:?} in a {quantity}; allowed: {allowed}")]
    UnknownUnit {
        /// The text after the number; it may be empty.
        seen: String,
        /// The name of the quantity.
        quantity: &'static str,
        /// All valid units, separated by commas.
        allowed: String,
    },
    /// The number is not a whole number of base units, such as half a bit.
    #[error("{seen:?} is not a whole number of {base}")]
    TooFine {
        /// The text.
        seen: String,
        /// The base unit in the plural.
        base: &'static str,
    },
    /// The number is below or above the range of the quantity.
    #[error("{seen:?} is out of range; a {quantity} is {allowed}")]
    OutOfRange {
        /// The text.
        seen: String,
        /// The name of the quantity.
        quantity: &'static str,
        /// The valid range in words.
        allowed: &'static str,
    },
}
