//! The broker's integration tests: one binary.

mod arrows;
