//! One run: directory, view, program, end.
