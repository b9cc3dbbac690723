//! (tests, feature `fuzzing`) What a ledger's file and a coordinator answer.

use super::row;
use super::rules::Member;

/// The values of a ledger's file.
pub fn row(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(request) = row::to_request(7, text) {
        let again = row::to_request(7, &row::of_request(&request)).expect("it was made here");
        assert_eq!(again, request);
    }
    drop(row::from_text::<Member>(text));
}

/// The body of an answer of etcd's.
pub fn etcd(bytes: &[u8]) {
    super::etcd::fuzz(bytes);
}
