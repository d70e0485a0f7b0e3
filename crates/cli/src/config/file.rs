//! Reads a configuration file. Its keys are the flags of the subcommand, and clap checks its values as
//! those of flags. Errors name the line and the key.

use std::{
    error::Error,
    ffi::OsString,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgAction, ArgMatches, Command, ValueHint,
    builder::Resettable,
    error::{ContextKind, ContextValue, ErrorKind},
};
use tandem_files::line_of;
use tandem_server::files::FileError;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::Settings;
use crate::error::ConfigError;

/// Most bytes of a configuration file: a guard against naming the wrong file.
const FILE_LEN_MAX: u64 = 1_000_000;

/// Reads and parses a file. Paths in it become relative to its folder.
pub(super) fn read<S: Settings>(path: &Path) -> Result<S, ConfigError> {
    let unreadable = |error| FileError::Unreadable { file: path.to_owned(), error };
    let len = fs::metadata(path).map_err(unreadable)?.len();
    if len > FILE_LEN_MAX {
        return Err(FileError::TooLong { file: path.to_owned(), len, max: FILE_LEN_MAX }.into());
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    parse(path, &text)
}

/// Parses the text of a file.
pub(super) fn parse<S: Settings>(path: &Path, text: &str) -> Result<S, ConfigError> {
    let command = S::augment_args(Command::new(S::SUBCOMMAND))
        .no_binary_name(true)
        .disable_help_flag(true)
        // In a file, a list has its own form, and a variable is not a value of the file.
        .mut_args(|flag| flag.env(Resettable::Reset).value_delimiter(Resettable::Reset));
    let file = ReadFile { path, text, command };
    let given = file.matches()?;
    Ok(S::from_arg_matches(&given).expect("clap has checked the values"))
}

/// A file that is read.
struct ReadFile<'a> {
    path: &'a Path,
    text: &'a str,
    /// The flags that are its keys.
    command: Command,
}

impl ReadFile<'_> {
    fn matches(&self) -> Result<ArgMatches, ConfigError> {
        let document = DeTable::parse(self.text).map_err(|error| {
            self.refused(
                error.span().unwrap_or_default(),
                None,
                error.message().replace('\n', "; "),
            )
        })?;
        let mut line = Vec::new();
        for (key, value) in document.get_ref() {
            let name = key.get_ref().as_ref();
            let mut flags = self.command.get_arguments();
            let flag = flags.find(|flag| flag.get_long() == Some(name)).ok_or_else(|| {
                self.refused(value.span(), Some(name), self.unknown(name, value.get_ref()))
            })?;
            line.extend(self.flags(flag, name, value)?);
        }
        Ok(self.command.clone().try_get_matches_from(line).expect("each value has been checked"))
    }

    /// The flags that mean this value of a key: one for each element of a list.
    fn flags(
        &self,
        flag: &Arg,
        name: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<OsString>, ConfigError> {
        match value.get_ref() {
            DeValue::Array(elements) if matches!(flag.get_action(), ArgAction::Append) => {
                elements.iter().map(|element| self.flag(flag, name, element)).collect()
            }
            _ => Ok(vec![self.flag(flag, name, value)?]),
        }
    }

    /// The flag that means this one value.
    fn flag(
        &self,
        flag: &Arg,
        name: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<OsString, ConfigError> {
        let refused = |reason| self.refused(value.span(), Some(name), reason);
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Datetime(time) => time.to_string(),
            DeValue::Array(_) => return Err(refused("this setting takes one value".to_owned())),
            DeValue::Table(_) => return Err(refused("this setting takes no table".to_owned())),
        };
        let mut line = OsString::from(format!("--{name}="));
        // A site may be a folder or a URL.
        if flag.get_value_hint() == ValueHint::AnyPath && !text.contains("://") {
            line.push(self.path.parent().unwrap_or(Path::new("")).join(text));
        } else {
            line.push(text);
        }
        match self.command.clone().try_get_matches_from([&line]) {
            Ok(_) => Ok(line),
            Err(error) => Err(refused(reason(&error))),
        }
    }

    /// What to say of a key that no flag has.
    fn unknown(&self, name: &str, value: &DeValue<'_>) -> String {
        let subcommand = self.command.get_name();
        if value.is_table() {
            return format!(
                "there are no tables; write every setting above the first [ ], under the name of its \
                 flag (see `tandem generate config {subcommand}`)"
            );
        }
        let tried = self.command.clone().try_get_matches_from([format!("--{name}")]);
        let similar = tried.err().and_then(|error| match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(flag)) => flag.strip_prefix("--").map(str::to_owned),
            _ => None,
        });
        let similar = similar.map(|key| format!("; did you mean `{key}`?")).unwrap_or_default();
        format!(
            "unknown setting{similar} (`tandem generate config {subcommand}` prints every setting)"
        )
    }

    fn refused(&self, span: Range<usize>, key: Option<&str>, reason: String) -> ConfigError {
        let refused = FileError::InFile {
            file: PathBuf::from(self.path),
            line: line_of(self.text, span.start),
            key: key.map(str::to_owned),
            seen: seen(self.text, span),
            reason,
        };
        refused.into()
    }
}

/// Why clap refuses a value, without the name of the flag.
fn reason(error: &clap::Error) -> String {
    let allowed = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) => values.join(", "),
        _ => String::new(),
    };
    match error.source() {
        Some(source) => source.to_string(),
        None if error.kind() == ErrorKind::InvalidValue && !allowed.is_empty() => {
            format!("allowed: {allowed}")
        }
        None => error.kind().to_string(),
    }
}

/// The text of the place, if it is short enough to be quoted.
fn seen(text: &str, span: Range<usize>) -> Option<String> {
    let seen = text.get(span)?.trim();
    (!seen.is_empty() && seen.len() <= 80 && !seen.contains('\n')).then(|| seen.to_owned())
}
