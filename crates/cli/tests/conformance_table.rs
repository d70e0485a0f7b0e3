//! Tests that the functions and tests that `docs/design/conformance.md` names exist, so that the table
//! stays correct.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::{fs, path::Path};

const COLUMNS: [&str; 5] = ["§", "requirement", "status", "code", "test"];
const NO_TEST: &str = "no test yet";

struct Row {
    line: usize,
    status: String,
    code: String,
    test: String,
}

/// All rows of all tables, without their headers.
fn rows() -> Vec<Row> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/conformance.md");
    let document = fs::read_to_string(file).unwrap();
    let mut rows = Vec::new();
    for (line, number) in document.lines().zip(1..) {
        let Some(cells) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
            continue;
        };
        let cells: Vec<_> = cells.split('|').map(str::trim).collect();
        let [_, requirement, status, code, test] = *cells else {
            panic!("line {number} has {} cells", cells.len());
        };
        if cells == COLUMNS || requirement == "---" {
            continue;
        }
        let (status, code, test) = (status.to_owned(), code.to_owned(), test.to_owned());
        rows.push(Row { line: number, status, code, test });
    }
    rows
}

/// The texts in backquotes, each as a file below `crates/` and a function.
fn functions(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.map(|name| name.split_once("::").expect(name))
}

/// The file up to the function's name.
fn code_before(line: usize, file: &str, function: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let code = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("line {line}: crates/{file}: {error}"));
    let mut begins = ['(', '<'].iter().filter_map(|end| code.find(&format!("fn {function}{end}")));
    let begin =
        begins.next().unwrap_or_else(|| panic!("line {line}: no {function} in crates/{file}"));
    code.split_at(begin).0.to_owned()
}

#[test]
fn every_function_in_the_table_exists() {
    for row in rows() {
        for (file, function) in functions(&row.code).chain(functions(&row.test)) {
            code_before(row.line, file, function);
        }
    }
}

#[test]
fn every_test_in_the_table_is_a_test_and_a_yes_has_tests_that_run() {
    for Row { line, status, test, .. } in rows() {
        for (file, function) in functions(&test) {
            let before = code_before(line, file, function);
            let (_, attributes) = before.rsplit_once("#[test]").unwrap_or_default();
            let is_test = before.contains("#[test]") && !attributes.contains("fn ");
            assert!(is_test, "line {line}: {function} is not a test");
            let runs = !attributes.contains("#[ignore");
            assert!(runs || !status.starts_with("yes"), "line {line}: {function} is ignored");
        }
    }
}

#[test]
fn every_row_has_a_status_and_the_cells_that_it_requires() {
    let rows = rows();
    assert!(rows.len() > 80, "only {} rows found", rows.len());
    for Row { line, status, code, test } in rows {
        let (word, reason) = status.split_once([':', ',']).unwrap_or((&status, ""));
        let has_test = test == NO_TEST || functions(&test).next().is_some();
        match word {
            "yes" => assert!(has_test && !code.is_empty(), "line {line}: no code or no test"),
            "no" | "partly" => assert!(!reason.is_empty(), "line {line}: {word} without a reason"),
            "n/a" => assert!(!reason.is_empty() && test.is_empty(), "line {line}: n/a, but why"),
            _ => panic!("line {line}: status {status:?}"),
        }
    }
}
