//! Confined system calls.
