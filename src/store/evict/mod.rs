//! Which key goes when room is needed.
