//! Removals as the control file asks for them: submission, state, and the agent that carries them out.

use std::sync::{Arc, mpsc};

use crate::error::{Error, Kind, Result};
use crate::ledger::{Request, RequestName, Submitted};
use crate::scope::{Generation, Mode, Scope};
use crate::store::Store;

/// The removals of one open store.
#[derive(Debug)]
pub struct Removals {
    store: Arc<Store>,
}

impl Removals {
    /// Begins to carry out what is pending.
    pub fn start(store: Arc<Store>) -> Result<Arc<Removals>> {
        Ok(Arc::new(Removals { store }))
    }

    /// Asks for a removal. Durable when it returns; does not wait for the removal.
    pub fn submit(&self, _scope: &Scope, _mode: Mode, _id: Option<&str>) -> Result<Submitted> {
        Err(Error::new(Kind::Unsupported, format!("no removals of {:?} yet", self.store)))
    }

    /// A request, in its state of now.
    pub fn request(&self, _name: &RequestName) -> Result<Request> {
        Err(Error::new(Kind::NotFound, "there is no such request"))
    }

    /// Every request that is kept, in its state of now, oldest first.
    pub fn requests(&self) -> Result<Vec<Request>> {
        Ok(Vec::new())
    }

    /// The generations whose attempts end from now on: acknowledged, or failed. Each end is told once, after
    /// [`Removals::request`] shows it.
    pub fn outcomes(&self) -> mpsc::Receiver<Generation> {
        mpsc::channel().1
    }
}
