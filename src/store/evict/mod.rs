//! Which key goes when room is needed.
/// t
pub type Slot = u32;
/// t
#[allow(missing_docs)]
pub trait Policy: Send {
    fn insert(&mut self, slot: Slot);
    fn touch(&mut self, slot: Slot);
    fn remove(&mut self, slot: Slot);
    fn victim(&self, evictable: &mut dyn FnMut(Slot) -> bool) -> Option<Slot>;
    fn order(&self) -> Vec<Slot>;
    fn len(&self) -> usize;
}
/// t
pub fn new(_name: crate::config::PolicyName) -> Box<dyn Policy> {
    todo!()
}
