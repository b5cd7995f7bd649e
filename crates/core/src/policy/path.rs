//! Paths: one normal form, and patterns that match it.
