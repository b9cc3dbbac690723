//! POSIX access control lists in the binary form of Linux extended attributes.
//!
//! `system.posix_acl_access` and `system.posix_acl_default` hold a little-endian u32 version 2 and then entries of
//! {u16 tag, u16 perm, u32 id}. The rules here are those of the kernel's fs/posix_acl.c, so an object made on
//! the mount ends up with the mode and the list that it would have on ext4. Deciding an access is not done
//! here: the kernel does that (`default_permissions` with ACLs).

use crate::error::{Error, Kind, Result};

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id that entries without one carry, and that no user or group may have.
const UNDEFINED_ID: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    UserObj,
    User,
    GroupObj,
    Group,
    Mask,
    Other,
}

impl Tag {
    fn from_bits(bits: u16) -> Option<Tag> {
        Some(match bits {
            0x01 => Tag::UserObj,
            0x02 => Tag::User,
            0x04 => Tag::GroupObj,
            0x08 => Tag::Group,
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return None,
        })
    }

    fn bits(self) -> u16 {
        match self {
            Tag::UserObj => 0x01,
            Tag::User => 0x02,
            Tag::GroupObj => 0x04,
            Tag::Group => 0x08,
            Tag::Mask => 0x10,
            Tag::Other => 0x20,
        }
    }

    fn is_named(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    /// INVARIANT: three bits, `rwx`.
    perm: u16,
    /// INVARIANT: `UNDEFINED_ID` exactly where the tag is not `User` or `Group`.
    id: u32,
}

/// A valid access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    /// INVARIANT: one `UserObj`, any `User`, one `GroupObj`, any `Group`, at most one `Mask` (one where there is
    /// a `User` or `Group`), one `Other`, in this order; no id twice within a tag.
    entries: Vec<Entry>,
}

impl Acl {
    /// Parses the attribute's value. A version other than 2 is [`Kind::Unsupported`], as the kernel answers;
    /// anything else that setxattr(2) would refuse is [`Kind::Invalid`], and so is an id that appears twice,
    /// which POSIX forbids. Ids may come in any order. An empty list, with which the kernel means "remove the
    /// attribute", is no list.
    pub fn parse(value: &[u8]) -> Result<Acl> {
        let Some((version, body)) = value.split_first_chunk::<HEADER_BYTES>() else {
            return Err(invalid(format!("{} bytes are too short for a version", value.len())));
        };
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(Error::new(
                Kind::Unsupported,
                format!("access control list of version {version}: only version {VERSION} exists"),
            ));
        }
        let (chunks, rest) = body.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(invalid(format!("{} bytes are left after the last entry", rest.len())));
        }
        let entries = chunks.iter().map(parse_entry).collect::<Result<Vec<Entry>>>()?;
        check_order(&entries)?;
        check_ids(&entries)?;
        Ok(Acl { entries })
    }

    /// The attribute's value, which [`Acl::parse`] takes back.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries.len());
        value.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            value.extend_from_slice(&entry.tag.bits().to_le_bytes());
            value.extend_from_slice(&entry.perm.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    /// The nine permission bits that stat(2) shows beside this access list. The mask, where there is one, is
    /// the group's three.
    pub fn to_mode_bits(&self) -> u32 {
        let mut mode = 0;
        for entry in &self.entries {
            let perm = u32::from(entry.perm);
            match entry.tag {
                Tag::UserObj => mode |= perm << 6,
                Tag::GroupObj | Tag::Mask => mode = (mode & !0o070) | (perm << 3),
                Tag::Other => mode |= perm,
                Tag::User | Tag::Group => {}
            }
        }
        mode
    }

    /// Whether this access list says no more than [`Acl::to_mode_bits`], so that nothing need be stored. A
    /// default list is stored even so.
    pub fn is_trivial(&self) -> bool {
        self.entries.iter().all(|e| matches!(e.tag, Tag::UserObj | Tag::GroupObj | Tag::Other))
    }

    /// The access list after chmod(2) to `mode`: named entries stay, and the mask, where there is one, takes the
    /// group's bits in place of the owning group.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Acl {
        let group = self.group_class();
        for entry in &mut self.entries {
            match entry.tag {
                Tag::UserObj => entry.perm = perm_of(mode, 6),
                Tag::Other => entry.perm = perm_of(mode, 0),
                tag if tag == group => entry.perm = perm_of(mode, 3),
                Tag::User | Tag::GroupObj | Tag::Group | Tag::Mask => {}
            }
        }
        self
    }

    /// What an object made with `create_mode` in a directory with the default list `default` gets: its access
    /// list, where that says more than a mode, and its mode, with every bit above the nine as it was. The umask
    /// must not have been applied to `create_mode`: a default list takes its place. A new directory gets
    /// `default` unchanged as its own default list, besides.
    pub fn inherit(default: &Acl, create_mode: u32) -> (Option<Acl>, u32) {
        let mut acl = default.clone();
        let group = acl.group_class();
        let mut granted = 0;
        for entry in &mut acl.entries {
            let shift = match entry.tag {
                Tag::UserObj => 6,
                Tag::Other => 0,
                tag if tag == group => 3,
                Tag::User | Tag::GroupObj | Tag::Group | Tag::Mask => continue,
            };
            entry.perm &= perm_of(create_mode, shift);
            granted |= u32::from(entry.perm) << shift;
        }
        let mode = (create_mode & !0o777) | granted;
        ((!acl.is_trivial()).then_some(acl), mode)
    }

    /// The entry that the group's bits of a mode stand for.
    fn group_class(&self) -> Tag {
        if self.entries.iter().any(|e| e.tag == Tag::Mask) { Tag::Mask } else { Tag::GroupObj }
    }
}

/// Three bits of a mode.
fn perm_of(mode: u32, shift: u32) -> u16 {
    ((mode >> shift) & 0o7) as u16
}

fn invalid(why: impl std::fmt::Display) -> Error {
    Error::new(Kind::Invalid, format!("access control list: {why}"))
}

fn parse_entry(&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; ENTRY_BYTES]) -> Result<Entry> {
    let bits = u16::from_le_bytes([t0, t1]);
    let perm = u16::from_le_bytes([p0, p1]);
    let id = u32::from_le_bytes([i0, i1, i2, i3]);
    let tag = Tag::from_bits(bits).ok_or_else(|| invalid(format!("{bits:#x} is no tag")))?;
    if perm > 0o7 {
        return Err(invalid(format!("permissions {perm:#o} are more than rwx")));
    }
    if !tag.is_named() {
        // The kernel ignores what stands here.
        return Ok(Entry { tag, perm, id: UNDEFINED_ID });
    }
    if id == UNDEFINED_ID {
        return Err(invalid(format!("a {tag:?} entry has no id")));
    }
    Ok(Entry { tag, perm, id })
}

fn check_order(entries: &[Entry]) -> Result<()> {
    /// The last entry that is not a named one, as far as what may follow depends on it.
    enum After {
        Nothing,
        UserObj,
        GroupObj,
        Mask,
        Other,
    }
    let named = entries.iter().any(|e| e.tag.is_named());
    let mut after = After::Nothing;
    for entry in entries {
        after = match (after, entry.tag) {
            (After::Nothing, Tag::UserObj) => After::UserObj,
            (After::UserObj, Tag::User) => After::UserObj,
            (After::UserObj, Tag::GroupObj) => After::GroupObj,
            (After::GroupObj, Tag::Group) => After::GroupObj,
            (After::GroupObj, Tag::Mask) => After::Mask,
            (After::GroupObj, Tag::Other) if !named => After::Other,
            (After::Mask, Tag::Other) => After::Other,
            (After::GroupObj, Tag::Other) => {
                return Err(invalid("a Mask entry is needed beside User and Group entries"));
            }
            (_, tag) => return Err(invalid(format!("a {tag:?} entry is repeated or out of order"))),
        };
    }
    match after {
        After::Other => Ok(()),
        After::Nothing | After::UserObj | After::GroupObj | After::Mask => {
            Err(invalid("UserObj, GroupObj and Other entries must all be there"))
        }
    }
}

fn check_ids(entries: &[Entry]) -> Result<()> {
    let mut ids: Vec<(u16, u32)> =
        entries.iter().filter(|e| e.tag.is_named()).map(|e| (e.tag.bits(), e.id)).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(format!("id {} appears twice", pair[0].1))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER_OBJ: u16 = 0x01;
    const USER: u16 = 0x02;
    const GROUP_OBJ: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    const NO_ID: u32 = u32::MAX;

    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = vec![2, 0, 0, 0];
        for (tag, perm, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(perm.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::parse(&bytes(entries)).unwrap()
    }

    fn base(user: u16, group: u16, other: u16) -> Acl {
        acl(&[(USER_OBJ, user, NO_ID), (GROUP_OBJ, group, NO_ID), (OTHER, other, NO_ID)])
    }

    /// u::rw-, u:1000:rwx, g::r--, g:50:r-x, m::`mask`, o::---
    fn extended(user: u16, mask: u16, other: u16) -> Acl {
        acl(&[
            (USER_OBJ, user, NO_ID),
            (USER, 7, 1000),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 5, 50),
            (MASK, mask, NO_ID),
            (OTHER, other, NO_ID),
        ])
    }

    /// What `setfacl -m u:1000:rw` stores on a 0644 file.
    #[test]
    fn the_bytes_of_setfacl() {
        let value = [
            2, 0, 0, 0, // version
            1, 0, 6, 0, 255, 255, 255, 255, // user::rw-
            2, 0, 6, 0, 232, 3, 0, 0, // user:1000:rw-
            4, 0, 4, 0, 255, 255, 255, 255, // group::r--
            16, 0, 6, 0, 255, 255, 255, 255, // mask::rw-
            32, 0, 4, 0, 255, 255, 255, 255, // other::r--
        ];
        let acl = Acl::parse(&value).unwrap();
        assert_eq!(acl.encode(), value);
        assert_eq!(acl.to_mode_bits(), 0o664);
        assert!(!acl.is_trivial());
    }

    #[test]
    fn ids_of_base_entries_are_ignored_and_written_undefined() {
        let zeros = bytes(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 1, 9)]);
        let acl = Acl::parse(&zeros).unwrap();
        assert_eq!(acl, base(7, 5, 1));
        assert_eq!(acl.encode(), bytes(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID)]));
    }

    #[test]
    fn named_entries_may_come_in_any_order_of_ids() {
        let entries = [
            (USER_OBJ, 7, NO_ID),
            (USER, 1, 9),
            (USER, 2, 3),
            (GROUP_OBJ, 7, NO_ID),
            (GROUP, 3, 9),
            (GROUP, 4, 3),
            (MASK, 7, NO_ID),
            (OTHER, 0, NO_ID),
        ];
        assert_eq!(acl(&entries).encode(), bytes(&entries));
    }

    #[test]
    fn a_mode_is_a_trivial_list() {
        for mode in 0..0o1000 {
            let list = base((mode >> 6) & 7, (mode >> 3) & 7, mode & 7);
            assert_eq!(list.to_mode_bits(), u32::from(mode));
            assert!(list.is_trivial());
        }
        let masked = acl(&[(USER_OBJ, 6, NO_ID), (GROUP_OBJ, 7, NO_ID), (MASK, 4, NO_ID), (OTHER, 0, NO_ID)]);
        assert_eq!(masked.to_mode_bits(), 0o640, "the mask shows as the group");
        assert!(!masked.is_trivial(), "a mask alone is more than a mode");
    }

    #[test]
    fn malformed_values_are_refused() {
        let user_obj = (USER_OBJ, 6, NO_ID);
        let group_obj = (GROUP_OBJ, 4, NO_ID);
        let mask = (MASK, 4, NO_ID);
        let other = (OTHER, 0, NO_ID);
        let bad = [
            ("empty", vec![]),
            ("no owner", vec![group_obj, other]),
            ("no group", vec![user_obj, other]),
            ("no other", vec![user_obj, group_obj]),
            ("no other after mask", vec![user_obj, group_obj, mask]),
            ("owner twice", vec![user_obj, user_obj, group_obj, other]),
            ("group twice", vec![user_obj, group_obj, group_obj, other]),
            ("mask twice", vec![user_obj, group_obj, mask, mask, other]),
            ("other twice", vec![user_obj, group_obj, other, other]),
            ("wrong order", vec![group_obj, user_obj, other]),
            ("user behind the group", vec![user_obj, group_obj, (USER, 4, 1), mask, other]),
            ("user without mask", vec![user_obj, (USER, 4, 1), group_obj, other]),
            ("group without mask", vec![user_obj, group_obj, (GROUP, 4, 1), other]),
            ("user twice", vec![user_obj, (USER, 4, 1), (USER, 5, 2), (USER, 6, 1), group_obj, mask, other]),
            ("user without id", vec![user_obj, (USER, 4, NO_ID), group_obj, mask, other]),
            ("permissions", vec![user_obj, group_obj, (OTHER, 8, NO_ID)]),
            ("tag", vec![user_obj, group_obj, (0x40, 0, NO_ID), other]),
        ];
        for (why, entries) in bad {
            assert_eq!(Acl::parse(&bytes(&entries)).unwrap_err().kind(), Kind::Invalid, "{why}");
        }
    }

    #[test]
    fn a_cut_value_is_refused_wherever_it_is_cut() {
        let whole = extended(6, 7, 0).encode();
        for len in 0..whole.len() {
            assert_eq!(Acl::parse(&whole[..len]).unwrap_err().kind(), Kind::Invalid, "{len} bytes");
        }
        let mut other_version = whole;
        other_version[0] = 1;
        assert_eq!(Acl::parse(&other_version).unwrap_err().kind(), Kind::Unsupported);
    }

    #[test]
    fn one_id_may_be_a_user_and_a_group() {
        let list = [
            (USER_OBJ, 6, NO_ID),
            (USER, 4, 1),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 4, 1),
            (MASK, 4, NO_ID),
            (OTHER, 0, NO_ID),
        ];
        assert!(Acl::parse(&bytes(&list)).is_ok());
    }

    #[test]
    fn chmod_moves_the_mask_or_else_the_group() {
        assert_eq!(base(6, 4, 4).with_mode(0o100751), base(7, 5, 1));
        assert_eq!(extended(6, 7, 0).with_mode(0o2751), extended(7, 5, 1));
        assert_eq!(extended(6, 7, 0).with_mode(0o751).to_mode_bits(), 0o751);
    }

    #[test]
    fn a_default_list_narrows_the_mode_of_a_new_object() {
        let full = extended(7, 7, 5);
        assert_eq!(Acl::inherit(&full, 0o100666), (Some(extended(6, 6, 4)), 0o100664));
        assert_eq!(Acl::inherit(&full, 0o42777), (Some(extended(7, 7, 5)), 0o42775));
        let narrow = extended(7, 5, 0);
        assert_eq!(Acl::inherit(&narrow, 0o100666), (Some(extended(6, 4, 0)), 0o100640));
        assert_eq!(narrow, extended(7, 5, 0), "the directory keeps its own");
    }

    #[test]
    fn a_trivial_default_list_is_only_a_mode() {
        assert_eq!(Acl::inherit(&base(7, 5, 0), 0o100666), (None, 0o100640));
        assert_eq!(Acl::inherit(&base(7, 7, 7), 0o107123), (None, 0o107123));
    }

    /// `inherit` says what posix_acl_create_masq computes, for every mode and for lists with and without mask.
    #[test]
    fn inheritance_agrees_with_the_kernels_steps() {
        let lists = [base(7, 5, 1), base(2, 6, 4), base(0, 0, 0), extended(7, 5, 1), extended(3, 6, 2)];
        for default in lists {
            for create in 0..0o1000_u32 {
                let mut mode = create;
                let mut perms: Vec<u32> = default.entries.iter().map(|e| u32::from(e.perm)).collect();
                let at = |tag| default.entries.iter().position(|e| e.tag == tag);
                let owner = at(Tag::UserObj).unwrap();
                perms[owner] &= (mode >> 6) | !0o7;
                mode &= (perms[owner] << 6) | !0o700;
                let other = at(Tag::Other).unwrap();
                perms[other] &= mode | !0o7;
                mode &= perms[other] | !0o7;
                let group = at(Tag::Mask).or(at(Tag::GroupObj)).unwrap();
                perms[group] &= (mode >> 3) | !0o7;
                mode &= (perms[group] << 3) | !0o070;

                let (list, got) = Acl::inherit(&default, create);
                assert_eq!(got, mode, "create mode {create:o}");
                assert_eq!(list.is_none(), default.is_trivial());
                if let Some(list) = list {
                    let got: Vec<u32> = list.entries.iter().map(|e| u32::from(e.perm)).collect();
                    assert_eq!(got, perms, "create mode {create:o}");
                    assert_eq!(list.to_mode_bits(), mode, "create mode {create:o}");
                }
            }
        }
    }
}
