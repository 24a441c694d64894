//! Pages that are not there.

use super::{EngineId, Event, World};
use telpher_model::Action;

impl World {
    /// Pages of an action that are not there; they are from here on.
    pub(super) fn missing(&mut self, action: &Action) -> u32 {
        let missing: u64 = action.ranges().map(|range| self.places.touch(range.address, range.len)).sum();
        u32::try_from(missing).unwrap_or(u32::MAX)
    }

    /// The system brings the pages that an engine asks for, one after the other, and those of other engines before.
    pub(super) fn ask_for_pages(&mut self, at: EngineId, pages: u32) {
        let now = self.agenda.now();
        let dsa = &mut self.devices[usize::from(at.device)];
        let there = now.max(dsa.paging) + self.machine.translation.page_request * u64::from(pages);
        dsa.paging = there;
        dsa.pes[usize::from(at.engine)].first_has_pages(there);
        self.agenda.at(there, Event::Data(at));
    }
}
