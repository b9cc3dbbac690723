//! (tests) The codec against what programs wrote, against every kind of damage, against a second reader.

mod damage;
mod fixtures;
mod mutations;
