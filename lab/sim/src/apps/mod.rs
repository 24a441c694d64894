//! Applications: what uses the device, as programs in simulated time.

mod core_cache;
mod vhost;

use crate::scenario::Measure;
use crate::world::World;
pub use vhost::{Copies, Vhost, VhostCosts};

/// An application and its parameters.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum App {
    /// A switch's core that copies packets to and from a virtual machine.
    Vhost(Vhost),
}

/// Tells, when all is over, what came of an application.
pub(crate) type Report = Box<dyn FnOnce(&World) -> Vec<Measure>>;

impl App {
    /// Puts its programs into the world.
    pub(crate) fn start(&self, world: &mut World) -> Report {
        match self {
            App::Vhost(app) => app.start(world),
        }
    }
}
