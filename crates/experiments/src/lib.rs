//! Experiments in virtual time: their parameters, their results and their figures.
//!
//! A [run](mod@run) takes [`Parameters`](run::Parameters) to a [`RunRecord`](run::RunRecord): it
//! builds the hosts and links in a [`World`](tandem_lab::World) and measures them. A
//! [plan] names many runs in a TOML file, a [sweep] runs them on all cores, a
//! [summary] puts seeds together, a [figure] draws results beside the numbers of a paper,
//! and a [report] shows figures and results on one page.

pub mod figure;
mod ideal;
pub mod plan;
pub mod report;
pub mod run;
pub mod summary;
pub mod sweep;

pub use ideal::ideal_completion;
