//! Tests that each command of the documents parses.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{
    CommandFactory, FromArgMatches,
    error::{ContextKind, ErrorKind},
};

use crate::{Cli, help};

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/guide", "docs/design", "docs/pictures"] {
        let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        documents.extend(entries.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    documents
}

/// The words of a command, up to a comment, a pipe, a redirection or the end of the command. Words
/// may be in single quotation marks.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for character in line.chars() {
        match character {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
            _ => word.push(character),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty() && word != "...");
    let ends =
        |word: &String| matches!(word.as_str(), "#" | "|" | ">" | "&" | "&&" | "<") || word == "2>";
    words.into_iter().take_while(|word| !ends(word)).collect()
}

/// Why a command does not parse, if it does not.
fn error(words: &[String]) -> Option<clap::Error> {
    let command = help::independent_of_caller(Cli::command());
    let parsed =
        command.try_get_matches_from(words).and_then(|given| Cli::from_arg_matches(&given));
    let error = parsed.err()?;
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    (!is_answer).then_some(error)
}

/// Whether something is missing, as where a sentence only names a subcommand or a flag.
fn is_incomplete(error: &clap::Error) -> bool {
    let value = error.get(ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::MissingSubcommand => true,
        ErrorKind::InvalidValue => value.is_some_and(|value| value.to_string().is_empty()),
        _ => false,
    }
}

#[test]
fn every_command_in_a_code_block_parses() {
    let mut commands = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for block in text.split("```").skip(1).step_by(2) {
            let block = block.replace("\\\n", " ");
            for line in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
                let line = line.replace("cargo run --release -- ", "tandem ");
                let words = words(&line);
                // In front of it may be variables.
                let start = words.iter().take_while(|word| word.contains('=')).count();
                let words = words.get(start..).unwrap_or_default();
                if words.first().is_none_or(|word| word != "tandem") {
                    continue;
                }
                let is_abridged = line.contains("...");
                if let Some(error) = error(words).filter(|it| !is_abridged || !is_incomplete(it)) {
                    panic!("{}: {line}\n{error}", document.display());
                }
                commands += 1;
            }
        }
    }
    assert!(commands > 25, "only {commands} commands were found");
}

#[test]
fn every_command_in_a_sentence_parses() {
    let mut commands = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let prose: String = text.split("```").step_by(2).collect();
        for span in prose.split('`').skip(1).step_by(2).filter(|span| span.starts_with("tandem ")) {
            let words = words(&span.replace('\n', " "));
            // A word in capitals stands for something else.
            let is_placeholder =
                |word: &String| word.len() > 1 && word.chars().all(|it| !it.is_lowercase());
            if words.iter().any(is_placeholder) {
                continue;
            }
            if let Some(error) = error(&words).filter(|error| !is_incomplete(error)) {
                panic!("{}: {span}\n{error}", document.display());
            }
            commands += 1;
        }
    }
    assert!(commands > 20, "only {commands} commands were found");
}

#[test]
fn the_units_of_systemd_start_programs_with_their_configurations() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for role in ["proxy", "client", "serve", "origin", "pep"] {
        let unit = fs::read_to_string(folder.join(format!("tandem-{role}.service"))).unwrap();
        let line =
            unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/")).unwrap();
        assert!(line.starts_with(&format!("tandem {role} --config /etc/tandem/{role}.toml")));
        assert!(error(&words(line)).is_none(), "{line}");
    }
    let configuration = fs::read_to_string(folder.join("pep.toml")).unwrap();
    crate::config::from_text::<crate::pep::PepSettings>(&configuration).unwrap();
}
