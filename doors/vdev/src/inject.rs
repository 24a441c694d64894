//! What shall go wrong: the language of `--inject`.
