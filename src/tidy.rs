//! (tests) The rules of the tree itself.
