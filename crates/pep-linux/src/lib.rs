//! A PEP on a Linux router.
