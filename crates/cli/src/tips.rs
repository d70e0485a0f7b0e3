//! What a wrong command line is told besides the parser's words.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What to do instead of flags that users know from other programs, or from other subcommands.
const INSTEAD: [(&str, &str, &str); 10] = [
    ("get", "-k", "to accept any certificate, for a test, use '--insecure'"),
    ("get", "-x", "a proxy is given with '--via URL'"),
    ("get", "--proxy", "a proxy is given with '--via URL'"),
    ("get", "-L", "redirects are followed without a flag; '--max-redirs 0' follows none"),
    ("get", "-s", "to print errors only, use '--quiet'"),
    ("get", "-T", "'--upload BYTES' measures an upload; files are not uploaded"),
    ("client", "-k", "to accept any certificate, for a test, use '--insecure'"),
    ("client", "--token", "a token is read from a file, with '--token-file FILE'"),
    ("ping", "--proxy", "a proxy is given with '--via URL'"),
    ("top", "--admin", "the address stands alone, as in 'tandem top 127.0.0.1:9433'"),
];

/// The error of the parser for a line whose first word is `first`, without advice that never helps: no argument of this
/// program has a value that begins with a dash.
pub(crate) fn corrected(first: &str, mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let mut tips = match error.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips,
        _ => Vec::new(),
    };
    tips.retain(|tip| !tip.to_string().contains("as a value"));
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => flag.as_str(),
        _ => "",
    };
    let instead = INSTEAD.iter().find(|(command, known, _)| (*command, *known) == (first, flag));
    if let Some((_, _, tip)) = instead {
        tips.push((*tip).into());
        error.remove(ContextKind::SuggestedArg);
    }
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::{Cli, help::independent_of_caller};

    fn said(line: &str) -> String {
        let mut words = line.split(' ').skip(1);
        let command = independent_of_caller(Cli::command());
        let error = command.try_get_matches_from(line.split(' ')).unwrap_err();
        corrected(words.next().unwrap(), error).to_string()
    }

    #[test]
    fn a_wrong_flag_gets_only_advice_that_helps() {
        for (line, tip) in [
            ("tandem lab run --los 5%", "--loss"),
            ("tandem get -k https://o.example/ -o f", "--insecure"),
            ("tandem get -x https://p.example https://o.example/ -o f", "--via URL"),
            ("tandem get --outputt f https://o.example/", "'--output'"),
            ("tandem top --admin 127.0.0.1:9433", "tandem top 127.0.0.1:9433"),
            ("tandem users --no-such-flag", ""),
        ] {
            let said = said(line);
            assert!(said.contains("unexpected argument"), "{said}");
            assert!(!said.contains("as a value"), "{said}");
            assert!(said.contains(tip) && said.contains("tip: ") != tip.is_empty(), "{said}");
        }
    }
}
