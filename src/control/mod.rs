//! The control file's language.
