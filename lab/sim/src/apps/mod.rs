//! Applications: what uses the device, as programs in simulated time.

use crate::scenario::Measure;
use crate::world::World;

/// An application and its parameters.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum App {}

/// Tells, when all is over, what came of an application.
pub(crate) type Report = Box<dyn FnOnce(&World) -> Vec<Measure>>;

impl App {
    /// Puts its programs into the world.
    pub(crate) fn start(&self, _world: &mut World) -> Report {
        match *self {}
    }
}
