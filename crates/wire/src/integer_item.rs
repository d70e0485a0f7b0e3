use sfv::{Item, Parameters, Parser};

/// Reads a structured field that is an Item of the type Integer ([RFC 9651 §3.3.1]), and its
/// parameters. The error is for people.
///
/// [RFC 9651 §3.3.1]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3.1
pub(crate) fn parse_integer(value: &str) -> Result<(i64, Parameters), String> {
    let item: Item = Parser::new(value).parse().map_err(|error: sfv::Error| error.to_string())?;
    let integer = item.bare_item.as_integer().ok_or_else(|| "another type".to_owned())?;
    Ok((integer.into(), item.params))
}

/// Structured fields have integers of at most 15 digits.
pub(crate) fn integer(value: u64) -> sfv::Integer {
    sfv::Integer::try_from(value).unwrap_or(sfv::Integer::MAX)
}
