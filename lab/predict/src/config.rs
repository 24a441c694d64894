//! Accel-config files, and errors with the line in the file.

use crate::PredictError;
use std::path::{Path, PathBuf};
use telpher_device::{ApplyError, Config, Preset, StartError};
use telpher_os::chain;
use telpher_sim::ScenarioError;

/// An accel-config file and its devices.
pub(crate) struct ConfigFile {
    path: PathBuf,
    text: String,
    /// One configuration for each device.
    pub(crate) configs: Vec<Config>,
}

impl ConfigFile {
    /// Reads a file.
    pub(crate) fn load(path: &Path) -> Result<Self, PredictError> {
        let configs = Config::load(path)?;
        let text = std::fs::read_to_string(path)
            .map_err(|source| PredictError::Read { path: path.display().to_string(), source })?;
        Ok(ConfigFile { path: path.to_owned(), text, configs })
    }

    /// Adds the file's name and the line to a device's error.
    pub(crate) fn at_line(&self, error: ScenarioError) -> PredictError {
        let ScenarioError::Device { device, source } = &error else { return error.into() };
        let line = self.line(*device, source).map_or(String::new(), |line| format!(", line {line}"));
        PredictError::Not(format!("{}{line}: dsa{device}: {}", self.path.display(), chain(source)))
    }

    /// Returns the line that an error is about: that of the named object, or of the first entry that is too many.
    fn line(&self, device: usize, error: &StartError) -> Option<usize> {
        match error {
            StartError::Config(ApplyError::Value { name, key, .. }) => {
                let object = self.nth(&format!("\"{name}\""), 0)?;
                let key = self.text[object..].find(&format!("\"{key}\"")).map_or(object, |at| object + at);
                Some(self.line_of(key))
            }
            StartError::Config(ApplyError::Name { name, .. } | ApplyError::Kind { name, .. }) => {
                Some(self.line_of(self.nth(&format!("\"{name}\""), 0)?))
            }
            StartError::Command(_) => {
                let groups = &self.configs.get(device)?.groups;
                let names = groups.iter().flat_map(|group| {
                    let engines = group.grouped_engines.iter().map(|engine| &engine.dev);
                    engines.chain(group.grouped_workqueues.iter().map(|wq| &wq.dev))
                });
                let mut seen: Vec<&String> = Vec::new();
                for name in names {
                    if seen.contains(&name) {
                        return Some(self.line_of(self.nth(&format!("\"{name}\""), 1)?));
                    }
                    seen.push(name);
                }
                let mut room = u32::from(Preset::default().capabilities().wq_cap.total_entries());
                for wq in groups.iter().flat_map(|group| &group.grouped_workqueues) {
                    match room.checked_sub(wq.size) {
                        Some(left) => room = left,
                        None => return Some(self.line_of(self.nth(&format!("\"{}\"", wq.dev), 0)?)),
                    }
                }
                None
            }
            _ => None,
        }
    }

    /// Returns the position of the n-th occurrence of a text, from 0.
    fn nth(&self, text: &str, n: usize) -> Option<usize> {
        self.text.match_indices(text).nth(n).map(|(at, _)| at)
    }

    fn line_of(&self, at: usize) -> usize {
        self.text[..at].matches('\n').count() + 1
    }
}
