//! Installs the library for programs that are linked with it.

use crate::run::OffloadError;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use telpher_launch::libraries;

/// The library's name for the linker: `-ltelpher-offload`.
const NAME: &str = "libtelpher-offload.so";

/// Names of Intel's DTO: that of `-ldto`, under which programs search it, and that of its file.
const NAMES_OF_DTO: [&str; 2] = ["libdto.so", "libdto.so.1.0"];

/// Writes the library to a folder, which exists, and returns the paths of its files. `as_dto` also gives it the names
/// of Intel's DTO, so that programs that are linked with that library load this one.
///
/// # Errors
/// If a file cannot be written, or one of DTO's names is that of another file.
pub fn install(folder: &Path, as_dto: bool) -> Result<Vec<PathBuf>, OffloadError> {
    let names = if as_dto { &NAMES_OF_DTO[..] } else { &[] };
    let links: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    // Before anything is written.
    let missing = links.iter().map(|link| is_missing(link).map(|missing| missing.then_some(link)));
    let missing = missing.collect::<Result<Vec<_>, OffloadError>>()?;
    let library = libraries::OFFLOAD.write_to(&folder.join(NAME))?;
    for link in missing.into_iter().flatten() {
        symlink(NAME, link).map_err(|source| OffloadError::Link { path: link.clone(), source })?;
    }
    Ok([library].into_iter().chain(links).collect())
}

/// Returns false if the link exists already.
///
/// # Errors
/// If another file has this name.
fn is_missing(link: &Path) -> Result<bool, OffloadError> {
    let failed = |source| OffloadError::Link { path: link.into(), source };
    match std::fs::read_link(link) {
        Ok(target) if target == Path::new(NAME) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        // Another link, or no link (EINVAL).
        Ok(_) => Err(failed(io::ErrorKind::AlreadyExists.into())),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            Err(failed(io::ErrorKind::AlreadyExists.into()))
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_library_is_kept() {
        let folder = std::env::temp_dir().join(format!("telpher-offload-install-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [first, second] = NAMES_OF_DTO.map(|name| folder.join(name));
        std::fs::write(&second, "Intel's").unwrap();
        let refused = install(&folder, true).unwrap_err().to_string();
        assert!(refused.contains("libdto.so.1.0"), "{refused}");
        assert!(!first.exists() && !folder.join(NAME).exists(), "nothing was installed");
        assert_eq!(std::fs::read(&second).unwrap(), b"Intel's");
        std::fs::remove_file(&second).unwrap();
        // The second time, everything is there already.
        for _ in 0..2 {
            let paths = install(&folder, true).unwrap();
            assert_eq!(paths, [folder.join(NAME), first.clone(), second.clone()]);
            assert!(paths.iter().all(|path| std::fs::read(path).unwrap() == libraries::OFFLOAD.bytes()));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
