//! Tests that documents and comments have one width, which terminals and the views of differences show whole.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The maximum width of a line in characters.
const MAX_WIDTH: usize = 120;

/// Folders with files that others have written, or that a program has.
const NOT_OURS: [&str; 5] = ["target", ".git", ".venv", ".cache", "node_modules"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files_below(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && !path.is_symlink() {
            if !NOT_OURS.iter().any(|folder| name == *folder) {
                files_below(&path, ending, found);
            }
        } else if name.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
}

/// Whether a line could be divided: it has more than a mark, such as that of a list, and one word.
fn is_divisible(line: &str) -> bool {
    line.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count() > 1
}

/// The lines of prose that are too long, with their numbers.
fn long_lines<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, &'a str)> {
    lines.filter(|(_, line)| line.chars().count() > MAX_WIDTH && is_divisible(line)).collect()
}

/// Asserts that no file has lines that are too long, and shows those of all files.
fn assert_none(files: &[PathBuf], lines: impl Fn(&str) -> Vec<(usize, &str)>) {
    let mut long = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        let lines = lines(&text).into_iter();
        long.extend(lines.map(|(number, line)| format!("{}:{number}: {line}", file.display())));
    }
    assert!(long.is_empty(), "more than {MAX_WIDTH} characters: {long:#?}");
}

/// The lines of a Markdown file that are outside of code blocks and tables.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let line = line.trim_start();
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !line.starts_with('|')
    })
}

#[test]
fn lines_of_code_blocks_and_tables_and_single_words_may_be_longer() {
    let long = format!("{} {}", "a".repeat(60), "b".repeat(60));
    let word = "c".repeat(150);
    let text = format!("{long}\n```text\n{long}\n```\n| {long} |\n- {word}\n{}", &long[1..]);
    assert_eq!(long_lines(prose(&text)), [(1, long.as_str())]);
}

#[test]
fn lines_of_documents_have_one_width() {
    let mut files = Vec::new();
    files_below(&root(), ".md", &mut files);
    assert!(files.len() > 50, "only {} files found", files.len());
    assert_none(&files, |text| long_lines(prose(text)));
}

#[test]
fn lines_of_comments_have_one_width() {
    let mut files = Vec::new();
    files_below(&root(), ".rs", &mut files);
    assert!(files.len() > 500, "only {} files found", files.len());
    assert_none(&files, |text| {
        let lines = (1..).zip(text.lines());
        long_lines(lines.filter(|(_, line)| line.trim_start().starts_with("//")))
    });
}
