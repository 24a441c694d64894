//! The summary at exit.
