//! (tests, feature `fuzzing`) What programs hand to the mount as bytes.

use super::acl::Acl;
use super::ioctl;

/// An access control list.
pub fn acl(bytes: &[u8]) {
    if let Ok(acl) = Acl::parse(bytes) {
        assert_eq!(Acl::parse(&acl.encode()).expect("it was made here"), acl);
        assert!(acl.to_mode_bits() <= 0o777);
    }
}

/// The argument of an ioctl.
pub fn ioctl(bytes: &[u8]) {
    ioctl::parses(bytes);
}
