//! How much of the last-level cache a thread occupies, by the system's resctrl files.
//!
//! Source: Linux, Documentation/arch/x86/resctrl.rst: a directory in `mon_groups` is a group; `tasks` takes its
//! threads; `mon_data/mon_L3_NN/llc_occupancy` has its bytes in each cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why the occupancy is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheMonitorError {
    /// The file system is not mounted, or the processor does not monitor its cache.
    #[error(
        "Linux does not monitor the cache here: the processor has no cache monitoring, or resctrl is not mounted \
         (mount -t resctrl resctrl /sys/fs/resctrl)"
    )]
    None,
    /// The group cannot be made or used.
    #[error("cannot {action} {file}; it needs root")]
    Group {
        /// What was attempted.
        action: &'static str,
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The processor gives no number now.
    #[error("{file} has '{text}': the processor gives no number for this group")]
    Unavailable {
        /// The file.
        file: String,
        /// Its text.
        text: String,
    },
}

/// Monitors the cache of one thread. The group is removed when dropped.
#[derive(Debug)]
pub struct CacheMonitor {
    group: PathBuf,
}

impl CacheMonitor {
    /// Makes a group for a thread. `resctrl` is `/sys/fs/resctrl` except in tests.
    ///
    /// # Errors
    /// If the cache is not monitored, or this user may not make a group.
    pub fn of_thread(resctrl: &Path, thread: u32) -> Result<CacheMonitor, CacheMonitorError> {
        let groups = resctrl.join("mon_groups");
        let features = fs::read_to_string(resctrl.join("info/L3_MON/mon_features")).unwrap_or_default();
        if !groups.is_dir() || !features.lines().any(|line| line == "llc_occupancy") {
            return Err(CacheMonitorError::None);
        }
        let group = groups.join(format!("telpher-{thread}"));
        let failed = |action: &'static str, file: &Path| {
            let file = file.display().to_string();
            move |source| CacheMonitorError::Group { action, file, source }
        };
        match fs::create_dir(&group) {
            // Left by a thread of this number that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(failed("make", &group))?,
        }
        let monitor = CacheMonitor { group };
        let tasks = monitor.group.join("tasks");
        fs::write(&tasks, format!("{thread}\n")).map_err(failed("write", &tasks))?;
        Ok(monitor)
    }

    /// Returns the bytes that the thread occupies in all last-level caches.
    ///
    /// # Errors
    /// If the processor gives no number.
    pub fn bytes(&self) -> Result<u64, CacheMonitorError> {
        let data = self.group.join("mon_data");
        let failed = |file: &Path| {
            let file = file.display().to_string();
            move |source| CacheMonitorError::Group { action: "read", file, source }
        };
        let mut bytes = 0_u64;
        for entry in fs::read_dir(&data).map_err(failed(&data))?.flatten() {
            if !entry.file_name().to_string_lossy().starts_with("mon_L3_") {
                continue;
            }
            let file = entry.path().join("llc_occupancy");
            let text = fs::read_to_string(&file).map_err(failed(&file))?;
            let number: u64 = text.trim().parse().map_err(|_| CacheMonitorError::Unavailable {
                file: file.display().to_string(),
                text: text.trim().into(),
            })?;
            bytes = bytes.saturating_add(number);
        }
        Ok(bytes)
    }
}

impl Drop for CacheMonitor {
    fn drop(&mut self) {
        // A group that stays costs one of the processor's monitoring identifiers; the next one of this thread takes it.
        let _ = fs::remove_dir(&self.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caches_of_a_thread_are_summed_and_the_group_is_removed() {
        let root = std::env::temp_dir().join(format!("telpher-resctrl-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        assert!(matches!(CacheMonitor::of_thread(&root, 7), Err(CacheMonitorError::None)));
        fs::create_dir_all(root.join("mon_groups")).unwrap();
        fs::create_dir_all(root.join("info/L3_MON")).unwrap();
        fs::write(root.join("info/L3_MON/mon_features"), "mbm_total_bytes\n").unwrap();
        assert!(matches!(CacheMonitor::of_thread(&root, 7), Err(CacheMonitorError::None)), "no occupancy");
        fs::write(root.join("info/L3_MON/mon_features"), "llc_occupancy\nmbm_total_bytes\n").unwrap();
        let monitor = CacheMonitor::of_thread(&root, 7).unwrap();
        let group = root.join("mon_groups/telpher-7");
        assert_eq!(fs::read_to_string(group.join("tasks")).unwrap(), "7\n");
        assert!(matches!(monitor.bytes(), Err(CacheMonitorError::Group { .. })), "no data yet");
        for (domain, text) in [("mon_L3_00", "1000"), ("mon_L3_01", "234"), ("mon_other", "x")] {
            fs::create_dir_all(group.join("mon_data").join(domain)).unwrap();
            fs::write(group.join("mon_data").join(domain).join("llc_occupancy"), format!("{text}\n")).unwrap();
        }
        assert_eq!(monitor.bytes().unwrap(), 1_234);
        fs::write(group.join("mon_data/mon_L3_01/llc_occupancy"), "Unavailable\n").unwrap();
        let error = monitor.bytes().unwrap_err().to_string();
        assert!(error.contains("mon_L3_01/llc_occupancy has 'Unavailable'"), "{error}");
        // The kernel removes a group with its files; here they go first.
        fs::remove_dir_all(group.join("mon_data")).unwrap();
        fs::remove_file(group.join("tasks")).unwrap();
        drop(monitor);
        assert!(!group.exists());
        fs::remove_dir_all(root).unwrap();
    }
}
