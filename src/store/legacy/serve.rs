//! Reading an attached value where it stands: the file is opened below the attached directory, the key inside is
//! compared, and the value is a stretch of it.

use std::fs::File;

use crate::error::Result;
use crate::format::legacy::Span;
use crate::os::Attr;
use crate::store::Store;
use crate::store::index::NodeId;
use crate::store::object::Place;
use crate::store::tenants::Home;

/// A value that was opened to be read.
#[derive(Debug)]
pub struct Value {
    /// The file that holds it.
    pub file: File,
    /// Attributes; the size is the value's.
    pub attr: Attr,
    /// Where in the file it is, where that is not all of it.
    pub span: Option<Span>,
}

impl From<(File, Attr)> for Value {
    fn from((file, attr): (File, Attr)) -> Value {
        Value { file, attr, span: None }
    }
}

impl Store {
    /// Whether a linked value is served from the attached directory.
    pub fn is_attached(&self, id: NodeId) -> bool {
        self.attached.is_some() && self.index.lock().is_attached(id)
    }

    /// Whether a node that a record is about to replace has one in the store itself.
    pub(in crate::store) fn has_record(&self, old: Option<NodeId>) -> bool {
        old.is_some_and(|id| !self.is_attached(id))
    }

    /// Whether the first use of a value has all of it read, to verify it or, to change it, to copy it.
    pub fn prepares_first(&self, id: NodeId, writes: bool) -> bool {
        self.verifies_first(id) || (writes && self.is_attached(id))
    }

    /// Opens a linked value whose name is locked, wherever it is kept. A key whose file is gone or invalid leaves the
    /// index: it is a miss.
    pub(in crate::store) fn open_kept(
        &self,
        home: &Home,
        place: &Place,
        id: NodeId,
    ) -> Result<Option<Value>> {
        let Some(attached) = self.attached.as_ref().filter(|_| self.is_attached(id)) else {
            return Ok(self.open_or_forget(home, place, id, false)?.map(Value::from));
        };
        if let Some((file, found)) = attached.tree.find(&home.tenant, &place.key)? {
            let attr = Attr { size_bytes: found.value.bytes, ..found.attr };
            return Ok(Some(Value { file, attr, span: Some(found.value) }));
        }
        log::warn!("the legacy record of {} of tenant {} vanished; it is a miss now", place.key, home.tenant);
        self.forget_linked(id);
        Ok(None)
    }
}
