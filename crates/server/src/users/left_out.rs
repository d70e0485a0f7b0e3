//! In place of the store, in a program that was built without the feature `usage-store`.

use std::{convert::Infallible, path::Path};

use tandem_node::proxy::Month;

use super::{Row, StoreError};

/// A store, of which there is none.
#[derive(Debug)]
pub struct Store(Infallible);

fn left_out(file: &Path, what: &'static str) -> StoreError {
    let reason = "this program was built without the feature usage-store".to_owned();
    StoreError { file: file.to_owned(), what, reason }
}

impl Store {
    /// Fails.
    pub(super) fn open(file: &Path) -> Result<Self, StoreError> {
        Err(left_out(file, "opened"))
    }

    /// Fails.
    pub fn open_to_read(file: &Path) -> Result<Self, StoreError> {
        Err(left_out(file, "read"))
    }

    /// Is never called.
    pub(super) fn check_all(&self) -> Result<(), StoreError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn month(&self, _: Month) -> Result<Vec<Row>, StoreError> {
        match self.0 {}
    }

    /// Is never called.
    pub(super) fn add(&mut self, _: &[Row]) -> Result<(), StoreError> {
        match self.0 {}
    }
}
