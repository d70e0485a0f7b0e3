//! A self-contained HTML page of figures and tables.

use maud::{DOCTYPE, Markup, html};

use crate::summary::SummaryTable;

/// The content of a page.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Its title.
    pub title: String,
    /// The figures.
    pub figures: Vec<ReportFigure>,
    /// The tables of results.
    pub tables: Vec<ReportTable>,
}

/// A picture and its inputs.
#[derive(Clone, Debug)]
pub struct ReportFigure {
    /// The path at which it was found.
    pub name: String,
    /// The SVG text. It is shown as an image, so that a script in it cannot act on the page.
    pub svg: String,
    /// Names and values, such as the seeds.
    pub facts: Vec<(String, String)>,
}

/// A table of results.
#[derive(Clone, Debug)]
pub struct ReportTable {
    /// The path at which the results were found.
    pub name: String,
    /// The table, with one row for each combination of the varied parameters.
    pub table: SummaryTable,
    /// Notes above the table.
    pub notes: Vec<String>,
}

impl Report {
    /// The text of the page.
    pub fn html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) }
                    style { (maud::PreEscaped(include_str!("report.css"))) }
                }
                body {
                    header {
                        h1 { (self.title) }
                        p { "Made by tandem " (env!("CARGO_PKG_VERSION")) ": the nodes of a real tunnel in virtual time." }
                        (self.contents())
                    }
                    main {
                        @for (figure, number) in self.figures.iter().zip(1..) { (figure.markup(number)) }
                        @for (table, number) in self.tables.iter().zip(1..) { (table.markup(number)) }
                    }
                }
            }
        };
        page.into_string()
    }

    fn contents(&self) -> Markup {
        html! {
            nav aria-label="contents" {
                ul {
                    @for (figure, number) in self.figures.iter().zip(1..) {
                        li { a href={ "#figure-" (number) } { "Figure " (figure.name) } }
                    }
                    @for (table, number) in self.tables.iter().zip(1..) {
                        li { a href={ "#table-" (number) } { "Runs of " (table.name) } }
                    }
                }
            }
        }
    }
}

impl ReportFigure {
    fn markup(&self, number: usize) -> Markup {
        html! {
            section id={ "figure-" (number) } {
                h2 { "Figure " (self.name) }
                figure {
                    img alt={ "Figure " (self.name) } src=(data_url(&self.svg));
                    figcaption {
                        @for (name, value) in &self.facts {
                            span.fact { (name) ": " b { (value) } }
                        }
                    }
                }
            }
        }
    }
}

impl ReportTable {
    fn markup(&self, number: usize) -> Markup {
        let SummaryTable { header, rows } = &self.table;
        html! {
            section id={ "table-" (number) } {
                h2 { "Runs of " (self.name) }
                @for note in &self.notes { p.note { (note) } }
                div.scroll tabindex="0" {
                    table {
                        thead { tr { @for cell in header { th scope="col" { (cell) } } } }
                        tbody {
                            @for row in rows { tr { @for cell in row { td { (cell) } } } }
                        }
                    }
                }
            }
        }
    }
}

/// An SVG as a data URL.
fn data_url(svg: &str) -> String {
    let escaped = svg.bytes().map(|byte| {
        let is_plain = byte.is_ascii_alphanumeric() || b" -_.:/=,;()'".contains(&byte);
        if is_plain { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    });
    format!("data:image/svg+xml,{}", escaped.collect::<Vec<_>>().concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let table = SummaryTable {
            header: vec!["mode".to_owned(), "runs".to_owned()],
            rows: vec![vec!["<script>alert(1)</script>".to_owned(), "8".to_owned()]],
        };
        Report {
            title: "Runs & more".to_owned(),
            figures: vec![ReportFigure {
                name: "tecc/t2a".to_owned(),
                svg: "<svg xmlns=\"http://www.w3.org/2000/svg\"><text>\"é\" 5 %</text></svg>"
                    .to_owned(),
                facts: vec![("seeds".to_owned(), "1..8".to_owned())],
            }],
            tables: vec![ReportTable { name: "a\"b".to_owned(), table, notes: Vec::new() }],
        }
    }

    #[test]
    fn text_from_files_never_becomes_markup() {
        let html = report().html();
        assert!(!html.contains("<script"), "{html}");
        assert!(html.contains("&lt;script&gt;alert(1)"), "{html}");
        assert!(html.contains("Runs &amp; more"), "{html}");
        assert!(!html.contains("<svg"), "{html}");
    }

    #[test]
    fn the_page_needs_no_network() {
        let html = report().html();
        for word in ["href=\"http", "src=\"http", "url(", "@import", "<link"] {
            assert!(!html.contains(word), "{word} in {html}");
        }
        assert!(html.contains("src=\"data:image/svg+xml,%3Csvg"), "{html}");
        assert!(html.contains("%C3%A9"), "{html}");
    }
}
